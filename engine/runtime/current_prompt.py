"""Which prompt a layer's call belongs to. The model does not say: it calls its layers one by one, with tensors only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from routesparse.engine.device.names import device_name
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.engine.record.passes import PromptTrace

if TYPE_CHECKING:
    from routesparse.engine.record.trace import Trace

KEPT_PROMPTS = 4  # of a session; older ones are dropped, so that a long-lived session stays small


class CurrentPrompt:
    """The last prompt of a trace, which later chunks may join, and how many there were."""

    def __init__(self, trace: Trace) -> None:
        self.number = 0  # prompts begun so far
        self.routed_segments: dict[int, int] = {}  # of the current prompt, by layer
        self._trace = trace
        self._current: PromptTrace | None = None
        self._in_forward = self._prefilling = False

    def of_call(self, inputs: AttentionInputs, layer: int) -> PromptTrace | None:
        """The prompt of this call: a new one where no earlier keys are cached and the layer comes again.

        None where keys are cached that this session never saw, or saw in a prompt that failed.
        Errors: NumericsError of the prompt before, when a new one begins.
        """
        batch, heads, n_q, head_dim = inputs.q.shape
        kv_heads, n_k = inputs.k.shape[1:3]
        prompts = self._trace.prompts
        current = self._current if prompts and prompts[-1] is self._current else None
        if n_q == n_k and (current is None or layer in current.layers):
            device, dtype = device_name(inputs.q.device), str(inputs.q.dtype).removeprefix("torch.")
            self._trace.settle()
            del prompts[: -KEPT_PROMPTS + 1]
            current = self._current = PromptTrace(batch, n_k, heads, kv_heads, head_dim, device, dtype)
            prompts.append(current)
            self.routed_segments = {}
            self.number += 1
        if current is None:
            return None
        current.layers.add(layer)
        if n_q > 1:
            current.tokens = max(current.tokens, n_k)
            self._prefilling = self._in_forward
        return current

    def join(self, layer: int) -> bool:
        """Count a layer to the current prompt; False where it is in it already, or there is none."""
        if self._current is None or layer in self._current.layers:
            return False
        self._current.layers.add(layer)
        return True

    def forget(self) -> None:
        """A prompt that was not routed to its end must not look like one that was, nor take a later chunk."""
        if self._trace.prompts and self._trace.prompts[-1] is self._current:
            self._trace.prompts.pop()
        self._current = None

    def start_forward(self) -> None:
        """A prefill that ended in an error, wherever in the model, leaves no prompt behind."""
        if self._prefilling:
            self.forget()
        self._in_forward, self._prefilling = True, False

    def finish_forward(self) -> None:
        """The forward pass ended without an error."""
        self._in_forward = self._prefilling = False
