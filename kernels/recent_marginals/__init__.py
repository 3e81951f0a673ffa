"""What the last rows read by column and by diagonal band (paper section 3.2; MInference's vertical-slash estimate)."""

from __future__ import annotations

from routesparse.kernels.common import dispatched
from routesparse.kernels.recent_marginals import launch, naive

recent_marginals = dispatched(naive.recent_marginals, launch.recent_marginals)
