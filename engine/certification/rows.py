"""Random rows of one layer's attention, scored exactly in float32 beside what the function under test wrote.

For row p of a head, with the exact weights a and output o = a V (causal, padding, window, soft cap and sinks as the
layer's), the function's output o~, and a plan's kept keys K where there is one:

    error          ||o - o~|| / ||o||                        relative output error, infinite where o~ is NaN or Inf
    deviation      ||o - o~|| / sum_j a_j ||v_j||            the same against what rounding scales with
    mass           sum over j in K of a_j                    retained mass, a sink counts as kept
    hit            whether K holds the key with the largest weight
    plan_error     ||o - o_K|| / ||o||                       of the plan in float32, o_K its renormalised output
    disagreement   ||o_K - o~|| / sum over K of a_j ||v_j|| / mass: whether the function computes this plan at all

"Exactly" is float32 products: on a GPU by kernels (kernels/exact_rows), whether TF32 is switched on or not, on a CPU
and for heads of more than 512 bytes by tensor operations, for which TF32 must be off on a GPU (PyTorch's default).

Rows of different heads are drawn apart, uniformly and with replacement, from seeds that nothing else uses.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F

from routesparse.engine.certification.reads import Reads
from routesparse.engine.device.constants import to_device
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import PromptError
from routesparse.engine.method import shape
from routesparse.engine.seeds import stable_seed
from routesparse.kernels.exact_rows import Kept, exact_rows, joined_rows

ROWS = 64  # of each head
CELL = 64  # keys that a plan's shape is judged by
MOST_READ = 1 << 28  # rows x keys of a plan looked at together


@dataclass(frozen=True)
class RowScores:
    """One layer's rows, all [B, H, C] in drawn order; see the module. None without a plan."""

    positions: torch.Tensor  # int64, key-axis positions: tokens
    error: torch.Tensor
    deviation: torch.Tensor
    finite: torch.Tensor  # bool: the function's output is
    mass: torch.Tensor | None = None
    hit: torch.Tensor | None = None
    largest: torch.Tensor | None = None  # int64
    plan_error: torch.Tensor | None = None
    disagreement: torch.Tensor | None = None
    shares: torch.Tensor | None = None  # [B, H, 5]: where what the plan reads lies (method/shape.py)
    dense: bool = False  # there is a plan, but none for this layer: it counts as reading everything

    def numpy(self) -> dict[str, np.ndarray]:
        """By name, those that were measured; waits for the device."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.cpu().numpy() for name, value in found.items() if torch.is_tensor(value)}


def draw_rows(inputs: AttentionInputs, count: int, salt: str, seed: int, layer: int) -> torch.Tensor:
    """int64 [B, H, C] on the CPU: uniform rows of each head, behind the padding, numbered from the first query.

    Errors: PromptError for a prompt whose queries are padding alone.
    """
    batch, heads, n_q = inputs.q.shape[:3]
    generator = torch.Generator().manual_seed(stable_seed("certify", salt, seed, layer))
    draws = torch.rand(batch, heads, count, generator=generator, dtype=torch.float64)
    first = torch.zeros(batch, 1, 1, dtype=torch.int64)
    if inputs.key_start is not None:
        first = (inputs.key_start.cpu().long() - (inputs.k.shape[2] - n_q)).clamp_min(0).view(-1, 1, 1)
        empty = (first.flatten() >= n_q).nonzero().flatten().tolist()
        if empty:
            raise PromptError(
                f"row {empty[0]} of the batch holds padding alone here, which nothing can be compared with; pass "
                "prompts that have a real token in every chunk, or one prompt at a time"
            )
    return first + (draws * (n_q - first)).long().clamp(max=n_q - 1)


@torch.no_grad()
def score_rows(
    inputs: AttentionInputs,
    out: torch.Tensor,
    rows: torch.Tensor,
    window: int | None = None,
    reads: Reads | None = None,
    planned: bool = False,
    shaped: bool = False,
) -> RowScores:
    """Score rows int64 [B, H, C] (on the CPU) of the function's output [B, H, n_q, D].

    reads: what the plan reads; with ``planned`` and None it reads everything. shaped: describe it by its shape, too. A
    GPU is not waited for without padding and shape.
    """
    batch, heads, count = rows.shape
    n_k = inputs.k.shape[2]
    shift = n_k - inputs.q.shape[2]
    # What a plan reads of a row is a byte a key at most.
    step = count if reads is None else max(1, MOST_READ // (batch * heads * n_k))
    parts, cells = [], []
    # A model's layers may lie on several GPUs, and kernels start on the current one.
    with torch.cuda.device_of(inputs.q):
        for chunk in rows.split(step, 2):
            kept = None if reads is None else _kept(reads, to_device(chunk, inputs.q.device), n_k)
            if shaped and kept is not None:
                cells.append(_cells(kept, n_k))
            first_keys = None if inputs.key_start is None else inputs.first_keys()
            rest = {"first_keys": first_keys, "window": window, "planned": planned, "kept": kept}
            parts.append(exact_rows(inputs.logits, inputs.v, out, chunk, **rest))
    whole = parts[0] if len(parts) == 1 else joined_rows(parts)
    shares = _shares(cells, rows + shift) if shaped and planned else None
    return RowScores(rows + shift, **vars(whole), shares=shares, dense=planned and reads is None)


def _cells(kept: Kept, keys: int) -> np.ndarray:
    """bool [B, H, C, cells]: the cells of CELL keys of which a plan reads any."""
    parts = [] if kept.blocks is None else [kept.blocks.repeat_interleave(kept.block, -1)[..., :keys]]
    parts += [] if kept.keys is None else [kept.keys]
    pooled = [F.pad(part, (0, -part.shape[-1] % CELL)).unflatten(-1, (-1, CELL)).any(-1) for part in parts]
    most = max(part.shape[-1] for part in pooled)
    wide = torch.stack([F.pad(part, (0, most - part.shape[-1])) for part in pooled])
    return wide.any(0).cpu().numpy()  # type: ignore[no-any-return]


def _shares(cells: list[np.ndarray], positions: torch.Tensor) -> torch.Tensor:
    """[B, H, 5]; NaN where the plan reads everything."""
    batch, heads, count = positions.shape
    if not cells:
        return torch.full((batch, heads, len(shape.PARTS)), torch.nan)
    mask = np.concatenate(cells, 2).reshape(batch * heads, count, -1)
    own = positions.reshape(-1, count).numpy() // CELL
    found = shape.shares(mask, own, mask)
    later = np.arange(mask.shape[-1]) > own[..., None]
    found[(mask | later).all((1, 2))] = np.nan
    return torch.from_numpy(found).view(batch, heads, -1)


def _kept(reads: Reads, rows: torch.Tensor, keys: int) -> Kept:
    """What the plan reads of rows int64 [B, H, C] on its device."""
    batch, heads, count = rows.shape
    head = torch.arange(heads, device=rows.device).repeat_interleave(count)
    found = [reads.kept(b, head, rows[b].flatten(), keys) for b in range(batch)]

    def joined(name: str) -> torch.Tensor | None:
        values = [getattr(one, name) for one in found]
        return None if values[0] is None else torch.stack(values).view(batch, heads, count, -1)

    return Kept(joined("blocks"), found[0].block, joined("keys"))
