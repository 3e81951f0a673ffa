"""The page Head: ``page.render`` draws it; the other modules serve it alone."""
