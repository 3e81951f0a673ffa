"""From what a session saw to the rows of a bundle, with each choice's reason in words."""
