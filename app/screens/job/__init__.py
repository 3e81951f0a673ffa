"""The page Job: ``page.render`` draws it."""
