"""The page Sweep: ``page.render`` draws it; the other modules serve it alone."""
