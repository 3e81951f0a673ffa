"""Block log-sum-exps by tensor operations, one chunk of keys of one KV head at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from routesparse.kernels.logits import Logits, capped_logits, key_chunks, row_queries

KEY_CHUNK = 1_024


def block_lse(
    logits: Logits,
    positions: torch.Tensor,
    first_keys: torch.Tensor | None,
    *,
    shift: int,
    keys: int,
    block_k: int,
) -> torch.Tensor:
    """Log-sum-exp of each (row, KV block) over the keys that the row sees: float32 [B, H, P, N], -inf where none.

    positions int64 [B, H, P]: key position of each row, whose query is q[position - shift]. first_keys int64 [B]: keys
    before it are hidden.
    """
    q, k = logits.q, logits.k
    batch, heads, count = positions.shape
    groups, key_blocks = logits.group, -(-keys // block_k)
    queries = row_queries(q, positions - shift)
    out = queries.new_full((batch, heads, count, key_blocks), -torch.inf, dtype=torch.float32)
    for b in range(batch):
        first_key = 0 if first_keys is None else int(first_keys[b])
        for kv_head in range(k.shape[1]):
            group = slice(kv_head * groups, (kv_head + 1) * groups)
            # In order of position the rows that see a chunk of keys are the last ones.
            position, order = positions[b, group].flatten().sort()
            query = queries[b, group].flatten(0, 1)[order]
            lse = out.new_full((len(order), key_blocks), -torch.inf)
            for start, end in key_chunks(keys, block_k, KEY_CHUNK):
                seeing = int(torch.searchsorted(position, start))
                chunk = capped_logits(query[seeing:], k[b, kv_head, start:end], logits.scale, logits.softcap)
                values = _of_chunk(chunk, position[seeing:].unsqueeze(-1), start, block_k, first_key)
                lse[seeing:, start // block_k :][:, : values.shape[1]] = values
            out[b, group] = torch.empty_like(lse).index_copy_(0, order, lse).view(-1, count, key_blocks)
    return out


def _of_chunk(
    logits: torch.Tensor, position: torch.Tensor, start: int, block: int, first_key: int
) -> torch.Tensor:
    """logits [P, K] of keys from ``start``, overwritten; position [P, 1] >= start -> [P, ceil(K / block)].

    Keys after the row's position and before first_key are left out. A row's shift is its largest visible logit in
    the chunk: a block 87 nats below it underflows to no mass, which is what it has.
    """
    end = start + logits.shape[1]
    key = torch.arange(start, end, device=logits.device)
    crossing = int(torch.searchsorted(position.squeeze(-1), end - 1))
    logits[:crossing].masked_fill_(key > position[:crossing], -torch.inf)
    if start < first_key:
        logits.masked_fill_(key < first_key, -torch.inf)
    if -logits.shape[1] % block:
        logits = F.pad(logits, (0, -logits.shape[1] % block), value=-torch.inf)
    shift = logits.amax(-1, keepdim=True)
    weights = logits.sub_(shift.nan_to_num(neginf=0.0)).exp_()
    return weights.view(len(logits), -1, block).sum(-1).log_().add_(shift)
