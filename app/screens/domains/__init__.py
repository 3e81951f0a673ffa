"""The page Domains: ``page.render`` draws it; the other modules serve it alone."""
