"""Pictures of a probe for people: block masses of some rows, and what each budget of each family reads."""

from __future__ import annotations

from routesparse.kernels.common import dispatched
from routesparse.kernels.pictures import launch, naive

pictures = dispatched(naive.pictures, launch.pictures)
