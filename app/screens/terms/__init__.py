"""The page Terms: ``page.render`` draws it."""
