"""``routesparse analyze`` of one prompt and of a folder of them: what was asked for, and the folder's runs."""
