"""Hear every attention call of a transformers model, whatever function serves it: ``with watched(model, watcher):``.

For the length of each forward pass the model's own attention function (sdpa, eager, a kernel that somebody
registered, our own) is called through a shell, which hands the watcher what went in and what came out. Its mask
function stays as it is, and so does what other models call: the shell passes their calls on untouched.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import PromptError, UnsupportedModelError
from routesparse.engine.models.refusals import check_family
from routesparse.engine.runtime.transformers import (
    attention_modules,
    check_supported,
    forward_arguments,
    inputs_of,
    reaching,
)

_ATTRIBUTE = "_routesparse_watch"
_on_the_host = torch.compiler.disable(reason="rows are drawn on the host")
_lock = threading.RLock()


@dataclass(frozen=True)
class Call:
    """One layer's attention call: what it received and the output that it gave, [B, H, n_q, D]."""

    layer: int
    inputs: AttentionInputs
    window: int | None
    out: torch.Tensor


class Watcher(Protocol):
    """Told of forward passes and, inside, of attention calls; a pass that raised is not finished."""

    def start(self, name: str, prompt: torch.Tensor | None) -> bool:
        """A forward pass of the attention function ``name`` begins. False: leave it alone.

        prompt: token ids int [B, n], or embeddings [B, n, d].
        """

    def heard(self, call: Call) -> None:
        """One layer ran."""

    def finish(self) -> None:
        """The forward pass ended well."""


@contextmanager
def watched(model: PreTrainedModel, watcher: Watcher) -> Iterator[None]:
    """Tell the watcher of the model's forward passes inside the block. Errors: UnsupportedModelError.

    One block at a time on a model, and in it one thread at a time, else PromptError; route() blocks may be opened and
    left inside or around it.
    """
    check_supported(model)
    modules = attention_modules(model)
    listener = _Listener(model, modules, watcher)
    with _lock:
        if any(_ATTRIBUTE in module.__dict__ for module in modules):
            raise UnsupportedModelError("this model is being certified already; leave that block first")
        for module in modules:
            module.__dict__[_ATTRIBUTE] = listener
    hooks = [
        model.register_forward_pre_hook(listener.before, with_kwargs=True),
        model.register_forward_hook(listener.after),
        model.register_forward_hook(listener.always, always_call=True),
    ]
    try:
        yield
    finally:
        listener.end()
        for hook in hooks:
            hook.remove()
        for module in modules:
            module.__dict__.pop(_ATTRIBUTE, None)


class _Listener:
    """The hooks of one block."""

    def __init__(self, model: PreTrainedModel, modules: list[Any], watcher: Watcher) -> None:
        self.watcher, self._modules = watcher, modules
        self._key_start: tuple[torch.Tensor, int] | None = None
        self._shell: str | None = None
        self._thread: int | None = None  # the one whose forward pass runs
        self._listening = False

    @property
    def hears_this_call(self) -> bool:
        """Whether an attention call of this thread belongs to the pass that is watched."""
        return self._listening and self._thread == threading.get_ident()

    @_on_the_host
    def before(self, module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Open the shell around this pass's attention function. Errors: PromptError in a second thread."""
        me = threading.get_ident()
        with _lock:
            if self._thread not in (None, me):
                raise PromptError(
                    "another thread is inside this model's forward pass, and a report can't tell their prompts apart; "
                    "call the model in turn, or give each thread a copy of it"
                )
            # transformers' hooks are not told of a pass that KeyboardInterrupt ended.
            self.end()
            self._thread = me
        name = self._modules[0].config._attn_implementation or "eager"
        given = forward_arguments(arguments, named)
        prompt = next((t for n in ("input_ids", "inputs_embeds") if torch.is_tensor(t := given.get(n))), None)
        if not self.watcher.start(name, prompt):
            return
        _check_forward(given)
        self._key_start = _first_keys(given.get("attention_mask"))
        self._shell = _open_shell(name, self._modules[0])
        self._listening = True

    @_on_the_host
    def after(self, *_: Any) -> None:
        if self.hears_this_call:
            self.watcher.finish()

    @_on_the_host
    def always(self, *_: Any) -> None:
        """The pass ended; another thread's, which was refused, ends nothing."""
        if self._thread == threading.get_ident():
            self.end()

    def end(self) -> None:
        """Leave the function as it was; once is enough, more do no harm."""
        with _lock:
            shell, self._shell = self._shell, None
            self._listening, self._thread = False, None
            if shell is not None:
                _close_shell(shell)

    def hear(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        named: dict[str, Any],
    ) -> None:
        """Hand one layer's call to the watcher; out [B, n_q, H, D], as transformers has it."""
        check_family(module.config)
        if not getattr(module, "is_causal", True) or named.get("is_causal") is False or named.get("dropout"):
            raise UnsupportedModelError(
                "attention is certified if causal and without dropout; call model.eval()"
            )
        n_q, n_k, start = query.shape[2], key.shape[2], self._key_start
        if start is not None and start[1] != n_k:
            raise PromptError(
                f"a left-padded batch of {start[1]} tokens over {n_k} keys can't be certified; pass unpadded prompts"
            )
        if n_q > n_k:
            raise UnsupportedModelError(f"{n_q} queries over {n_k} keys are no causal attention")
        key_start = None if start is None else start[0].to(query.device)
        scaling, softcap, sinks = (named.get(name) for name in ("scaling", "softcap", "s_aux"))
        inputs = inputs_of(query, key, value, scaling, softcap, sinks, key_start)
        window = reaching(named.get("sliding_window"), key)
        self.watcher.heard(Call(module.layer_idx, inputs, window, out.transpose(1, 2)))


@dataclass
class _Shell:
    """A function of transformers' table that calls go through: what it stands for, and how many passes need it."""

    replaced: Any  # the table's local entry before; _NOTHING: there was none
    passes: int = 1


_NOTHING = object()
_shells: dict[str, _Shell] = {}


def _open_shell(name: str, module: Any) -> str:
    with _lock:
        if name in _shells:
            _shells[name].passes += 1
            return name
        replaced = ALL_ATTENTION_FUNCTIONS._local_mapping.get(name, _NOTHING)
        inner = ALL_ATTENTION_FUNCTIONS.get(name)
        if inner is None and _eager(module) is None:
            raise UnsupportedModelError(
                f"the attention function {name!r} of {type(module).__name__} is not known to transformers; register it"
            )
        _shells[name] = _Shell(replaced)
        ALL_ATTENTION_FUNCTIONS[name] = _through(inner)
        return name


def _close_shell(name: str) -> None:
    with _lock:
        shell = _shells[name]
        shell.passes -= 1
        if shell.passes:
            return
        del _shells[name]
        if shell.replaced is _NOTHING:
            del ALL_ATTENTION_FUNCTIONS[name]
        else:
            ALL_ATTENTION_FUNCTIONS[name] = shell.replaced


def _eager(module: Any) -> Callable[..., Any] | None:
    """A model's own eager attention: transformers' table has no entry for it, every model's file has its own."""
    return getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)


def _through(inner: Callable[..., Any] | None) -> Callable[..., Any]:
    @_on_the_host
    def attention(module: Any, *given: Any, **named: Any) -> Any:
        serve: Any = inner or _eager(module)
        result = serve(module, *given, **named)
        listener = module.__dict__.get(_ATTRIBUTE)
        if listener is not None and listener.hears_this_call:
            listener.hear(module, *given[:3], result[0], named)
        return result

    return attention


def _check_forward(given: dict[str, Any]) -> None:
    """Errors: UnsupportedModelError for a static cache, PromptError for packed sequences."""
    if getattr(given.get("past_key_values"), "is_compileable", False):
        raise UnsupportedModelError(
            "a StaticCache can't be certified: its keys outlast the prompt; use the default DynamicCache"
        )
    positions = given.get("position_ids")
    padded = _first_keys(given.get("attention_mask")) is not None
    if torch.is_tensor(positions) and not padded and bool((positions.diff(dim=-1) != 1).any()):
        raise PromptError("packed sequences can't be certified; pass one prompt per batch row")


def _first_keys(mask: Any) -> tuple[torch.Tensor, int] | None:
    """int32 [B], each prompt's first real key, and the mask's length; None without padding. Errors: PromptError."""
    if mask is None:
        return None
    if not torch.is_tensor(mask) or mask.dim() != 2:
        raise PromptError("only padding masks [batch, tokens] can be certified; pass no mask of your own")
    keys = mask.bool()
    if bool(keys.all()):
        return None
    if not bool((keys[:, 1:] >= keys[:, :-1]).all()):
        raise PromptError("padding right of or inside a prompt can't be certified; pad on the left")
    return (keys.shape[-1] - keys.sum(-1)).int(), keys.shape[-1]
