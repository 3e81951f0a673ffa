"""The page Fallbacks: ``page.render`` draws it; the other modules serve it alone."""
