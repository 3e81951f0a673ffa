"""The page Routing map: ``page.render`` draws it; the other modules serve it alone."""
