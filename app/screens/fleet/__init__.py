"""The page Fleet: ``page.render`` draws it."""
