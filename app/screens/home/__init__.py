"""The page Home: ``page.render`` draws it; the other modules serve it alone."""
