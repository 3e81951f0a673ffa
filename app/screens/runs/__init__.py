"""The page Runs: ``page.render`` draws it; the other modules serve it alone."""
