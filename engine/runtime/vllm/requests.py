"""The requests that one vLLM engine is prefilling: a routing session each, and the record of one in so many.

A session lives from a request's first chunk to its last; a request that vLLM preempts begins again, one that it drops
is forgotten. Tokens whose keys came from vLLM's prefix cache are read, and nothing is decided of them. Whatever is
wrong with one request's input is logged, and that request served by dense attention: a server goes on. A defect of ours
is not caught.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from routesparse.engine.decide.ahead import blank_inputs, chunks_of_every_kind, cover
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import InputError, StoreError
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.profiles.measure import NamedProfile
from routesparse.engine.profiles.shape import AttentionShape
from routesparse.engine.prompts.text import clean_label
from routesparse.engine.record.passes import ProfileByName, RunInfo, Served
from routesparse.engine.runtime.current_prompt import NamedPrompt
from routesparse.engine.runtime.loss import Seen
from routesparse.engine.runtime.quality import Chosen
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.vllm import tracing
from routesparse.engine.runtime.vllm.asked import Asked
from routesparse.engine.runtime.vllm.batch import Row
from routesparse.engine.runtime.vllm.keeping import Keeping
from routesparse.engine.runtime.vllm.replay import KeptRows
from routesparse.engine.runtime.vllm.settings import ServingSettings
from routesparse.engine.store.bundle import write_bundle
from routesparse.kernels.compile_ahead import compiler_of

# Below vLLM's own logger, so that its level and format apply.
log = logging.getLogger("vllm.routesparse")
# A request's token ids and its extra_args.
PromptOf = Callable[[str], tuple[Sequence[int], Mapping[str, Any] | None]]
FIRST = 100  # prompts, after which it is said that all were too short


@dataclass(frozen=True)
class ServedModel:
    """The model as one engine has it."""

    name: str
    revision: str  # "" where its files are not known
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape(self.device, self.dtype, self.head_dim, self.heads, self.kv_heads)

    def blank(self, tokens: int, keys: int) -> AttentionInputs:
        """A chunk's shapes, on its device, without its memory."""

        def empty(heads: int, count: int) -> torch.Tensor:
            one = torch.empty(1, 1, 1, self.head_dim, dtype=self.dtype, device=self.device)
            return one.expand(1, heads, count, self.head_dim)

        k = empty(self.kv_heads, keys)
        return AttentionInputs(empty(self.heads, tokens), k, k, self.head_dim**-0.5)


@dataclass
class _Open:
    """A request whose prompt is being prefilled."""

    session: RoutingSession
    record: bool  # was asked for
    chosen: Chosen
    target: float | None  # nats a token of its own
    replayed: KeptRows | None  # None: its loss is not predicted
    cached: int  # tokens before its first chunk, of which vLLM had the keys
    began_ns: int = field(default_factory=time.time_ns)
    failed: bool = False


@dataclass
class _Ended:
    """A routed prompt whose loss is predicted as soon as its first token is out."""

    request: str
    known: _Open
    replayed: KeptRows
    table: torch.Tensor  # its page numbers
    batches: int = 0  # begun since


@dataclass
class Requests:
    """Sessions of the prompts that are being prefilled; one engine, one thread."""

    settings: ServingSettings
    chosen: Chosen
    by_loss: Callable[[float], Chosen]  # of a request with a target of its own
    model: ServedModel
    profile: LatencyProfile | ProfileByName | None = None  # None: settings.profile, until a request asked
    keeping: Keeping | None = None  # None: the price stays
    batch_tokens: int = sys.maxsize  # of one batch, at most
    known: dict[str, Any] = field(default_factory=dict)  # vLLM's NewRequestData of those that did not end
    _reached: dict[str, int] = field(default_factory=dict)  # tokens of which keys were computed, or found
    _open: dict[str, _Open] = field(default_factory=dict)
    _running: dict[str, _Open] = field(default_factory=dict)  # with layers that a GPU may still be at
    _ended: list[_Ended] = field(default_factory=list)
    _recorded: set[str] = field(default_factory=set)  # of those that may come again, after a preemption
    _routed: int = 0
    _any_routed: bool = False  # or a chunk of one
    _short: int = 0  # prompts of which nothing was long enough
    _longest: int = 0  # of those, tokens
    _graphs: Graphs = field(default_factory=Graphs)
    _asked: RoutingSession | None = None  # of no request: what a chunk's shape pays
    _break_even: tuple[LatencyProfile, int] | None = None  # by that profile

    def break_even(self) -> int | None:
        """Tokens from which on a prompt that comes in one batch is routed; None until a latency profile is known."""
        found, profile = self.chosen.config.break_even_tokens, self.profile
        if found is None and isinstance(profile, LatencyProfile):
            if self._break_even is None or self._break_even[0] is not profile:
                self._break_even = profile, profile.break_even_tokens(self.model.heads, self.model.layers)
            found = self._break_even[1]
        return None if found is None else max(found, self._least)

    def warm_up(self, longest: int) -> None:
        """Compile ahead what prompts of up to so many tokens launch on a GPU, if a latency profile is known by now."""
        model, most = self.model, self.batch_tokens
        if model.device.type != "cuda" or not isinstance(self.profile, LatencyProfile):
            return
        like: dict[str, Any] = {"heads": model.heads, "kv_heads": model.kv_heads, "head_dim": model.head_dim}
        like["dtype"] = model.dtype
        session = self._asked = self._asked or self._session("", self.chosen)

        def blank(keys: int, rows: int = most) -> AttentionInputs:
            return blank_inputs(keys, rows=min(keys, rows), **like)

        if session.routes(blank(longest)):
            log.info("RouteSparse compiles its kernels, unless they lie in Triton's cache")
            chunks = chunks_of_every_kind(longest, most)
            # Each stands for prompts that are longer, too: break-even may lie between.
            blanks = (blank(*chunk) for chunk in chunks if session.routes(blank(min(2 * chunk[0], longest))))
            cover(compiler_of(model.device), map(session.layer_of, blanks), longest)

    def forget(self, requests: Iterable[str]) -> None:
        """These ended, or were dropped by whoever sent them."""
        for request in requests:
            for held in (self.known, self._reached, self._open):
                held.pop(request, None)
            self._recorded.discard(request)

    def catch_up(self, scheduled: Mapping[str, int]) -> None:
        """A batch of these requests is about to be launched, which may write to pages of others: predict what is due.

        vLLM hands a batch's first tokens out behind the launch of the next one. scheduled: tokens of each; one that
        has more than one came again, in other pages, in the step that took its own (a reset of the prefix cache).
        """
        for one in [*self._ended]:
            one.batches += 1
            if one.batches > 1 or scheduled.get(one.request) != 1:
                self._ended.remove(one)
                self._predict(one)

    def choose(self, rows: Sequence[Row], prompt_of: PromptOf) -> tuple[Row, ...]:
        """The rows of this batch that are routed: chunks of prompts that are long enough.

        Opens a session for each prompt that begins.
        """
        least, routed = self._least, []
        shortest = self.break_even() or least
        for row in rows:
            begins = row.context < row.prompt_tokens and row.context != self._reached.get(row.request)
            self._reached[row.request] = row.keys
            if begins:
                self._open.pop(row.request, None)
                # Of others not even the session is made: it would take a millisecond of the host's time.
                if row.prompt_tokens >= shortest and self._may_pay(row):
                    self._begin(row, *prompt_of(row.request))
                else:
                    self._count_short(row)
            known = self._open.get(row.request)
            # Behind the prompt comes decoding, several tokens at a time where they are speculated.
            if known is None or known.failed or row.tokens < least:
                continue
            if self._is_worth(known, row):
                known.session.start()
                routed.append(row)
        self._any_routed = self._any_routed or bool(routed)
        return tuple(routed)

    def attend(self, row: Row, inputs: AttentionInputs, layer: int) -> torch.Tensor:
        """One layer's attention of a row that ``choose`` returned: [1, H, tokens, d]."""
        known = self._open[row.request]
        if not known.failed:
            try:
                return known.session.attend(inputs, layer=layer)
            except InputError as error:
                self._fail(row.request, known, error)
        return dense_attention(inputs, None)

    def ran(self, rows: Sequence[Row], hidden: torch.Tensor) -> None:
        """The model's forward pass of the batch ended with hidden states [tokens, width]."""
        for row in rows:
            known = self._open.get(row.request)
            if known is not None and known.replayed is not None:
                known.replayed.keep(row, hidden)

    def finish(self, rows: Sequence[Row], table: torch.Tensor | None = None) -> None:
        """The batch was launched: record the sampled ones of the prompts that end in it.

        Those are waited for. Of others NaN is looked for behind later batches, in what a GPU is done with by then:
        vLLM hands a batch's first tokens out behind the launch of the next one. table: vLLM's block table of the rows.
        """
        for row in rows:
            known = self._open.get(row.request)
            if known is None:
                continue
            known.session.end_forward()
            self._running[row.request] = known
            if row.ends_prompt:
                del self._open[row.request]
                self._count(row, known, table)
        for request, known in [*self._running.items()]:
            self._settle(request, known, wait=False)

    @property
    def _least(self) -> int:
        return self.chosen.config.least_body_rows + self.chosen.config.tail_tokens

    def _begin(self, row: Row, prompt: Sequence[int], extra: Mapping[str, Any] | None) -> None:
        try:
            asked = Asked.of(extra)
            chosen = self.chosen if asked.loss is None else self.by_loss(asked.loss)
            if self.keeping is not None and asked.loss is None:
                chosen = self.keeping.applied(chosen)
        except InputError as error:
            log.warning("RouteSparse leaves request %s to vLLM: %s", row.request, error)
            return
        if asked.route:
            salt = prompt_digest(prompt)
            replayed = self.keeping.begun(prompt, salt, asked.loss is None) if self.keeping else None
            session = self._session(salt, chosen)
            self._open[row.request] = _Open(session, asked.record, chosen, asked.loss, replayed, row.context)

    def _session(self, salt: str, chosen: Chosen) -> RoutingSession:
        session = RoutingSession(
            chosen.config,
            chosen.calibration,
            profile=self.profile or NamedProfile(self.settings.profile),
            salt=salt,
            graphs=self._graphs,
            tuned_price=chosen.tuned_price,
            prompts=NamedPrompt,
        )
        session.serve(self.model.layers)
        return session

    def _may_pay(self, row: Row) -> bool:
        """Whether the longest chunk of a prompt that begins with this row would pay; True while no profile is known."""
        if self.break_even() is None:
            return True
        self._asked = self._asked or self._session("", self.chosen)
        # What a preempted request had answered is prefilled with its prompt.
        end = max(row.prompt_tokens, row.keys)
        return self._asked.routes(self.model.blank(min(self.batch_tokens, end - row.context), end))

    def _is_worth(self, known: _Open, row: Row) -> bool:
        try:
            worth = known.session.routes(self.model.blank(row.tokens, row.keys))
        except InputError as error:
            self._fail(row.request, known, error)
            return False
        # Looked for, or measured, by the first request that asked.
        self.profile = known.session.trace.settings.profile
        return worth

    def _settle(self, request: str, known: _Open, wait: bool) -> None:
        try:
            is_done = known.session.settle(wait)
        except InputError as error:
            known.failed = is_done = True
            told = "RouteSparse answered request %s as routed, and serves what follows of it by dense attention: %s"
            log.error(told, request, error)
        if is_done:
            self._running.pop(request, None)

    def _fail(self, request: str, known: _Open, error: InputError) -> None:
        known.failed = True
        log.error("RouteSparse serves request %s by dense attention: %s", request, error)

    def _count(self, row: Row, known: _Open, table: torch.Tensor | None) -> None:
        request, trace, every = row.request, known.session.trace, self.settings.record_every
        if known.failed or request in self._recorded:
            return
        # Reading the passes takes tens of ms, in which the first token waits: only records and tracers need them.
        if not trace.prompts or trace.prompts[-1].is_empty:
            self._count_short(row)
            return
        due = every > 0 and self._routed % every == 0
        is_told = due or known.record or tracing.is_heard()
        if is_told:
            self._settle(request, known, wait=True)
            if known.failed:
                return
        self._routed += 1
        self._recorded.add(request)
        seen, price = None, known.chosen.config.price
        if known.replayed and table is not None:
            ended = _Ended(request, known, known.replayed, table[row.index].clone())
            if not is_told and self._goes_on(request):
                self._ended.append(ended)
            else:
                seen = self._predict(ended)
        trace.prompts[-1].tokens = row.keys  # its last chunk may have been left to the stock kernel
        is_recorded = (due or known.record) and self._record(request, known, seen, due)
        if tracing.is_heard():
            sent = self.known.get(request)
            about: tracing.Figures = {
                # As vLLM's own span has it; records have vLLM's id, with a random suffix.
                "gen_ai.request.id": getattr(sent, "external_req_id", None) or request,
                "routesparse.request_id": request,
                "gen_ai.usage.prompt_tokens": row.keys,
                "routesparse.cached_tokens": known.cached,
                "routesparse.price": price if known.chosen.config.policy == "priced" else None,
                "routesparse.loss_target": known.target or self.settings.loss,
                "routesparse.loss": known.replayed.predicted if known.replayed else None,
                "routesparse.recorded": is_recorded,
            }
            headers = getattr(sent, "trace_headers", None)
            try:
                tracing.tell(about, trace.prompts[-1].passes, known.began_ns, headers)
            except (OSError, ValueError) as error:  # the server goes on without a disk for its metrics
                log.error("RouteSparse could not tell of request %s: %s", request, error)

    def _goes_on(self, request: str) -> bool:
        """Whether batches will follow in any case before vLLM is idle, which asks for none."""
        most = getattr(getattr(self.known.get(request), "sampling_params", None), "max_tokens", None)
        return most is None or most > 2

    def _predict(self, ended: _Ended) -> Seen | None:
        known = ended.known
        self._settle(ended.request, known, wait=True)
        if known.failed or self.keeping is None:
            return None
        price = known.chosen.config.price
        return self.keeping.ended(ended.request, ended.replayed, ended.table, price, known.target)

    def _record(self, request: str, known: _Open, seen: Seen | None, due: bool) -> bool:
        """Whether it could be written. due: it was its turn."""
        trace = known.session.trace
        trace.info = RunInfo(
            model=self.model.name,
            model_revision=self.model.revision,
            prompt_name=clean_label(request),
            prompt_sha256=trace.salt,
            # One that was asked for stands for no others.
            served=Served("vllm", self.settings.record_every) if due else None,
            cached_tokens=known.cached,
        )
        try:
            record = trace.record()
            if self.keeping is not None:
                record = self.keeping.recorded(record, seen, known.chosen, known.target)
            path = write_bundle(record, self.settings.spool)
        except (InputError, StoreError, OSError) as error:
            log.error("RouteSparse could not record request %s: %s", request, error)
            return False
        log.info("RouteSparse recorded request %s as %s", request, path.name)
        return True

    def _count_short(self, row: Row) -> None:
        self._short, self._longest = self._short + 1, max(self._longest, row.prompt_tokens)
        if self._short == FIRST and not self._any_routed:
            log.info(
                "RouteSparse routed none of the first %d prompts: the longest has %s tokens, and a prompt, or the "
                "chunk of it that comes in one batch, is routed from %s tokens on",
                *(FIRST, f"{self._longest:,}", f"{self.break_even() or self._least:,}"),
            )


def prompt_digest(tokens: Sequence[int]) -> str:
    """Of a request's token ids, as int64: places its random rows, and stands for its text in the record."""
    return hashlib.sha256(np.asarray(tokens, dtype="<i8").tobytes()).hexdigest()
