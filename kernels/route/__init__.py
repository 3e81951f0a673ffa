"""Steps 3 to 5 of all units in two launches: price, gate, certificate (paper section 3.4).

Policies "priced" and "certified". The naive twin is the method itself, engine/method/{scores, router, certificate,
fallback, layer_fallback, layer_certificate}.py, which a GPU runs as well for the settings that the kernels do not take;
tests hold both to the same decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch

from routesparse.kernels.betting_bound import BISECTIONS, BITS
from routesparse.kernels.common import launch, power_of_two

MOST_TESTS = 8  # the ladder is unrolled
MOST_HEADS = 128  # so that a round's factors, of at least .02 each, don't underflow
MOST_MASSES = 128 * 128  # padded certificate masses of a layer: one program holds them
MASSES_PER_WARP = 256
SUM_ROWS = 64  # rows that a mean adds up at once


@dataclass(frozen=True)
class Settings:
    """The kernels' numbers, in their order; all float64. Each policy adds its own."""

    fixed_us: float  # of a sparse head
    tile_us: float
    column_us: float
    dense_us: float
    alpha: float
    dense_share: float  # of its cost, at which dense is preferred
    target: float  # the logarithm of the wealth that rejects a mean
    bet_cap: float
    tau: float  # the mean that a unit's certificate must reach

    def values(self) -> list[float]:
        """In the kernels' order."""
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True)
class Certified(Settings):
    """Of the policy "certified"; target is ln(s / (1 - q))."""

    gate_threshold: float  # lambda
    next_budget: float


@dataclass(frozen=True)
class Priced(Settings):
    """Of the policy "priced"; target is ln(1 / (1 - q))."""

    priced: int  # the candidate whose g is its own lambda
    other_loss: float  # of what it loses, what the others may lose
    tau_layer: float  # the mean that the layer's certificate must reach


def climb_fits(heads: int, certificate: int) -> bool:
    """Whether one program can climb with a layer of so many heads and certificate rows."""
    return heads <= MOST_HEADS and _heads_padded(heads) * power_of_two(certificate) <= MOST_MASSES


def route_units(
    row_mass: torch.Tensor,
    tiles: torch.Tensor,
    columns: torch.Tensor,
    density: torch.Tensor,
    described: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    finite: torch.Tensor,
    following: torch.Tensor | None,
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
    entropy, local band, agreement; finite bool scalar; following int32 [C]: the next dearer candidate of each one's
    family, -1 for none, under the policy "priced"; None under the policy "certified"; settings float64: ``Priced`` or
    ``Certified``. out float64, flat: places says where each tensor of the record begins (``RECORD`` in
    engine/decide/decision.py). sizes: as in ``place_rows``. tests: at most MOST_TESTS; "priced": what ``climb_fits``
    says.
    """
    from routesparse.kernels.route.climb_kernel import climb_kernel
    from routesparse.kernels.route.kernel import certify_kernel, route_kernel

    batch, heads, count, width = row_mass.shape
    units, (recent, routing, certificate, boundary) = batch * heads, sizes
    rungs, padded = _rungs_padded(tests), power_of_two(certificate)
    choice = torch.empty(batch, heads, dtype=torch.int64, device=row_mass.device)
    common = {
        "row_mass_ptr": row_mass.contiguous(),
        "settings_ptr": settings,
        "out_ptr": out,
        "choice_ptr": choice,
        "heads": heads,
        "units": units,
        "count": count,
        "width": width,
        "certificate": certificate,
        "at_choice": places["choice"],
        "at_ladder": places["ladder"],
        "at_passed": places.get("head_passed", 0),
        "TESTS": tests,
        "FALLBACK": fallback,
        "CERTIFICATE": padded,
        "S": rungs,
    }
    entropy, local, agreement = described
    launch(
        route_kernel,
        (units,),
        common,
        tiles=tiles.contiguous(),
        columns=columns.contiguous(),
        density=density.contiguous(),
        entropy=entropy,
        local=local,
        agreement=agreement,
        finite=finite.view(torch.uint8),
        following=following,
        at_routed=places["routed_choice"],
        at_flags=places["limited"],
        at_certificate=places["certificate_mass"],
        at_described=places["entropy"],
        at_finite=places["finite"],
        recent=recent,
        routing=routing,
        BOUNDARY=boundary,
        ROWS=SUM_ROWS,
        C=power_of_two(width),
        num_warps=4,
        # Decisions are the twin's, rounding included.
        enable_fp_fusion=False,
    )
    # Step 5: a program a unit under the policy "certified", a program a prompt under "priced".
    if following is None:
        launch(
            certify_kernel,
            (units,),
            common,
            scratch=torch.empty(units, 2, rungs, padded + 1, dtype=torch.float64, device=out.device),
            first=recent + routing,
            BISECTIONS=BISECTIONS,
            BITS=BITS,
            # A lane for each place of a round and rung.
            num_warps=max(1, (rungs << BITS) // 32),
            enable_fp_fusion=False,
        )
    else:
        padded_heads = _heads_padded(heads)
        launch(
            climb_kernel,
            (batch,),
            common,
            at_state=places["state"],
            at_layer=places["layer_passed"],
            first=recent + routing,
            HEADS=padded_heads,
            num_warps=min(32, max(1, padded_heads * padded // MASSES_PER_WARP)),
            enable_fp_fusion=False,
        )
    return choice


def _rungs_padded(tests: int) -> int:
    return max(2, 1 << (tests - 1).bit_length())


def _heads_padded(heads: int) -> int:
    return 1 << (heads - 1).bit_length()
