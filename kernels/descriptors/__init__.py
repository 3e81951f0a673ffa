"""Descriptors of a head (paper section 3.2): entropy, local band, agreement, means over the rows of its probe."""

from __future__ import annotations

from routesparse.kernels.common import dispatched
from routesparse.kernels.descriptors import launch, naive

describe_units = dispatched(naive.describe_units, launch.describe_units)
