"""The route of all units by two kernels: steps 3 and 4, then 5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch

from routesparse.kernels.betting_bound import BISECTIONS
from routesparse.kernels.betting_bound.launch import BITS
from routesparse.kernels.launching import power_of_two, variant

MOST_TESTS = 8  # the ladder is unrolled


SUM_ROWS = 64  # rows that a mean adds up at once


@dataclass(frozen=True)
class Settings:
    """The route kernel's numbers, in its order; all float64."""

    fixed_us: float  # of a sparse head
    tile_us: float
    column_us: float
    dense_us: float
    alpha: float
    gate_threshold: float  # lambda
    dense_share: float  # of its cost, at which dense is preferred
    next_budget: float
    tau: float
    target: float  # ln(s / (1 - q)): the logarithm of the wealth that rejects a mean
    bet_cap: float

    def values(self) -> list[float]:
        """In the kernel's order."""
        return [getattr(self, field.name) for field in fields(self)]


def route_units(
    row_mass: torch.Tensor,
    tiles: torch.Tensor,
    columns: torch.Tensor,
    density: torch.Tensor,
    described: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    finite: torch.Tensor,
    settings: torch.Tensor,
    out: torch.Tensor,
    places: Mapping[str, int],
    sizes: tuple[int, int, int, int],
    *,
    tests: int,
    fallback: bool,
) -> torch.Tensor:
    """Steps 3 to 5 without a limit: the final candidates int64 [B, H]; everything recorded goes to ``out``.

    row_mass float32 [B, H, P, C], dense last; tiles, columns, density float32 [B, H, C]; described float32 [B, H] each:
    entropy, local band, agreement; finite bool scalar; settings float64 [11] (``Settings``). out float64, flat: places
    says where each of the record's tensors starts (decision.packed_layout). sizes: as in ``place_rows``. tests: at most
    MOST_TESTS.
    """
    from routesparse.kernels.route.kernel import certify_kernel, route_kernel

    batch, heads, count, width = row_mass.shape
    units, (recent, routing, certificate, boundary) = batch * heads, sizes
    row_mass = row_mass.contiguous()
    rungs, padded = max(2, 1 << (tests - 1).bit_length()), power_of_two(certificate)
    variant(route_kernel)[(units,)](
        row_mass,
        tiles.contiguous(),
        columns.contiguous(),
        density.contiguous(),
        *described,
        finite.view(torch.uint8),
        settings,
        out,
        places["routed_choice"],
        places["limited"],
        places["step5_ladder"],
        places["certificate_mass"],
        places["entropy"],
        places["finite"],
        units,
        count,
        width,
        recent,
        routing,
        certificate,
        BOUNDARY=boundary,
        TESTS=tests,
        ROWS=SUM_ROWS,
        C=power_of_two(width),
        S=rungs,
        num_warps=4,
        # Decisions are the twin's, rounding included.
        enable_fp_fusion=False,
    )
    choice = torch.empty(batch, heads, dtype=torch.int64, device=row_mass.device)
    scratch = torch.empty(units, 2, rungs, padded + 1, dtype=torch.float64, device=row_mass.device)
    variant(certify_kernel)[(units,)](
        row_mass,
        settings,
        scratch,
        out,
        choice,
        places["step5_choice"],
        places["step5_ladder"],
        units,
        count,
        width,
        recent + routing,
        certificate,
        BISECTIONS=BISECTIONS,
        BITS=BITS,
        TESTS=tests,
        FALLBACK=fallback,
        CERTIFICATE=padded,
        S=rungs,
        # A lane for each place of a round and rung.
        num_warps=max(1, (rungs << BITS) // 32),
        enable_fp_fusion=False,
    )
    return choice
