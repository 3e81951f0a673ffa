"""Steps 3 to 5 of all units in two launches: price, gate, certificate (paper section 3.4).

Policies "priced" and "certified". The naive twin is the method itself, engine/method/{scores, router, certificate,
fallback, layer_fallback, layer_certificate}.py, which a GPU runs as well for the settings that the kernels do not take;
tests hold both to the same decision.
"""

from __future__ import annotations

from routesparse.kernels.route.launch import MOST_TESTS, Certified, Priced, climb_fits, route_units

__all__ = ["MOST_TESTS", "Certified", "Priced", "climb_fits", "route_units"]
