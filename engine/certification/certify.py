"""``with certify(model) as report: model(ids)``: what the model's attention does to this prompt, whoever wrote it.

    with certify(model) as report:                     # a transformers model with sdpa, a foreign kernel, route(), ...
        model(ids)
    with certify(attention) as report:                 # a function (q, k, v) -> out
        report.attention(q, k, v)
    certify_attention(q, k, v, out)                    # nothing to wrap: the inputs and the output

In random rows of every layer and head the output is compared with exact attention of the same Q, K and V, so kernel and
number format are covered, and with a plan, where one is given, what that keeps (``rows.py``, ``bounds.py``). The rows
are placed by the seed and a hash of the prompt (of a function: of its keys), after which they decide nothing: no error
is split. Rows that the caller names are scored beside them and enter no claim (``named_rows.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import torch

from routesparse.engine.certificate_rows import CertificateRecord
from routesparse.engine.certification.named_rows import NamedRows, read_names
from routesparse.engine.certification.reads import BLOCK, Plan, PlanReads, check_layers, reads_of
from routesparse.engine.certification.record import About, record_of
from routesparse.engine.certification.report import Certified, Settings
from routesparse.engine.certification.rows import ROWS, RowScores, draw_rows, score_rows
from routesparse.engine.config import Seed, argument
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.device.names import device_name
from routesparse.engine.errors import ConfigError, PromptError, UnsupportedModelError
from routesparse.engine.export.notebook import Shown
from routesparse.engine.models.load import model_name
from routesparse.engine.rows import EXECUTED_TOLERANCE
from routesparse.engine.runtime.replay import LayerKeys
from routesparse.engine.runtime.transformers import attention_modules, check_supported
from routesparse.engine.runtime.watching import Call, watched
from routesparse.engine.schema import Count, Positive, Real, Whole
from routesparse.engine.store.bundle import write_bundle

FEWEST_ROWS = 2
KEEP = 100  # passes that a report keeps
_KINDS = {
    "rows": Annotated[int, Whole(FEWEST_ROWS, 1 << 20)],
    "seed": Seed,
    "block": tuple[Positive, Positive],
    "every": Positive,
}


@dataclass(frozen=True)
class Request:
    """What to certify, and how."""

    settings: Settings = field(default_factory=Settings)
    rows: int = ROWS  # of each head
    seed: int = 0
    plan: Plan = None  # see ``reads.py``
    plan_name: str | None = None
    block: tuple[int, int] = BLOCK  # of a bare block mask
    every: int = 1  # one forward pass in so many is certified
    rows_at: tuple[NamedRows, ...] = ()
    plan_note: str | None = None  # stands beside what the report says of the plan

    def __post_init__(self) -> None:
        """Errors: ConfigError."""
        for name, kind in _KINDS.items():
            argument(kind, getattr(self, name), name)

    @property
    def named(self) -> str | None:
        """What the plan is called; None without one."""
        return None if self.plan is None else self.plan_name or type(self.plan).__name__

    def places(self, inputs: AttentionInputs) -> tuple[tuple[str, range], ...]:
        """The named tokens that this pass has queries of, by label. Errors: ConfigError with left padding."""
        if self.rows_at and inputs.key_start is not None:
            raise ConfigError("rows can't be named in a padded batch; pass one prompt at a time")
        n_q, n_k = inputs.q.shape[2], inputs.k.shape[2]
        found = ((one.label, one.within(n_k - n_q, n_k)) for one in self.rows_at)
        return tuple((label, tokens) for label, tokens in found if tokens)

    def scored(
        self, inputs: AttentionInputs, out: torch.Tensor, salt: str, layer: int, window: int | None
    ) -> tuple[RowScores, RowScores | None]:
        """One layer's random rows, and its named ones where there are any.

        Errors: ConfigError where tensors, or plan and layer, do not fit; PromptError.
        """
        _check_shapes(inputs, out)
        rows = draw_rows(inputs, self.rows, salt, self.seed, layer)
        shape = (*inputs.q.shape[:3], inputs.k.shape[2])
        reads = None
        if self.plan is not None:
            reads = reads_of(self.plan, layer, shape, self.block, inputs.q.device)
            if isinstance(reads, PlanReads):
                reads.check_attention(inputs, window)
        planned = self.plan is not None
        drawn = score_rows(inputs, out, rows, window, reads, planned, shaped=True)
        cached = shape[3] - shape[2]
        if self.rows_at and window is not None and cached == window - 1:
            raise ConfigError(
                "rows can't be named in the chunks of a model with a sliding window, whose cache forgets where a chunk "
                "begins; run the prompt in one pass"
            )
        places = self.places(inputs)
        if not places:
            return drawn, None
        named = torch.tensor([token - cached for _, found in places for token in found], dtype=torch.int64)
        return drawn, score_rows(inputs, out, named.expand(*shape[:2], -1), window, reads, planned)


@dataclass(repr=False)
class Report(Shown):
    """What ``certify`` found: one ``Certified`` a pass, the last ``keep``. The other names speak of the last one.

    Errors: ConfigError.
    """

    passes: list[Certified] = field(default_factory=list)
    keep: int = KEEP
    skipped: int = 0  # forward passes left alone by ``every``
    attention: Callable[..., Any] | None = None  # the wrapped function, where a function was given
    named: set[str] = field(default_factory=set)  # labels of named rows that some pass had
    about: About = field(default_factory=About)  # what ``to_bundle`` says of model and prompt
    # Keys and values of every layer of the last pass of a model, for a replay (runtime/replay.py); None: not held.
    kept: dict[int, LayerKeys] | None = None

    def __post_init__(self) -> None:
        argument(Positive, self.keep, "keep")

    def add(self, found: Certified) -> None:
        """One more pass; a server's report must not grow for as long as it runs."""
        self.passes.append(found)
        self.named.update(label for label, _ in found.places)
        del self.passes[: -self.keep]

    @property
    def last(self) -> Certified:
        """Errors: PromptError before any pass was certified."""
        if not self.passes:
            raise PromptError(
                "nothing was certified yet; run a prompt of two or more tokens inside the block"
            )
        return self.passes[-1]

    def to_bundle(self, path: str | Path) -> Path:
        """Write the last pass's bundle into the folder ``path``, such as the dashboard's spool; returns its own folder.

        Errors: PromptError before any pass was certified; BundleError.
        """
        return write_bundle(self.record(), Path(path))

    def record(self) -> CertificateRecord:
        """The last pass as the records of a bundle. Errors: PromptError before any pass was certified."""
        return record_of(self.last, self.about)

    def __repr__(self) -> str:
        """One line."""
        if not self.passes:
            return "Report: nothing was certified yet"
        return f"Report of {self.last.plan or self.last.name}, {self.last.keys:,} tokens: {self.last.verdict.sentence}"

    def __getattr__(self, name: str) -> Any:
        if name in ("run", "by_layer", "by_head", "worst_heads", "verdict", "as_dict"):
            return getattr(self.last, name)
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __str__(self) -> str:
        """The last pass in a few lines."""
        verdict = self.last.verdict
        return "\n".join([f"{self.last.name}: {verdict.level}: {verdict.sentence}", *verdict.findings])


@contextmanager
def certify(
    what: Any,
    *,
    plan: Plan = None,
    plan_name: str | None = None,
    plan_note: str | None = None,
    block: tuple[int, int] = BLOCK,
    rows: int = ROWS,
    rows_at: Sequence[str] = (),
    confidence: float = Settings.confidence,
    mass_level: float = Settings.mass_level,
    tolerance: float | None = None,
    most_beyond: float = Settings.most_beyond,
    seed: int = 0,
    every: int = 1,
    keep: int = KEEP,
    hold: bool = False,
    name: str = About.prompt_name,
) -> Iterator[Report]:
    """Certify every prefill that a model runs, or every call of a function, inside the block.

    what: a transformers model, or attention(q [B, H, n_q, D], k [B, Hkv, n_k, D], v, ...) -> out [B, H, n_q, D] (or a
    tuple that begins with it), causal and bottom-right aligned; inside the block call ``report.attention``.
    plan: what is said to be read (``reads.py``); it is judged, not executed. plan_note: what the report says beside it,
    such as how much of it was filled in by default. tolerance, most_beyond: relative output error that a row may have,
    and the share of rows that may have more; None: the verdict asks for rounding only.
    rows_at: rows to be scored beside the ``rows`` random ones of each head: "16000:16384" in tokens, or "last:64";
    those that a pass has no queries of are left out of it.
    every: 1 forward pass in so many, for servers. keep: the report holds so many passes, the last ones. hold: of a
    model the last pass's keys and values, too, in ``report.kept``. name: what records call the prompt.
    Errors: ConfigError, PromptError, UnsupportedModelError; PromptError where nothing ran that could be certified, or
    named rows were in no pass.
    """
    settings = Settings(confidence, mass_level, tolerance, most_beyond)
    request = Request(settings, rows, seed, plan, plan_name, block, every, read_names(rows_at), plan_note)
    report = Report(keep=keep, kept={} if hold else None, about=About(prompt_name=name))
    if isinstance(what, torch.nn.Module) and hasattr(what, "config"):
        model: Any = what
        check_supported(model)
        layers = len(attention_modules(model))
        check_layers(plan, layers)
        report.about = replace(report.about, model=model_name(model))
        with watched(model, _Listener(request, report, layers)):
            yield report
    elif callable(what):
        report.attention = _wrapped(what, request, report)
        yield report
    else:
        raise UnsupportedModelError(f"{type(what).__name__} is neither a model nor an attention function")
    if not report.passes and not report.skipped:
        raise PromptError("nothing was certified: no prefill of two or more tokens ran inside the block")
    missed = [one.label for one in request.rows_at if one.label not in report.named]
    if missed and report.passes:
        raise PromptError(
            f"rows {', '.join(missed)} were in no certified prefill; the last had tokens {report.last.tokens}; name "
            "rows of the prompt, or last:64"
        )


def certify_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    key_start: torch.Tensor | None = None,
    salt: str | None = None,
    layer: int = 0,
    name: str = "attention",
    request: Request | None = None,
) -> Certified:
    """Certify one causal attention call from its inputs and its output.

    q, out [B, H, n_q, D]; k, v [B, Hkv, n_k, D], bottom-right aligned; scale None: D^-1/2; window: each query reads its
    last so many keys; sinks [H]; key_start int [B], left padding; salt: places the rows, with the seed and the layer;
    None: a hash of k.
    Errors: ConfigError; PromptError for a prompt of padding alone.
    """
    request = request or Request()
    for number, given in (("scale", scale), ("softcap", softcap)):
        argument(Real | None, given, number)
    argument(Positive | None, window, "window")
    argument(Count, layer, "layer")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if getattr(request.plan, "ndim", 0) == 4 and len(q) > 1:
        raise ConfigError(
            f"a mask of 4 dimensions is by layer, not by prompt, and there are {len(q)} prompts; pass this layer's "
            "[heads, query blocks, key blocks], or one prompt at a time"
        )
    inputs = AttentionInputs(q, k, v, scale, key_start, softcap, sinks)
    salt = _digest(k.detach().float().sum(-2)) if salt is None else salt  # of the keys' sums over tokens
    scores = request.scored(inputs, out, salt, layer, window)
    return _certified(request, name, salt, inputs, (layer,), [scores])


class _Listener:
    """Scores the layers of a model's forward passes; hands the report one Certified a prefill."""

    def __init__(self, request: Request, report: Report, layers: int) -> None:
        self._request, self._report, self._layers = request, report, layers
        self._scores: dict[int, tuple[RowScores, RowScores | None]] = {}
        self._name, self._salt, self._prefills = "", "", 0
        self._inputs: AttentionInputs | None = None

    def start(self, name: str, prompt: torch.Tensor | None) -> bool:
        """See ``Watcher.start``: decoded tokens are left alone, and all but one prefill in ``every``."""
        self._scores.clear()
        self._inputs = None
        if prompt is not None and prompt.shape[1] < 2:
            return False
        self._prefills += 1
        if (self._prefills - 1) % self._request.every:
            self._report.skipped += 1
            return False
        self._name, self._salt = name, hash_of(prompt)
        return True

    def heard(self, call: Call) -> None:
        """See ``Watcher.heard``."""
        if call.inputs.q.shape[2] < 2:
            return
        self._inputs = call.inputs
        if self._report.kept is not None:
            self._report.kept[call.layer] = LayerKeys.of(call.inputs, call.window)
        self._scores[call.layer] = self._request.scored(
            call.inputs, call.out, self._salt, call.layer, call.window
        )

    def finish(self) -> None:
        """See ``Watcher.finish``. Errors: UnsupportedModelError where a layer was not heard."""
        if not self._scores or self._inputs is None:
            return
        if len(self._scores) != self._layers:
            raise UnsupportedModelError(
                f"{len(self._scores)} of {self._layers} attention layers were heard; this model computes the others "
                "without transformers' attention functions"
            )
        layers, found = zip(*sorted(self._scores.items()), strict=True)
        self._report.add(_certified(self._request, self._name, self._salt, self._inputs, layers, found))
        self._scores.clear()
        self._inputs = None


def _wrapped(function: Callable[..., Any], request: Request, report: Report) -> Callable[..., Any]:
    name = getattr(function, "__name__", type(function).__name__)
    calls = count()

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **named: Any) -> Any:
        result = function(q, k, v, *rest, **named)
        out = result[0] if isinstance(result, tuple) else result
        options: dict[str, Any] = {"scale": named.get("scale"), "layer": next(calls), "name": name}
        report.add(certify_attention(q, k, v, out, request=request, **options))
        return result

    return attention


def _certified(
    request: Request,
    name: str,
    salt: str,
    inputs: AttentionInputs,
    layers: tuple[int, ...],
    scores: Sequence[tuple[RowScores, RowScores | None]],
) -> Certified:
    dense = tuple(layer for layer, (drawn, _) in zip(layers, scores, strict=True) if drawn.dense)
    dtype = str(inputs.q.dtype).removeprefix("torch.")
    if dtype not in EXECUTED_TOLERANCE:
        raise ConfigError(f"attention in {dtype} has no known rounding; use {', '.join(EXECUTED_TOLERANCE)}")
    return Certified(
        name=name,
        plan=request.named,
        plan_note=request.plan_note,
        prompt=salt,
        queries=inputs.q.shape[2],
        keys=inputs.k.shape[2],
        dtype=dtype,
        device=device_name(inputs.q.device),
        kv_heads=inputs.k.shape[1],
        head_dim=inputs.q.shape[3],
        seed=request.seed,
        settings=request.settings,
        layers=layers,
        scores=tuple(drawn.numpy() for drawn, _ in scores),
        dense_layers=dense,
        places=request.places(inputs),
        named_scores=tuple(named.numpy() for _, named in scores if named is not None),
    )


def hash_of(prompt: torch.Tensor | None) -> str:
    """Sixteen hex digits of token ids [B, n], or of the sums of embeddings [B, n, d]; empty without either."""
    if prompt is None:
        return ""
    return _digest(prompt.detach().double().sum(-1) if prompt.is_floating_point() else prompt.detach().long())


def _digest(told: torch.Tensor) -> str:
    return hashlib.sha256(told.cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def _check_shapes(inputs: AttentionInputs, out: torch.Tensor) -> None:
    q, k, v = inputs.q, inputs.k, inputs.v
    fit = (
        all(tensor.ndim == 4 for tensor in (q, k, v, out))
        and out.shape == (*q.shape[:-1], v.shape[-1])
        and k.shape[:-1] == v.shape[:-1]
        and (q.shape[0], q.shape[-1]) == (k.shape[0], k.shape[-1])
        and min(*q.shape, *k.shape) > 0
        and q.shape[1] % k.shape[1] == 0
        and q.shape[2] <= k.shape[2]
    )
    if not fit:
        raise ConfigError(
            f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)} and out {list(out.shape)} do not fit; pass "
            "[batch, heads, tokens, size] each, out like q, and query heads in whole groups on the KV heads"
        )
