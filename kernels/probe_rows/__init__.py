"""Where the rows of a probe stand (paper section 3.2): draws become row numbers of each head."""

from __future__ import annotations

from routesparse.kernels.common import dispatched
from routesparse.kernels.probe_rows import launch, naive

place_rows = dispatched(naive.place_rows, launch.place_rows)
