"""What an attention function's output lost, from random query rows: d = what ran less exact attention, by head.

Nothing is asked of how the output came about, so it is the same for our plans and for anybody's. Rows are independent
of those that chose a plan, else d would be measured where the plan was made to be right.
"""

from __future__ import annotations

import torch

from routesparse.engine.device.inputs import AttentionInputs
from routesparse.kernels.logits import capped_logits

MOST_LOGITS = 1 << 27  # that exist at a time


def output_errors(
    inputs: AttentionInputs, out: torch.Tensor, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """d and the exact output of query rows int64 [C] of a prompt without padding: both float32 [H, C, D].

    out [1, H, n_q, D]: what ran. Rows count within the call; keys before it (n_k > n_q) are seen by all. Batch 1.
    """
    heads, keys = inputs.q.shape[1], inputs.k.shape[2]
    position = rows + keys - inputs.q.shape[2]
    future = torch.arange(keys, device=rows.device) > position.view(-1, 1)
    exact = []
    for head in range(heads):
        k, v = (x[0, head // inputs.groups].float() for x in (inputs.k, inputs.v))
        parts = []
        for part in torch.arange(len(rows), device=rows.device).split(max(1, MOST_LOGITS // keys)):
            query = inputs.q[0, head].index_select(0, rows[part]).float()
            logits = capped_logits(query, k, inputs.scale, inputs.softcap).masked_fill(
                future[part], -torch.inf
            )
            if inputs.sinks is not None:
                sink = inputs.sinks[head].float().expand(len(part), 1)
                logits = torch.cat([logits, sink], 1)
            parts.append(logits.softmax(-1)[:, :keys] @ v)
        exact.append(torch.cat(parts))
    found = torch.stack(exact)
    return out[0].index_select(1, rows).float() - found, found
