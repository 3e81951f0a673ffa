"""The page Audit: ``page.render`` draws it; the other modules serve it alone."""
