"""What the method's steps hand to one another, each record once. Loading this loads no torch.

A family's index is one *level map*: for every query block and KV block the smallest budget, counted from 0, that reads
the KV block. The paper builds indices for each (pattern, budget); one map holds all budgets of a family, because they
are nested. So one gather scores every budget on the probe rows, one product counts their tiles, and one comparison
lowers any of them to a row plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    import torch

    from routesparse.engine.device.inputs import AttentionInputs
    from routesparse.engine.method.segments import Segment
    from routesparse.engine.rows import Pattern
    from routesparse.kernels.geometry import RankedColumns, SegmentGeometry

T = TypeVar("T")

COLUMN_LEVELS = 8  # three bits beside a column's key hold its level
RECENT, ROUTING, CERTIFICATE, BOUNDARY = 0, 1, 2, 3  # the groups of a probe's rows, see probe.py


@dataclass(frozen=True)
class Candidate:
    """One pattern with one budget; ``level`` counts budgets inside the family, from 0 (cheapest).

    What blocks, columns and share count is the family's to say.
    """

    index: int
    pattern: Pattern
    level: int
    blocks: int = 0
    columns: int = 0
    share: float = 0.0
    block_k: int = 64
    budget: str = "all"  # in words, with units: the family's ``text``


@dataclass(frozen=True)
class Look:
    """How pages show a family: full name, one letter, colour on a light and on a dark page, and a chart's mark."""

    label: str
    letter: str
    light: str = "#6d757d"
    dark: str = "#a0a8b0"
    symbol: str = "hexagon"  # or circle, square, diamond, triangle-up
    mark: str = "⬢"


@dataclass(frozen=True)
class Family:
    """One pattern family; its line in ``families._registered`` makes it known.

    budgets(segment): fields of ``Candidate`` (blocks, columns, share) of each budget, cheapest first; each reads
    what those before it read, whichever way its numbers go. text: a budget in words, with units. build(context,
    budgets): the index of a layer, all heads at once. reads(context, candidate, unit, i): the definition that the
    index must equal, slow and plain: the KV blocks that query block i of unit (batch, head) reads; blocks that
    every plan reads may be left out, blocks after the diagonal may be named. stamp: every constant that budgets
    depends on, the grid first.
    """

    name: str  # as bundles and calibrations store it
    look: Look
    budgets: Callable[[Segment], Sequence[dict[str, Any]]]
    text: Callable[[Candidate], str]
    build: Callable[[Context, Sequence[Candidate]], FamilyIndex]
    reads: Callable[[Context, Candidate, tuple[int, int], int], Iterable[int]]
    stamp: tuple[object, ...]
    needs_probe: bool = False  # without, a GPU builds the index while the probe runs
    beside_others: bool = False  # a GPU builds the index while it builds those of the families behind it


@dataclass(frozen=True)
class Context:
    """What the steps read of one layer and segment: its inputs, all candidates, and the probe once it has run."""

    inputs: AttentionInputs
    segment: Segment
    candidates: Sequence[Candidate]
    probed: Probe | None = None
    head_floors: torch.Tensor | None = None  # float32 [B, H]; RouterConfig.head_floors of this layer
    _found: dict[Callable[[Context], Any], Any] = field(default_factory=dict, repr=False)

    @property
    def probe(self) -> Probe:
        """Errors: ValueError where the family did not say that it needs one."""
        if self.probed is None:
            raise ValueError("the index is built before the probe; say needs_probe=True in the family")
        return self.probed

    @cached_property
    def geometry(self) -> SegmentGeometry:
        """The segment's blocks and diagonal on the inputs' device, its padding included."""
        return self.segment.geometry(self.inputs.first_keys())

    @property
    def padding(self) -> torch.Tensor | None:
        """int64 [B], the first real key of each prompt; None without padding."""
        return None if self.inputs.key_start is None else self.geometry.first_keys

    @cached_property
    def forced_and_causal(self) -> tuple[torch.Tensor, torch.Tensor]:
        """bool [B, 1, M, N] each: blocks that every plan reads (level 0), and blocks up to the diagonal."""
        from routesparse.kernels.causal_blocks import forced_and_causal

        return forced_and_causal(self.geometry)

    def budgets(self, pattern: str) -> list[Candidate]:
        """The candidates of one family, cheapest first."""
        return [c for c in self.candidates if c.pattern == pattern]

    def once(self, find: Callable[[Context], T]) -> T:
        """find(self), kept for the next family that asks."""
        if find not in self._found:
            self._found[find] = find(self)
        found: T = self._found[find]
        return found


@dataclass(frozen=True)
class FamilyIndex:
    """One family's nested budgets. B and H may be 1 where the family does not depend on them.

    levels: uint8 [B, H, M, N], 0 for blocks that every plan reads, NEVER (``kernels/rules.py``) for blocks that no
    budget reads and those beyond the diagonal; columns: int64 [B, H, V] best first, or None, of which
    column_counts[level] belong to a level; row_counts: int32 [B, H, M, levels], blocks that each query block reads at
    each level, where the builder knows them (others are counted); readers: what ``counted`` finds.
    """

    pattern: str
    levels: torch.Tensor
    columns: torch.Tensor | None = None
    column_counts: tuple[int, ...] = ()
    row_counts: torch.Tensor | None = None
    readers: torch.Tensor | None = None

    def counted(self, levels: int, geometry: SegmentGeometry) -> FamilyIndex:
        """With what scoring reads beside the map: ranked columns, and where they or missing counts ask for it,
        readers: int32 [B, H, levels, N], the body's query blocks that read each KV block at each level.
        """
        found = self
        if self.columns is not None or self.row_counts is None:
            from routesparse.kernels.level_maps import readers

            found = replace(self, readers=readers(self.levels, levels, geometry))
        _ = found.ranked_columns  # kept
        return found

    @property
    def counts(self) -> tuple[torch.Tensor, bool]:
        """What each level reads, and whether by query block. Errors: ValueError where nothing was ``counted``."""
        found = self.row_counts if self.readers is None else self.readers
        if found is None:
            raise ValueError(f"the index of {self.pattern!r} is not counted; build it with build_indices")
        return found, self.readers is None

    @cached_property
    def ranked_columns(self) -> RankedColumns | None:
        """The columns as the operations read them; None where the family has none.

        Errors: ValueError for more than COLUMN_LEVELS levels.
        """
        if self.columns is None:
            return None
        import torch

        from routesparse.engine.device.constants import constant
        from routesparse.kernels.geometry import RankedColumns

        if len(self.column_counts) > COLUMN_LEVELS:
            raise ValueError(f"{len(self.column_counts)} levels of columns; {COLUMN_LEVELS} at most")
        device = self.columns.device
        counts = np.array(self.column_counts, np.int32)
        of_rank = np.searchsorted(counts, np.arange(self.columns.shape[-1]), side="right").astype(np.uint8)
        levels = constant(of_rank, device)
        by_key = torch.add(levels.int(), self.columns.int(), alpha=COLUMN_LEVELS).sort(-1).values
        return RankedColumns(self.columns, levels, constant(counts, device), by_key)


@dataclass(frozen=True)
class ProbeRows:
    """Row numbers inside the segment, int64 [B, H, P], in the order recent, routing, certificate, boundary."""

    rows: torch.Tensor
    sizes: tuple[int, int, int, int]

    def slice_of(self, kind: int) -> slice:
        """Where a group stands on the last axis of ``rows`` and of everything measured on it."""
        start = sum(self.sizes[:kind])
        return slice(start, start + self.sizes[kind])


@dataclass(frozen=True)
class Probe:
    """What the probe saw. P probe rows, N KV blocks, K keys of the segment; float32."""

    rows: ProbeRows
    lse: torch.Tensor  # [B, H, P], natural log, scale and sink included
    block_mass: torch.Tensor  # [B, H, P, N], softmax mass per KV block
    sink_mass: torch.Tensor  # [B, H, P], mass of the always-kept attention sink (0 without)
    entropy: torch.Tensor  # [B, H, P], nats over KV blocks
    local: torch.Tensor  # [B, H, P], mass of the last LOCAL_BAND_TOKENS
    spread: torch.Tensor  # [B, H, P, octaves], mass by octave of distance in KV blocks; 0: the first block
    column_mass: torch.Tensor  # [B, H, K] summed over the recent rows, offsets >= LOCAL_OFFSETS
    band_mass: torch.Tensor  # [B, H, N] by block distance: what a band brings to a query block
    finite: torch.Tensor  # bool scalar: no NaN or Inf was met in the layer's queries or keys
    pooled: bool = False  # the routing and boundary rows know whole blocks only (eq. 3)

    @property
    def recent_block_mass(self) -> torch.Tensor:
        """[B, H, recent rows, N]."""
        return self.block_mass[:, :, self.rows.slice_of(RECENT)]


@dataclass(frozen=True)
class Descriptors:
    """Each [B, H] float32. entropy in nats over KV blocks; local_band and agreement in [0, 1]."""

    entropy: torch.Tensor
    local_band: torch.Tensor
    agreement: torch.Tensor


@dataclass(frozen=True)
class CandidateMass:
    """What each of C candidates (dense last) retains on each of P probe rows, and what it reads; float32."""

    row_mass: torch.Tensor  # [B, H, P, C] in [0, 1]; dense: 1
    tiles: torch.Tensor  # [B, H, C], KV tiles read over the body's query blocks
    columns: torch.Tensor  # [B, H, C], single columns read over the body's query blocks
    density: torch.Tensor  # [B, H, C], kept share of the body's causal area, left padding aside

    def group_mean(self, probe: Probe, kind: int) -> torch.Tensor:
        """Mean mass over one group of probe rows: [B, H, C]."""
        return self.row_mass[:, :, probe.rows.slice_of(kind)].mean(2)

    def disagreement(self, probe: Probe) -> torch.Tensor:
        """u: standard deviation of the recent, routing and boundary groups' mean mass, [B, H, C]."""
        import torch

        kinds = [k for k in (RECENT, ROUTING, BOUNDARY) if probe.rows.sizes[k]]
        return torch.stack([self.group_mean(probe, k) for k in kinds]).std(0, correction=0)
