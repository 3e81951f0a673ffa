"""``routesparse doctor``: what this machine offers, and what is missing or broken."""
