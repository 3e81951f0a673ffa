"""Muon with batched matrices, beside AdamW for embeddings and norms.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon): the momentum of a matrix is replaced by its
nearest semi-orthogonal matrix, found by five Newton-Schulz steps in bf16; scaled by 0.2 sqrt(max(rows, columns)) so
that its root mean square is that of AdamW (Moonlight, arXiv:2502.16982). The same arithmetic as torch.optim.Muon;
matrices of one shape are stacked, because a small model would spend its time launching kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Approximate U V^T of every matrix of g [N, rows, columns], in bf16 on a GPU."""
    x = g.to(torch.bfloat16) if g.is_cuda else g.clone()
    tall = g.shape[-2] > g.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = _A * x + (_B * a + _C * (a @ a)) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon over matrices; parameters of one shape are updated together."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every matrix that has a gradient; ``closure`` is not called."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                self._update(parameters, shape, group)

    def _update(self, parameters: list[Tensor], shape: torch.Size, group: dict) -> None:
        grads = torch.stack([p.grad for p in parameters if p.grad is not None])
        state = self.state[parameters[0]]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(grads)
        state["momentum"].lerp_(grads, 1 - group["momentum"])
        update = orthogonalise(grads.lerp(state["momentum"], group["momentum"]))
        scale = 0.2 * max(shape) ** 0.5 * group["lr"]
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, list(update.to(grads.dtype).unbind()), alpha=-scale)
