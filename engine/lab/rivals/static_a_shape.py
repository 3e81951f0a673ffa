"""A-shape and window (StreamingLLM, arXiv 2309.17453): the prompt's first keys and each row's last ones, nothing else.

    row r reads key k <= r  iff  k < sink_tokens  or  r - k < local_tokens

The same for every head, layer and prompt. Departure: what is read are the KV blocks that hold such a pair for one of a
query block's rows, so a row reads up to a block more on either side.

``Window`` is the negative control: the sink block and the last keys. It has to lose needles in the middle of a prompt;
serve it without the router's extras, whose dense last rows would read them (decoding is dense in any case).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.engine.lab.rivals.pieces import tiles_of_offsets
from routesparse.engine.lab.rivals.rule import Selection, View


@dataclass(frozen=True)
class StaticAShape:
    """See the module."""

    sink_tokens: int = 128
    local_tokens: int = 3_968

    def __call__(self, view: View) -> Selection:
        return Selection(a_shape(view, self.sink_tokens, self.local_tokens))


@dataclass(frozen=True)
class Window:
    """The sink block and the last ``tokens`` keys of each row."""

    tokens: int

    def __call__(self, view: View) -> Selection:
        return Selection(a_shape(view, view.block_k, self.tokens))


def a_shape(view: View, sink_tokens: int, local_tokens: int) -> torch.Tensor:
    """The KV blocks of the first and of the last keys: bool [1, 1, M, N]."""
    token = torch.arange(view.tokens, device=view.device)
    sink = torch.arange(0, view.tokens, view.block_k, device=view.device) < sink_tokens
    return tiles_of_offsets(view, (token < local_tokens).view(1, 1, -1)) | sink
