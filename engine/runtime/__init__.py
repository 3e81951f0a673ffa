"""Where models call the router: one routing session, and its transformers attention interface."""
