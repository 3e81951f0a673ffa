"""Random rows of one layer's attention, scored exactly in float32 beside what the function under test wrote.

For row p of a head, with the exact weights a and output o = a V (causal, padding, window, soft cap and sinks as the
layer's), the function's output o~, and a plan's kept keys K where there is one:

    error          ||o - o~|| / ||o||                        relative output error, infinite where o~ is NaN or Inf
    deviation      ||o - o~|| / sum_j a_j ||v_j||            the same against what rounding scales with
    mass           sum over j in K of a_j                    retained mass, a sink counts as kept
    hit            whether K holds the key with the largest weight
    plan_error     ||o - o_K|| / ||o||                       of the plan in float32, o_K its renormalised output
    disagreement   ||o_K - o~|| / sum over K of a_j ||v_j|| / mass: whether the function computes this plan at all

"Exactly" is float32 products: where TF32 was switched on, they are only as exact as that.

Rows of different heads are drawn apart, uniformly and with replacement, from seeds that nothing else uses.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch

from routesparse.engine.certification.exact_rows import compare
from routesparse.engine.certification.reads import Reads
from routesparse.engine.errors import PromptError
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.engine.seeds import stable_seed
from routesparse.kernels.logits import capped_logits

ROWS = 64  # of each head
CHUNK_SCORES = {"cpu": 1 << 22, "cuda": 1 << 26}  # rows x keys scored at once
_TINY = 1e-30


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
) -> RowScores:
    """Score rows int64 [B, H, C] (on the CPU) of the function's output [B, H, n_q, D].

    reads: what the plan reads; with ``planned`` and None it reads everything.
    """
    batch, heads, count = rows.shape
    shift = inputs.k.shape[2] - inputs.q.shape[2]
    names = ["error", "deviation", "finite"]
    if planned:
        names += ["mass", "hit", "largest", "plan_error", "disagreement"]
    device = inputs.q.device
    shape = (batch, heads * count)
    found = {name: torch.full(shape, torch.nan, device=device) for name in names}
    first_keys = [0] * batch if inputs.key_start is None else inputs.key_start.tolist()
    for b in range(batch):
        if not planned:
            exact = compare(inputs, out, rows[b], b, int(first_keys[b]), window)
            found["error"][b] = (exact.apart / exact.norm.clamp_min(_TINY)).flatten()
            found["deviation"][b] = (exact.apart / exact.reach.clamp_min(_TINY)).flatten()
            found["finite"][b] = exact.finite.float().flatten()
            continue
        for kv_head in range(inputs.k.shape[1]):
            layer = _Head(inputs, out, b, kv_head, int(first_keys[b]), window, shift)
            mine = slice(kv_head * inputs.groups, (kv_head + 1) * inputs.groups)
            flat = rows[b, mine].reshape(-1)
            # Rows beside each other see about as many keys; results go back to the order of the draws.
            for place in _chunks(flat, shift, device):
                head = mine.start + place // count
                scored = layer.score(flat[place], head.to(device), reads, planned)
                index = (place + mine.start * count).to(device)
                for name in names:
                    found[name][b, index] = scored[name].float()
    shaped = {name: value.view(batch, heads, count) for name, value in found.items()}
    for name, value in shaped.items():
        # NaN in Q, K or V leaves nothing to compare with: the worst is said, never the best.
        value.nan_to_num_(
            nan=0.0 if name in ("mass", "hit", "largest", "finite") else torch.inf, posinf=torch.inf
        )
    for name in ("finite", "hit"):
        if name in shaped:
            shaped[name] = shaped[name] > 0
    if planned:
        shaped["largest"] = shaped["largest"].long()
    return RowScores(positions=rows + shift, **shaped, dense=planned and reads is None)


def _chunks(flat: torch.Tensor, shift: int, device: torch.device) -> list[torch.Tensor]:
    """Places of the rows, by ascending row, in chunks of about CHUNK_SCORES scores."""
    order = flat.argsort()
    most = CHUNK_SCORES["cuda" if device.type == "cuda" else "cpu"]
    chunks, start = [], 0
    ends = (flat[order] + shift + 1).tolist()
    for stop in range(1, len(ends) + 1):
        if stop == len(ends) or (stop + 1 - start) * ends[stop] > most:
            chunks.append(order[start:stop])
            start = stop
    return chunks


class _Head:
    """One KV head of one prompt, in float32."""

    def __init__(
        self,
        inputs: AttentionInputs,
        out: torch.Tensor,
        b: int,
        kv_head: int,
        first_key: int,
        window: int | None,
        shift: int,
    ) -> None:
        self.inputs, self.out, self.b = inputs, out, b
        self.first_key, self.window, self.shift = first_key, window, shift
        self.keys, self.values = inputs.k[b, kv_head].float(), inputs.v[b, kv_head].float()
        self.value_norm = self.values.norm(dim=-1)

    def score(
        self, rows: torch.Tensor, heads: torch.Tensor, reads: Reads | None, planned: bool
    ) -> dict[str, torch.Tensor]:
        """The module's quantities, each [P]; rows int64 [P] on the CPU, heads int64 [P] on the device."""
        end = int(rows.max()) + self.shift + 1
        rows = rows.to(heads.device)
        weights, sink = self._weights(rows, heads, end)
        values, value_norm = self.values[:end], self.value_norm[:end]
        exact = weights @ values
        norm = exact.norm(dim=-1).clamp_min(_TINY)
        ran = self.out[self.b, heads, rows].float()
        finite = ran.isfinite().all(-1)
        apart = (ran - exact).norm(dim=-1).where(finite, torch.inf)
        scored = {
            "error": apart / norm,
            "deviation": apart / (weights @ value_norm).clamp_min(_TINY),
            "finite": finite,
        }
        if not planned:
            return scored
        kept = weights if reads is None else weights * reads.at(self.b, heads, rows, end)
        mass = (kept.sum(-1) + sink).clamp(max=1.0)
        sparse = kept @ values / mass.clamp_min(_TINY).unsqueeze(-1)
        # A row of which the plan reads nothing has output 0, and is measured against what the exact row reads.
        read = (kept @ value_norm / mass.clamp_min(_TINY)).where(mass > 0, weights @ value_norm)
        largest = weights.argmax(-1, keepdim=True)
        scored["mass"] = mass
        scored["hit"] = kept.gather(-1, largest).squeeze(-1) > 0
        scored["largest"] = largest.squeeze(-1)
        scored["plan_error"] = (exact - sparse).norm(dim=-1) / norm
        disagreement = (ran - sparse).norm(dim=-1).where(finite, torch.inf)
        scored["disagreement"] = disagreement / read.clamp_min(_TINY)
        return scored

    def _weights(
        self, rows: torch.Tensor, heads: torch.Tensor, end: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Exact weights [P, end] of the keys, and the sinks' [P]."""
        inputs = self.inputs
        query = inputs.q[self.b, heads, rows].float()
        logits = capped_logits(query, self.keys[:end], inputs.scale, inputs.softcap)
        key = torch.arange(end, device=rows.device)
        position = (rows + self.shift).unsqueeze(-1)
        hidden = (key > position) | (key < self.first_key)
        if self.window is not None:
            hidden |= key <= position - self.window
        logits.masked_fill_(hidden, -torch.inf)
        if inputs.sinks is None:
            return logits.softmax(-1), torch.zeros(len(rows), device=rows.device)
        sink = inputs.sinks[heads].float().unsqueeze(-1)
        weights = torch.cat([logits, sink], 1).softmax(-1)
        return weights[:, :end], weights[:, end]
