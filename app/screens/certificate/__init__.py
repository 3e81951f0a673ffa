"""The page Certificate: what any attention did to one prompt, from random rows scored exactly."""
