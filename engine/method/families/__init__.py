"""Index builders, one file per pattern family (paper section 3.1).

Every family is one *level map*: uint8 [B, H, M, N] holding, for each query block and KV block, the smallest budget
level that reads it (``NEVER`` for none). Budgets of a family are nested, so level b reads the blocks with
``level_map <= b``: one map scores all budgets, counts their tiles and lowers any of them to a row plan.
The sink block, every diagonal block and the block before them have level 0.
"""

from __future__ import annotations

from routesparse.engine.method.families import a_shape, block_sparse, vertical_slash
from routesparse.engine.method.families.level_map import FamilyIndex
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.engine.method.patterns import Candidate
from routesparse.engine.method.probe import Probe
from routesparse.engine.method.segments import Segment
from routesparse.engine.rows import Pattern

__all__ = ["FamilyIndex", "build_indices", "build_unprobed"]


def build_unprobed(
    inputs: AttentionInputs, segment: Segment, candidates: tuple[Candidate, ...]
) -> dict[Pattern, FamilyIndex]:
    """The indices that need no probe: every family's but vertical-slash."""
    window = a_shape.build(segment.geometry(inputs.first_keys()), _of(candidates, "a_shape"))
    top_k, top_p = block_sparse.build(
        inputs, segment, _of(candidates, "block_sparse"), _of(candidates, "block_top_p")
    )
    return {"a_shape": window, "block_sparse": top_k, "block_top_p": top_p}


def build_indices(
    inputs: AttentionInputs,
    segment: Segment,
    probe: Probe,
    candidates: tuple[Candidate, ...],
    unprobed: dict[Pattern, FamilyIndex] | None = None,
) -> dict[Pattern, FamilyIndex]:
    """Every family's index for one layer and segment, all heads at once (step 2 of the paper's table).

    unprobed: ``build_unprobed``'s, where they are built already.
    """
    found = build_unprobed(inputs, segment, candidates) if unprobed is None else unprobed
    bands = _of(candidates, "vertical_slash")
    slash = vertical_slash.build(segment.geometry(inputs.first_keys()), probe, bands)
    return {"a_shape": found["a_shape"], "vertical_slash": slash, **found}


def _of(candidates: tuple[Candidate, ...], pattern: str) -> list[Candidate]:
    return [c for c in candidates if c.pattern == pattern]
