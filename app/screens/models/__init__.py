"""The page Models: ``page.render`` draws it."""
