"""Exact rows by tensor operations, one KV head of one prompt at a time, in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from routesparse.kernels.logits import Logits, capped_logits

TINY = 1e-30  # below every norm that a division may meet


class Kept(NamedTuple):
    """What a plan reads at some rows, causality, window and padding aside; bool tensors of the rows' shape first.

    blocks [..., N]: KV blocks of ``block`` keys that are read whole; keys [..., n_k]: single keys beside them.
    """

    blocks: torch.Tensor | None
    block: int
    keys: torch.Tensor | None

    def mask(self, keys: int) -> torch.Tensor:
        """bool [..., keys]: which of the first ``keys`` keys are read."""
        found = None if self.keys is None else self.keys[..., :keys]
        if self.blocks is None:
            assert found is not None
            return found
        whole = self.blocks.repeat_interleave(self.block, -1)[..., :keys]
        return whole if found is None else whole | found


@dataclass(frozen=True)
class ExactRows:
    """Of each row, float32 and bool [B, H, C]; engine/certification/rows.py says what they are.

    NaN in Q, K or V leaves nothing to compare with: then error, deviation, plan_error and disagreement are infinite,
    and mass, hit and largest are 0. The last five are None without a plan.
    """

    error: torch.Tensor
    deviation: torch.Tensor
    finite: torch.Tensor
    mass: torch.Tensor | None = None
    hit: torch.Tensor | None = None
    largest: torch.Tensor | None = None  # int64
    plan_error: torch.Tensor | None = None
    disagreement: torch.Tensor | None = None


CHUNK_SCORES = 1 << 22  # rows x keys scored at once


def exact_rows(
    logits: Logits,
    v: torch.Tensor,
    out: torch.Tensor,
    rows: torch.Tensor,
    *,
    first_keys: torch.Tensor | None,
    window: int | None,
    planned: bool = False,
    kept: Kept | None = None,
) -> ExactRows:
    """What an attention function's output [B, H, n_q, Dv] is in some rows, held against exact attention.

    v [B, Hkv, n_k, Dv]; queries and keys are bottom-right aligned; rows int64 [B, H, C], numbered from the first query.
    first_keys int64 [B]: keys before it are hidden; window: each row reads its last so many keys; the scale is
    positive. planned: what a plan keeps is measured too; kept [B, H, C, ...], None: it keeps all.
    """
    q, k, sinks, group = logits.q, logits.k, logits.sinks, logits.group
    count = rows.shape[2]
    kv_heads, keys = k.shape[1:3]
    shift = keys - q.shape[2]
    found: dict[str, torch.Tensor] = {}
    for b in range(len(rows)):
        first_key = 0 if first_keys is None else int(first_keys[b])
        for kv_head in range(kv_heads):
            near, values = k[b, kv_head].float(), v[b, kv_head].float()
            reach = values.norm(dim=-1)
            mine = slice(kv_head * group, (kv_head + 1) * group)
            flat = rows[b, mine].flatten()
            for place in flat.argsort().split(max(1, CHUNK_SCORES // keys)):
                head, c = mine.start + place // count, place % count
                end = int(flat[place].max()) + shift + 1
                at = b, head, flat[place]
                scores = capped_logits(q[at].float(), near[:end], logits.scale, logits.softcap)
                key = torch.arange(end, device=q.device)
                position = (flat[place] + shift).unsqueeze(-1).to(q.device)
                hidden = (key > position) | (key < first_key)
                if window is not None:
                    hidden |= key <= position - window
                scores.masked_fill_(hidden, -torch.inf)
                sink = None if sinks is None else sinks[head].float().unsqueeze(-1)
                mask = None if kept is None else _mask(kept, b, head, c, end)
                scored = _row(scores, sink, values[:end], reach[:end], out[at].float(), planned, mask)
                for name, value in scored.items():
                    empty = torch.zeros(rows.shape, dtype=value.dtype, device=q.device)
                    found.setdefault(name, empty)[b, head, c] = value
    return ExactRows(**found)


def _mask(kept: Kept, b: int, head: torch.Tensor, c: torch.Tensor, keys: int) -> torch.Tensor:
    place = b, head, c
    blocks = None if kept.blocks is None else kept.blocks[place]
    return Kept(blocks, kept.block, None if kept.keys is None else kept.keys[place]).mask(keys)


def _row(
    logits: torch.Tensor,
    sink: torch.Tensor | None,
    values: torch.Tensor,
    reach: torch.Tensor,
    ran: torch.Tensor,
    planned: bool,
    mask: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """The fields of ExactRows, each [P], of rows with logits [P, K] and sinks [P, 1]."""
    joint = logits if sink is None else torch.cat([logits, sink], 1)
    joint = joint.softmax(-1)
    weights = joint[:, : logits.shape[1]]
    sink_mass = joint[:, logits.shape[1] :].sum(-1)
    exact = weights @ values
    norm = exact.norm(dim=-1).clamp_min(TINY)
    finite = ran.isfinite().all(-1)
    apart = (ran - exact).norm(dim=-1).where(finite, torch.inf)
    reached = weights @ reach
    scored = {
        "error": apart / norm,
        "deviation": apart / reached.clamp_min(TINY),
    }
    if planned:
        kept = weights if mask is None else weights * mask
        mass = (kept.sum(-1) + sink_mass).clamp(max=1.0)
        sparse = kept @ values / mass.clamp_min(TINY).unsqueeze(-1)
        # A row of which the plan reads nothing has output 0, and is measured against what the exact row reads.
        read = (kept @ reach / mass.clamp_min(TINY)).where(mass > 0, reached)
        largest = weights.argmax(-1, keepdim=True)
        scored["plan_error"] = (exact - sparse).norm(dim=-1) / norm
        scored["disagreement"] = (ran - sparse).norm(dim=-1).where(finite, torch.inf) / read.clamp_min(TINY)
        known = {
            "mass": mass.nan_to_num(nan=0.0),
            "hit": kept.gather(-1, largest).squeeze(-1) > 0,
            "largest": largest.squeeze(-1).where(weights.isfinite().all(-1), 0),
        }
    worst = {name: value.nan_to_num(nan=torch.inf, posinf=torch.inf) for name, value in scored.items()}
    return {**worst, "finite": finite, **(known if planned else {})}
