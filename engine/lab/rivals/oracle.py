"""Oracles: what the exact masses of KV blocks would choose. No rule knows them cheaply; they bound its gain.

The share of KV block j in row r is the sum of r's exact attention over j's keys. A query block's mean share and its
rows' largest share are computed in chunks from block log-sum-exps, so no [n, n] is ever held.

    OracleTopP     the fewest blocks that hold ``share`` of the query block's mass, forced ones first
    OracleFloor    every block whose mean share is at least theta (the optimum of total mass for an area)
    OracleLargest  every block that has at least theta in one of the rows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from routesparse.engine.lab.rivals.pieces import query_block_chunks
from routesparse.engine.lab.rivals.rule import Selection, View, block_sums, fewest_to_share
from routesparse.kernels.block_lse import block_lse


@dataclass(frozen=True)
class OracleTopP:
    """See the module."""

    share: float = 0.95

    def __call__(self, view: View) -> Selection:
        forced, causal = view.forced_and_causal
        return Selection(fewest_to_share(block_shares(view, "mean"), self.share, forced, causal))


@dataclass(frozen=True)
class OracleFloor:
    """See the module."""

    theta: float = 0.002

    def __call__(self, view: View) -> Selection:
        return Selection((block_shares(view, "mean") >= self.theta) & view.forced_and_causal[1])


@dataclass(frozen=True)
class OracleLargest:
    """See the module."""

    theta: float = 0.05

    def __call__(self, view: View) -> Selection:
        return Selection((block_shares(view, "largest") >= self.theta) & view.forced_and_causal[1])


def block_shares(view: View, over: Literal["mean", "largest"]) -> torch.Tensor:
    """Exact shares of KV blocks, the mean or the largest over each query block's rows: float32 [1, H, M, N]."""
    inputs, block, out = view.inputs, view.block_q, []
    for chunk in query_block_chunks(view, block * view.segment.key_blocks):
        rows = torch.arange(chunk.start * block, min(chunk.stop * block, view.tokens), device=view.device)
        lse = block_lse(
            inputs.logits,
            rows.expand(1, view.heads, -1),
            None,
            shift=0,
            keys=view.tokens,
            block_k=view.block_k,
        )
        shares = lse.sub_(lse.logsumexp(-1, keepdim=True)).exp_()
        if over == "largest":
            padded = F.pad(shares, (0, 0, 0, -len(rows) % block))
            out.append(padded.unflatten(2, (-1, block)).amax(3))
        else:
            sizes = block_sums(torch.ones(len(rows), device=view.device), block).view(-1, 1)
            out.append(block_sums(shares.transpose(-1, -2), block).transpose(-1, -2) / sizes)
    return torch.cat(out, 2)
