"""Which prompt a layer's call belongs to. The model does not say: it calls its layers one by one, with tensors only.

A call without cached keys begins a prompt. A chunk continues the prompt whose keys its cache begins with; they and the
first layer's values are compared by a sum of their bits (``_signature``). So a cache that was copied, or one of several
that take turns, leads to its own prompt, and one that was cropped inside a prompt, or edited, leads to none.
Assisted decoding hands its first guesses over with the prompt and crops those that were wrong: a few tokens behind a
prompt that lacks its last few are decoding, and belong to it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.device.names import device_name
from routesparse.engine.errors import PromptError
from routesparse.engine.record.passes import PromptTrace

if TYPE_CHECKING:
    from routesparse.engine.record.trace import Trace

KEPT_PROMPTS = 4  # of a session; older ones are dropped, so that a long-lived session stays small
_GUESSED_TOKENS = 32  # at once, at most, in assisted decoding
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, eq=False)
class _Prefilled:
    """A prompt as it was after one of its calls: what a later chunk may continue."""

    prompt: PromptTrace
    number: int
    routed_segments: dict[int, int]
    layer: int  # whose keys were signed: the first without a window
    tokens: int
    signature: torch.Tensor
    cropped: torch.Tensor  # the signature of all tokens but the last _GUESSED_TOKENS


class CurrentPrompt:
    """The prompt that is being prefilled, which later chunks may continue, and how many there were."""

    def __init__(self, trace: Trace) -> None:
        self.number = 0  # of the current prompt, from 1
        self.routed_segments: dict[int, int] = {}  # of the current prompt, by layer
        self._begun = 0
        self._trace = trace
        self._current: PromptTrace | None = None
        self._prefilled: deque[_Prefilled] = deque(maxlen=2 * KEPT_PROMPTS)
        self._thread = 0  # that prefills the current prompt
        self._in_forward = False

    def of_call(self, inputs: AttentionInputs, layer: int, windowed: bool = False) -> PromptTrace | None:
        """The prompt of this call: a new one where no earlier keys are cached and the layer comes again.

        windowed: the keys may lack the prompt's first ones. None where keys are cached that this session never saw,
        or saw in a prompt that failed. A chunk's first layer waits for the device.
        Errors: NumericsError of a prompt before that was not settled, when a new one begins; PromptError where a second
        thread prefills meanwhile.
        """
        n_q, n_k = inputs.q.shape[2], inputs.k.shape[2]
        prompts = self._trace.prompts
        if self._current is not None and not (prompts and prompts[-1] is self._current):
            self.forget()  # the trace gave it up, for NaN or Inf
        if n_q == n_k and (self._current is None or layer in self._current.layers):
            self._begin(inputs)
        elif 1 < n_q < n_k and not windowed and any(known.layer == layer for known in self._prefilled):
            self._continue(inputs, layer)
        current = self._current
        if current is None:
            return None
        if n_q > 1 and not windowed:
            self._check_thread()
            current.tokens = max(current.tokens, n_k)
            self._remember(inputs, layer)
        current.layers.add(layer)
        if n_q > 1:
            self._trace.unfinished = self._in_forward
        return current

    def join(self, layer: int) -> bool:
        """Count a layer to the current prompt; False where it is in it already, or there is none.

        Errors: PromptError where a second thread prefills meanwhile.
        """
        if self._current is None or layer in self._current.layers:
            return False
        self._check_thread()
        self._current.layers.add(layer)
        return True

    def forget(self) -> None:
        """A prompt that was not routed to its end must not look like one that was, nor take a later chunk."""
        self._drop(self._current)
        self._current, self._trace.unfinished = None, False

    def _drop(self, prompt: PromptTrace | None) -> None:
        """Neither in the trace any more, nor there for a later chunk."""
        self._trace.prompts[:] = [kept for kept in self._trace.prompts if kept is not prompt]
        for known in [known for known in self._prefilled if known.prompt is prompt]:
            self._prefilled.remove(known)

    def start_forward(self) -> None:
        """A prefill that ended in an error, wherever in the model, leaves no prompt behind."""
        if self._trace.unfinished:
            self.forget()
        self._in_forward = True

    def finish_forward(self) -> None:
        """The forward pass ended without an error; a GPU may still be at it."""
        self._in_forward = self._trace.unfinished = False
        if self._current is not None and self._current.launched:
            self._read_earlier()

    def _read_earlier(self) -> None:
        """Read what earlier passes left, while a GPU computes this one; a prompt that can't be read is dropped."""
        for prompt in list(self._trace.prompts):
            with self._dropped_at_errors(prompt):
                prompt.read_checked()

    @contextmanager
    def _dropped_at_errors(self, prompt: PromptTrace) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._drop(prompt)
            raise

    def _begin(self, inputs: AttentionInputs) -> None:
        batch, heads, n_q, head_dim = inputs.q.shape
        device, dtype = device_name(inputs.q.device), str(inputs.q.dtype).removeprefix("torch.")
        self._make_room(self._trace.prompts[-1:])
        self._begun += 1
        self.number, self.routed_segments, self._thread = self._begun, {}, threading.get_ident()
        self._append(PromptTrace(batch, n_q, heads, inputs.k.shape[1], head_dim, device, dtype))

    def _make_room(self, prompts: list[PromptTrace]) -> None:
        """Read what was left before its memory is used again, where nobody says when forward passes end.

        Where somebody does, ``finish_forward`` reads it, and it only has to be finite.
        """
        for prompt in prompts:
            with self._dropped_at_errors(prompt):
                if self._in_forward:
                    prompt.settle()
                else:
                    prompt.read()

    def _continue(self, inputs: AttentionInputs, layer: int) -> None:
        """Make the prompt current whose keys the cache begins with: the one with most of them."""
        cached = inputs.k.shape[2] - inputs.q.shape[2]

        def signature(tokens: int) -> torch.Tensor:
            return _signature(inputs.k[:, :, :tokens], inputs.v[:, :, :tokens])

        matching = [
            known
            for known in self._prefilled
            if known.layer == layer
            and known.tokens <= cached
            and (known.prompt.batch, known.prompt.kv_heads) == inputs.k.shape[:2]
            and torch.equal(known.signature, signature(known.tokens))
        ]
        if not matching:
            guesses = inputs.q.shape[2] <= _GUESSED_TOKENS and any(
                known.prompt is self._current
                and known.layer == layer
                and 0 < (kept := known.tokens - _GUESSED_TOKENS) <= cached < known.tokens
                and torch.equal(known.cropped, signature(kept))
                for known in self._prefilled
            )
            self._current = self._current if guesses else None
            return
        known = max(matching, key=lambda known: known.tokens)
        self._make_room([known.prompt])
        self.number, self.routed_segments = known.number, dict(known.routed_segments)
        self._thread = threading.get_ident()
        # A copy: another chunk may continue the same keys, as prompts with a common prefix do.
        grown = known.prompt.copied()
        prompts = self._trace.prompts
        prompts[:] = [prompt for prompt in prompts if prompt is not known.prompt]
        self._append(grown)

    def _append(self, prompt: PromptTrace) -> None:
        del self._trace.prompts[: -KEPT_PROMPTS + 1]
        self._trace.prompts.append(prompt)
        self._trace.continues_unknown = False
        self._current = prompt

    def _remember(self, inputs: AttentionInputs, layer: int) -> None:
        """What the cache holds after this call, once a call: in the first layer that sees all keys."""
        tokens, current = inputs.k.shape[2], self._current
        if current is None or any(k.prompt is current and k.tokens == tokens for k in self._prefilled):
            return
        places = _by_place(inputs.k, inputs.v)
        signed = places.sum(1), places[:, :-_GUESSED_TOKENS].sum(1)
        self._prefilled.append(_Prefilled(current, self.number, self.routed_segments, layer, tokens, *signed))

    def _check_thread(self) -> None:
        if self._thread != threading.get_ident():
            raise PromptError(
                "two threads prefill prompts with one model at once, so their layers can't be told apart; "
                "prefill one after the other, or give each thread a copy of the model"
            )


class NamedPrompt(CurrentPrompt):
    """The prompt of a session that serves one request of a server: that says itself whose keys it hands over, and reads
    only what it records.
    """

    def of_call(self, inputs: AttentionInputs, layer: int, windowed: bool = False) -> PromptTrace | None:
        """The request's prompt, begun by its first call; None once it was given up."""
        if not self.number:
            self._begin(inputs)
        current = self._current
        if current is not None:
            current.tokens = max(current.tokens, inputs.k.shape[2])
            current.layers.add(layer)
        return current

    def _read_earlier(self) -> None:
        """Nothing: see above."""


def _signature(*vectors: torch.Tensor) -> torch.Tensor:
    """int64 [B, numbers] of keys and values [B, Hkv, n, D]: a sum of their bits by place, in any order the same."""
    return _by_place(*vectors).sum(1)


def _by_place(*vectors: torch.Tensor) -> torch.Tensor:
    """int64 [B, n, numbers]: what each token adds to the signature; the heads' bits are summed."""
    whole = all(x.shape[-1] * x.element_size() % 8 == 0 for x in vectors)
    parts = [x.contiguous().view(_INTEGERS[8 if whole else x.element_size()]).sum(1) for x in vectors]
    # Multiples of a large odd number, all different modulo 2^64: tokens that change places change the sum.
    weights = torch.arange(1, parts[0].shape[1] + 1, device=parts[0].device) * 0x1E3779B97F4A7C15
    return torch.cat(parts, -1) * weights.view(-1, 1)
