"""``routesparse evaluate``: a suite by several methods in three stages, prepare, predict and score."""
