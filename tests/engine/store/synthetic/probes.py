"""A synthetic unit's probe: a heatmap with a sink, columns, slashes and a diagonal, and the blocks of each level."""

from __future__ import annotations

import numpy as np
from synthetic.library import LIBRARY

from routesparse.engine import probe_masks
from routesparse.engine.rows import ProbeRow


def probe_row(key, taste, shape, body, segment, random):
    """Block mass of the probe rows, 272 by default: sink, a few columns, slashes, the diagonal."""
    columns, groups = shape
    first = segment * body
    end = first + body
    recent = np.arange(end - groups[0], end)
    others = [first + np.sort(random.choice(body - groups[0], n, replace=False)) for n in groups[1:]]
    positions = np.concatenate([recent, *others]).astype("<i4")
    kinds = np.repeat(np.arange(4), groups).astype(np.uint8)
    order = np.argsort(positions, kind="stable")
    positions, kinds = positions[order], kinds[order]
    block = max(1, end // columns)
    x = np.arange(columns)[None, :]
    own = (positions // block)[:, None]
    distance = own - x
    mass = taste[0] * np.exp(-np.maximum(distance, 0) / 2.0)
    mass = mass + 0.5 * (x == 0) + 0.02 * random.random((len(positions), columns))
    for column in random.choice(columns, 4, replace=False):
        mass = mass + taste[1] * 0.6 * (x == column)
    for offset in random.choice(max(2, columns // 2), 2, replace=False):
        mass = mass + taste[2] * 0.7 * (distance == offset)
    mass = np.where(distance >= 0, mass, 0.0)
    mass = mass / mass.sum(axis=1, keepdims=True)
    return ProbeRow(
        **key,
        rows=len(positions),
        columns=columns,
        pool=max(1, end // 64 // columns),
        scale=1.0,
        positions=positions.tobytes(),
        kinds=kinds.tobytes(),
        mass=mass.astype("<f2").tobytes(),
        masks=_masks(mass, distance),
        mask_columns=columns,
        mask_pool=max(1, end // 64 // columns),
    )


def _masks(mass, distance):
    """Level maps like a builder's: local blocks by distance, the other families by mass; sink and diagonal always."""
    rank = np.argsort(np.argsort(-mass, axis=1), axis=1) / np.maximum(
        1, (distance >= 0).sum(1, keepdims=True)
    )
    near = np.maximum(distance, 0) / distance.shape[1]
    levels = []
    for family in dict.fromkeys(pattern for pattern, _, _ in LIBRARY if pattern != "dense"):
        densities = [density for pattern, _, density in LIBRARY if pattern == family]
        key = near if family == "a_shape" else rank
        level = np.searchsorted(densities, key).astype(np.uint8)
        level[level == len(densities)] = probe_masks.NEVER
        level[:, 0] = 0
        level[distance == 0] = 0
        level[distance < 0] = probe_masks.NEVER
        levels.append(level)
    return probe_masks.pack(np.stack(levels)).tobytes()
