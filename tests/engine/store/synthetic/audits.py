"""What an audit finds of a synthetic unit: exact mass and error, the blocks that were read, the worst rows."""

from __future__ import annotations

import numpy as np

from routesparse.engine.rows import AuditRow, BlockReadsRow, WorstRow

MOST_CELLS = 512  # of a unit's block reads


def audit_row(key, choice, random):
    sparse = choice.pattern != "dense"
    mass = float(np.clip(choice.mass + random.normal(0, 0.006), 0, 1)) if sparse else 1.0
    error = (1 - mass) * float(random.uniform(0.15, 0.5))
    return AuditRow(
        **key,
        rows=512,
        mass=mass,
        min_mass=max(0.0, mass - 0.3) if sparse else 1.0,
        lower_mass=choice.lower_mass,
        covered=None if choice.lower_mass is None else mass >= choice.lower_mass,
        mean_error=error,
        max_error=error * 4,
        bound_paper=2 * (1 - mass) * 3.1,
        bound_tight=(1 - mass) * 4.0,
        violations=0,
    )


def block_reads_row(key, taste, retained, choice, tokens, random):
    """Cells of KV blocks: sink and a few blocks read by all later rows, the others by a local window."""
    pool = -(-tokens // 64 // MOST_CELLS)
    cells = -(-(choice.first_token + choice.tokens) // (64 * pool))
    place = np.arange(cells)
    reads = np.clip(choice.density * cells / np.maximum(1, cells - place), 0.01, 1) * random.uniform(
        0, 1.4, cells
    )
    kept = random.choice(cells, max(1, int(choice.density * cells)), replace=False)
    reads[kept] = 1
    reads[0] = 1
    mass = 0.02 * random.random(cells) / cells + np.where(place == 0, taste[0], 0.0)
    mass[kept] += taste[1] * random.random(len(kept)) / len(kept)
    mass /= mass.sum()
    lost = mass * (1 - np.clip(reads, 0, 1))
    lost *= (1 - retained) / max(lost.sum(), 1e-9)
    return BlockReadsRow(
        **key,
        cells=cells,
        pool=pool,
        reads=np.ceil(255 * np.clip(reads, 0, 1)).astype(np.uint8).tobytes(),
        mass=np.maximum(mass, lost).astype("<f2").tobytes(),
        lost=lost.astype("<f2").tobytes(),
    )


def worst_rows(key, audit, choice, reads, random):
    """Four rows of the unit's body; what they lost is drawn from the blocks before them that are hardly read."""
    positions = choice.first_token + np.sort(random.choice(choice.body_tokens - 512, 4, replace=False)) + 512
    for rank, position in enumerate(positions[random.permutation(4)]):
        seen = np.frombuffer(reads.reads, np.uint8)[: position // 64 // reads.pool]
        blocks = np.argsort(seen + random.random(len(seen)))[:5] * reads.pool
        mass = min(1.0, audit.min_mass * (1 + 0.04 * rank))
        shares = (1 - mass) * np.array([0.4, 0.2, 0.1, 0.05, 0.02])[: len(blocks)]
        yield WorstRow(
            **key,
            rank=rank,
            position=int(position),
            mass=mass,
            error=audit.max_error * (1 - 0.1 * rank),
            lost_blocks=blocks.astype("<i4").tobytes(),
            lost_mass=shares.astype("<f4").tobytes(),
        )
