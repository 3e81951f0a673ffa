"""The page New run: ``page.render`` draws it; the other modules serve it alone."""
