"""What serves a model's attention layers: the base class of the routing session, the baselines and the references."""

from __future__ import annotations

import torch

from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import UnsupportedModelError


class AttentionRouter:
    """Serves every attention layer of one model while ``routed_by(model, router)`` lasts (runtime/transformers.py).

    A subclass writes ``attend``. The other methods do nothing unless it overrides them.
    """

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> torch.Tensor:
        """Causal attention of one layer, bottom-right aligned where n_q < n_k: [B, H, n_q, D].

        inputs: q may have any strides. window: each query reads its last ``window`` keys; None reads them all.
        """
        raise NotImplementedError(f"{type(self).__name__} has no attend method; write one")

    def __deepcopy__(self, memo: dict[int, object]) -> AttentionRouter:
        """A copied model would go on being served by the router of the one that it was copied from."""
        raise UnsupportedModelError(
            "a model can't be copied inside its route() block: copy it before, and route the copy by itself"
        )

    def untouched(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layer: int, scale: float | None
    ) -> torch.Tensor | None:
        """The short way for a layer without padding, window, soft cap or sinks, before its call is checked.

        None where the layer has to go the long way, through ``attend``. scale None: d^-1/2.
        """
        return None

    def serve(self, layers: int) -> None:
        """Told once, before the first forward pass: the model's number of attention layers."""

    def start(self) -> None:
        """Told before every forward pass of the model."""

    def finish(self) -> None:
        """Told after every forward pass that raised no error."""
