"""Profiled kernel time (paper section 3.1 and step 3): t_ker of a plan on this machine, in microseconds.

The paper profiles every (pattern, budget, n) tuple. What a plan costs depends mostly on what it reads, so the profile
stores a linear model fitted to measured plans (profiles/plans.py),

    t_head = row * query blocks + tile * KV tiles + column * single columns + dense_tile * tiles of dense rows,

and one of the probe, t_probe = probe_base + heads * (probe_head + probe_key * keys). numpy only.

Break-even depends on the number of tokens alone. It is taken at the density that prompts of the bundled model come
to, .35, needles included; at .2 prompts were routed that became no faster. On a GPU it counts the setup of a new
length (``setup_us``), but not what Triton compiles the first time that a machine sees a length of its kind: seconds,
kept on disk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from routesparse.engine import paths
from routesparse.engine.errors import ProfileError
from routesparse.engine.files.plain_files import read_json
from routesparse.engine.method.segments import Segment
from routesparse.engine.schema import (
    Count,
    Like,
    Line,
    Number,
    Object,
    Positive,
    Text,
    Whole,
    checked,
    in_file,
    schema_of,
)
from routesparse.kernels.arrays import Array

SCHEMA = 1
# The density at which routed and dense attention are compared.
BREAK_EVEN_DENSITY = 0.35
LAYERS = 16  # that share the setup of a new shape, where their number is not known
LONGEST = 1 << 20
_MOST_FILE_BYTES = 1 << 23


Cost = Annotated[float, Number(0.0, 1e12)]
Size = Annotated[int, Whole(1, 1 << 20)]
BlockSize = Annotated[int, Whole(16, 1 << 20)]


@in_file(more=True)
@dataclass(frozen=True)
class Cell:
    """What a file says of one measured plan."""

    n: Positive
    mix: Text
    median_us: Cost
    rows: Count | None = None
    tiles: Count | None = None
    columns: Count | None = None
    dense_heads: Count | None = None
    dense_tiles: Count | None = None
    sparse_tiles: Count | None = None
    heads: Count | None = None
    repeats: Count | None = None
    best_us: Cost | None = None
    p20_us: Cost | None = None
    p80_us: Cost | None = None
    p95_us: Cost | None = None
    predicted_us: Cost | None = None


@dataclass(frozen=True)
class LatencyProfile:
    """Measured costs of one device, dtype and head size; all times in microseconds."""

    name: Text
    device: Text
    backend: Text
    dtype: Text
    head_dim: Size
    groups: Size  # query heads per KV head
    threads: Count
    block_q: BlockSize
    block_k: BlockSize
    row_us: Cost  # per query block of a sparse head
    tile_us: Cost
    column_us: Cost
    dense_row_us: Cost  # per dense head
    dense_tile_us: Cost
    probe_base_us: Cost
    probe_head_us: Cost
    probe_key_us: Cost  # per key and head
    median_error: Cost  # |predicted - measured| / measured, median over the plans of the fit
    setup_us: Cost = (
        0.0  # once per prompt of a new length: on a GPU the first decision is launched, then captured
    )
    cells: tuple[Annotated[dict[str, Any], Like(Cell)], ...] = ()  # the measurements
    validation_error: Cost | None = None  # the same over plans that are in no fit; None: not measured
    plans: Text = "random"  # what was fitted: "recorded" or "synthetic", "random" until 2026-11
    versions: Object = dataclasses.field(default_factory=dict)
    created_at: Line = ""
    command: Line = ""

    def sparse_us(self, segment: Segment, tiles: Array, columns: Array) -> Array:
        """Kernel time of one head, tail included: tiles and columns of the body, any shape -> the same shape."""
        tail = segment.causal_tiles(body_only=False) - segment.causal_tiles()
        fixed = self.row_us * segment.body_blocks + self.dense_tile_us * tail
        return fixed + self.tile_us * tiles + self.column_us * columns

    def dense_us(self, segment: Segment) -> float:
        """Kernel time of one dense head."""
        return self.dense_row_us + self.dense_tile_us * segment.causal_tiles(body_only=False)

    def probe_us(self, segment: Segment, heads: int) -> float:
        """Probe, index building, routing and certificates of one layer and segment."""
        return self.probe_base_us + heads * (self.probe_head_us + self.probe_key_us * segment.keys)

    def errors_text(self) -> str:
        """Median prediction errors, in words: of the fit and out of sample."""
        checked = self.validation_error
        told = "not checked on others" if checked is None else f"{checked:.1%} on others of that kind"
        return f"{self.median_error:.1%} on the {self.plans} plans of the fit, {told}"

    @property
    def costs(self) -> dict[str, float]:
        """Every coefficient by name."""
        return {name: value for name, value in vars(self).items() if name.endswith("_us")}

    def pays(self, segments: Sequence[Segment], heads: int, layers: int = LAYERS) -> bool:
        """Whether routed attention at BREAK_EVEN_DENSITY is predicted to beat dense by 3 % or more on these segments,
        in one of so many layers.

        Together, because they are one prompt: early segments are cheap either way. Never below the shortest length
        that was measured: the fitted intercepts say nothing there.
        """
        if segments[-1].keys < min((cell["n"] for cell in self.cells), default=0):
            return False
        routed, dense = self.setup_us * len(segments) / layers, 0.0
        for segment in segments:
            tiles = np.array(BREAK_EVEN_DENSITY * segment.causal_tiles())
            routed += heads * float(self.sparse_us(segment, tiles, np.zeros(()))) + self.probe_us(
                segment, heads
            )
            dense += heads * self.dense_us(segment)
        return routed < 0.97 * dense

    def break_even_tokens(self, heads: int, layers: int = LAYERS) -> int:
        """The least n (in steps of 256) from which a whole prompt pays.

        It depends on n alone: below it the dense kernel runs untouched, without a probe.
        """
        for tokens in range(256, LONGEST, 256):
            segment = Segment(0, 0, 0, tokens, tokens - self.block_q, self.block_q, self.block_k)
            if self.pays([segment], heads, layers):
                return tokens
        return LONGEST

    def save(self, folder: Path) -> Path:
        """Write <folder>/<name>.json, replacing it whole."""
        return paths.write_json(folder / f"{self.name}.json", {"schema": SCHEMA, **dataclasses.asdict(self)})

    @classmethod
    def load(cls, path: Path) -> LatencyProfile:
        """Errors: ProfileError for a file that is missing, corrupt or of a newer schema."""
        try:
            values = read_json(path, _MOST_FILE_BYTES)
            schema = schema_of(values)
            if schema != SCHEMA:
                raise ProfileError(f"profile {path.name} has schema {schema}; this version reads {SCHEMA}")
            return checked(cls, values)
        except FileNotFoundError:
            raise ProfileError(f"no latency profile {path.name}; run `routesparse profile`") from None
        except OSError as error:
            raise ProfileError(
                f"profile {path.name} can't be read ({error.strerror}); pass another"
            ) from None
        # ValueError: no UTF-8, no JSON, or a field with a value that means nothing (FieldError).
        except ValueError as error:
            raise ProfileError(
                f"profile {path.name} is corrupt ({error}); run `routesparse profile`"
            ) from None
