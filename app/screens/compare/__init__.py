"""The page Compare: ``page.render`` draws it; the other modules serve it alone."""
