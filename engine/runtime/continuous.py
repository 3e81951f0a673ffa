"""Routed prefill under transformers' continuous batching: ``with route_requests(model):``.

A batch there is one row of tokens, requests side by side, over keys in pages that they share out. Each request has a
routing session and a trace of its own; a chunk of its prompt is what a chunk is under ``route``. Prompts below
break-even, decoding and sliding windows run dense, request by request on its own keys.

transformers accepts attention functions here only if they are called sdpa, or "flash" stands in their name; it then
builds no mask. Which request a stretch of tokens belongs to it doesn't say: the page that the stretch's first key is
written to belongs to one request.

Refused: shared prefixes (another request would read keys of a routed prefill, and its record would lack the prefix),
CUDA graphs (routing depends on values), calls that are no continuous batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from routesparse.engine.device.graphs import Graphs
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import UnsupportedModelError
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.refusals import check_call
from routesparse.engine.record.passes import RunInfo
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.engine.runtime.route import asked_config, fresh_salt, session_maker
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.tensor_parallel import ranks_of
from routesparse.engine.runtime.transformers import (
    ATTRIBUTE,
    check_supported,
    inputs_of,
    reaching,
    routed_by,
    tell_of_replaced,
)

if TYPE_CHECKING:
    from routesparse.engine.calibration.artifact import Calibration
    from routesparse.engine.calibration.tuned import TunedPrice
    from routesparse.engine.config import RouterConfig
    from routesparse.engine.record.trace import Trace

NAME = "routesparse_flash"
KEPT_REQUESTS = 256  # whose traces are kept; older ones go first, none while its request has pages
_FULL = "full_attention"


@contextmanager
def route_requests(
    model: PreTrainedModel,
    config: RouterConfig | None = None,
    *,
    calibration: Calibration | TunedPrice | str | None = None,
    profile: LatencyProfile | str = "auto",
    salt: str | None = None,
    **settings: Any,
) -> Iterator[Mapping[str, Trace]]:
    """Route the prefill of requests that the model serves by continuous batching inside the block.

    Pass ``ContinuousBatchingConfig(allow_block_sharing=False)``, and on a GPU ``use_cuda_graph=False``. The arguments
    are those of ``route``; each request's rows are drawn with the salt and its id. Yields the traces by request id; a
    later request of the same id takes an earlier one's place.
    Errors: as ``route``. generate_batch reports what goes wrong in its thread as each request's error; leaving the
    block raises it.
    """
    check_supported(model)
    tell_of_replaced(model)
    if ranks_of(model) is not None:
        raise UnsupportedModelError(
            "continuous batching over several processes is not supported; load the model without a tp_plan"
        )
    router = _RequestRouter(
        session_maker(model, asked_config(model, config, settings), calibration, profile),
        fresh_salt() if salt is None else salt,
    )
    with routed_by(model, router, NAME):
        yield router.traces
    if router.error is not None:
        raise router.error


@dataclass(frozen=True)
class _Batch:
    """What one forward pass holds: stretches of tokens, each of one request."""

    sessions: tuple[RoutingSession | None, ...]  # None: nothing of this stretch is routed
    queries: tuple[int, ...]  # where each stretch begins, and the end
    keys: dict[str, tuple[int, ...]]  # the same for its keys, by kind of layer


class _RequestRouter(AttentionRouter):
    """A routing session for each request."""

    def __init__(self, make: Callable[..., RoutingSession], salt: str) -> None:
        self.traces: dict[str, Trace] = {}
        self.error: BaseException | None = None
        self._make = make
        self._graphs: Graphs = Graphs()  # what one request captured, the next one replays
        self._salt = salt
        self._sessions: dict[str, RoutingSession] = {}
        self._profile: LatencyProfile | None = None  # measured once for all
        self._layers = 0
        self._batch: _Batch | None = None

    def serve(self, layers: int) -> None:
        self._layers = layers

    def start(self) -> None:
        self._batch = None

    def finish(self) -> None:
        """Errors: NumericsError, on a GPU."""
        batch, self._batch = self._batch, None
        with self.remembering_errors():
            for session in batch.sessions if batch else ():
                if session is not None:
                    session.finish()
                    for prompt in session.trace.prompts[-1:]:
                        prompt.read()  # this session begins no other prompt, which would read it

    def attend_batch(
        self,
        inputs: AttentionInputs,
        cache: PagedAttentionCache,
        placed: dict[str, Any],
        *,
        layer: int,
        window: int | None,
    ) -> Tensor:
        """One layer: inputs of the whole batch, [1, H, n, D] and [1, Hkv, n, D]; returns [1, n, H, D].

        cache: where the new keys go and the old ones are. placed: transformers' description of the batch.
        Errors: UnsupportedModelError, and as ``RoutingSession.attend``.
        """
        with self.remembering_errors():
            if self._batch is None:
                self._batch = self._read(cache, placed)
            batch = self._batch
            kind = cache.layer_to_allocator[layer].layer_type
            keys, values = cache.update(
                key_states=inputs.k, value_states=inputs.v, layer_idx=layer, kwargs=placed
            )
            _, heads, tokens, head_dim = inputs.q.shape
            # Rows behind the last request are padding.
            out = inputs.q.new_zeros(1, tokens, heads, head_dim)
            stretches = zip(batch.sessions, pairwise(batch.queries), pairwise(batch.keys[kind]), strict=True)
            for session, (first, end), (first_key, end_key) in stretches:
                k, v = (x[:, :, first_key:end_key] for x in (keys, values))
                own = replace(inputs, q=inputs.q[:, :, first:end], k=k, v=v)
                out[:, first:end] = self._attend_one(session, own, layer, window).transpose(1, 2)
            return out

    def _attend_one(
        self, session: RoutingSession | None, inputs: AttentionInputs, layer: int, window: int | None
    ) -> Tensor:
        window = reaching(window, inputs.k)
        if session is None:
            return dense_attention(inputs, window)
        out = session.attend(inputs, layer=layer, window=window)
        if self._profile is None and isinstance(session.trace.settings.profile, LatencyProfile):
            self._profile = session.trace.settings.profile
        return out

    def _read(self, cache: PagedAttentionCache, placed: dict[str, Any]) -> _Batch:
        """The batch that begins. On a GPU it waits once for where the requests' tokens are."""
        queries = tuple(placed["cu_seq_lens_q"].tolist())
        keys = {kind: tuple(bounds.tolist()) for kind, bounds in placed["cu_seq_lens_k"].items()}
        # A batch that was padded ends in requests without tokens.
        count = sum(end > first for first, end in pairwise(queries))
        queries, keys = queries[: count + 1], {kind: bounds[: count + 1] for kind, bounds in keys.items()}
        lengths = [
            (end - first, last - first_key)
            for (first, end), (first_key, last) in zip(pairwise(queries), pairwise(keys[_FULL]), strict=True)
        ]
        sessions: list[RoutingSession | None] = [None] * count
        prefilled = [i for i, (n_q, n_k) in enumerate(lengths) if n_q > 1 or n_k == 1]
        if prefilled:
            owners = _owners(cache)
            allocator = cache.cache_allocators[_FULL]
            written = placed["write_index"][allocator.index]
            places = written[torch.tensor([queries[i] for i in prefilled], device=written.device)].tolist()
            for i, place in zip(prefilled, places, strict=True):
                request = owners[place // allocator.block_physical_stride]
                sessions[i] = self._session_of(request, *lengths[i])
            self._forget_old(set(owners.values()))
        return _Batch(tuple(sessions), queries, keys)

    def _session_of(self, request: str, n_q: int, n_k: int) -> RoutingSession:
        """A new one where a prompt begins. Errors: UnsupportedModelError for a chunk of one that was never seen."""
        if n_q == n_k:
            changed = {} if self._profile is None else {"profile": self._profile}
            session = self._make(salt=f"{self._salt}/{request}", graphs=self._graphs, **changed)
            session.serve(self._layers)
            session.trace.info = RunInfo(prompt_name=request)
            self.traces.pop(request, None)
            self.traces[request], self._sessions[request] = session.trace, session
        elif request not in self._sessions:
            raise UnsupportedModelError(
                f"the first part of request {request!r} was prefilled outside this block; "
                "open route_requests() before the manager starts"
            )
        session = self._sessions[request]
        session.start()
        return session

    def _forget_old(self, alive: set[str]) -> None:
        gone = [request for request in self.traces if request not in alive]
        for request in gone[: max(0, len(self.traces) - KEPT_REQUESTS)]:
            del self.traces[request], self._sessions[request]

    @contextmanager
    def remembering_errors(self) -> Iterator[None]:
        """Errors end in transformers' own thread: leaving the block raises them."""
        try:
            yield
        except BaseException as error:
            self.error = error
            raise


def _owners(cache: PagedAttentionCache) -> dict[int, str]:
    """Whose each block of the cache is: without shared prefixes, one request's."""
    table: dict[str, list[int]] = cache.cache_allocators[_FULL].block_table
    return {block: request for request, blocks in table.items() for block in blocks}


@torch.compiler.disable(reason="routing depends on values")
def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cache: PagedAttentionCache | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls for every attention layer.

    query [1, H, n, D], key and value [1, Hkv, n, D], new tokens only. Returns [1, n, H, D] and None.
    """
    router = module.__dict__.get(ATTRIBUTE)
    if not isinstance(router, _RequestRouter):
        raise UnsupportedModelError(f"{NAME!r} serves models inside route_requests() alone; open that block")
    training = module.training and torch.is_grad_enabled()
    with router.remembering_errors():
        _check_batch(query, cache, kwargs)
        plain = {name: kwargs.get(name) for name in ("output_attentions", "position_bias", "is_causal")}
        check_call(module, query, key, None, dropout, plain, training=training)
    assert cache is not None
    inputs = inputs_of(query, key, value, scaling, softcap, s_aux)
    return router.attend_batch(inputs, cache, kwargs, layer=module.layer_idx, window=sliding_window), None


def _check_batch(query: Tensor, cache: PagedAttentionCache | None, placed: dict[str, Any]) -> None:
    """Errors: UnsupportedModelError where there is no continuous batch, or none whose requests stay apart."""
    if cache is None:
        raise UnsupportedModelError(
            "inside route_requests() a model serves generate_batch() and its manager; use route() for other calls"
        )
    if _FULL not in cache.cache_allocators:
        raise UnsupportedModelError(
            "every layer of this model has a sliding window, so nothing is routed; keep its own attention"
        )
    if cache.use_prefix_sharing:
        raise UnsupportedModelError(
            "requests that share a prefix would read keys of another's routed prefill; "
            "pass ContinuousBatchingConfig(allow_block_sharing=False)"
        )
    capturing = query.is_cuda and torch.cuda.is_current_stream_capturing()
    if capturing or placed.get("block_table") is not None:
        raise UnsupportedModelError(
            "a CUDA graph can't hold what routing decides; pass ContinuousBatchingConfig(use_cuda_graph=False, "
            "max_blocks_per_request=0)"
        )


def _no_mask(*_: Any, **__: Any) -> None:
    """Which keys a token may read follows from its request."""


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, _no_mask)
