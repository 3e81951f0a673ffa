"""From a prompt to a record: one routed prefill, its audit, and (where asked for) the dense prefill beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from routesparse.engine.audit.answer import (
    CONTINUED,
    answer_figures,
    answer_rows,
    continuation_row,
    continued,
)
from routesparse.engine.audit.rows import AUDIT_ROWS, RowAuditor
from routesparse.engine.audit.traced import Tracer
from routesparse.engine.calibration import fitted
from routesparse.engine.calibration.artifact import Calibration, load_calibration
from routesparse.engine.config import AuditDepth, RouterConfig, check_trace, default_config
from routesparse.engine.decide.ahead import (
    Compiled,
    blank_inputs,
    compile_together,
    kernels_of,
    lengths_of_every_kind,
)
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import NumericsError
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.segments import split
from routesparse.engine.models.load import LoadedModel, ModelShape, shape_of
from routesparse.engine.profiles.measure import free_settings, prepare_profile
from routesparse.engine.progress import Progress, no_progress
from routesparse.engine.prompts.text import Prompt
from routesparse.engine.record.passes import PromptTrace, RunInfo
from routesparse.engine.rows import PromptRow, RunRecord
from routesparse.engine.runtime.dense_forward import KeptRows, sample_rows, with_forward_errors
from routesparse.engine.runtime.loss import Replay, with_loss
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.transformers import attention_modules, routed_by
from routesparse.engine.runtime.watching import watched
from routesparse.kernels.compile_ahead import Wanted, compiler_of

# A dense prefill that nobody asked for may take this long: on two CPU cores, the bundled model's of 16,384 tokens.
DENSE_AFFORDABLE_MS = 30_000.0
# Of the free memory: a key-value cache beyond it is not kept, and the prompt not continued.
CACHE_SHARE = 0.25


@dataclass(frozen=True)
class Prefill:
    """One prefill: last-position logits float32 [B, vocabulary], wall time, and the cache where it is kept."""

    logits: torch.Tensor
    total_ms: float
    cache: Any = None


def analyze_prompt(
    prompt: Prompt,
    loaded: LoadedModel,
    config: RouterConfig,
    *,
    calibration: Calibration | str | None = None,
    profile: LatencyProfile | str = "auto",
    audit: AuditDepth = "none",
    trace_tokens: tuple[int, ...] = (),
    measure_dense: bool = False,
    check_answer: bool = True,
    keep_text: bool = True,
    domain: str | None = None,
    run_id: str | None = None,
    force: bool = False,
    graphs: Graphs | None = None,
    probe_bytes: int | None = None,
    progress: Progress = no_progress,
    tuned_price: str | None = None,
    loss_target: float | None = None,
) -> RunRecord:
    """Prefill the prompt with routing and return everything it left behind.

    audit: "rows" audits a random sample of body rows of every sparse unit; "full" all of them, and compares outputs
    with a dense forward pass (runtime/dense_forward.py). The time of auditing a unit is not part of total_ms.
    trace_tokens: whose rows are kept key by key in every head (audit/traced.py).
    measure_dense: run the dense prefill too, for its time, its next token and how it goes on (audit/answer.py);
    check_answer: also where nobody asked, if it is predicted to take at most DENSE_AFFORDABLE_MS. force: use a
    calibration that does not fit; the record tells what differs. run_id: None makes a new one. progress is called with
    the stages "profile" (where one is measured), "compile" (on a GPU that is new to such prompts), "route", "dense" and
    "write". graphs: of earlier prompts of this model (runtime/session.py). probe_bytes: of the heatmaps, where they
    should be smaller.
    tuned_price: for the record, the name of the quality target that set the configuration's price. loss_target: for the
    record, the loss that was asked for, nats a token. The loss is predicted in any case (runtime/loss.py).
    Errors: CalibrationError, ProfileError, ConfigError, NumericsError; nothing is written by this function.
    """
    calibrated = load_calibration(calibration) if isinstance(calibration, str) else calibration
    if isinstance(profile, str):
        if calibrated is not None and not force:
            calibrated.check(loaded.revision, config, loaded.dtype)  # before a profile is measured
        profile = prepare_profile(profile, loaded, config, progress)
    mismatch = None
    if calibrated is not None:
        mismatch = calibrated.mismatch(loaded.revision, config, loaded.dtype, profile)
        if mismatch is not None and not force:
            calibrated.check(loaded.revision, config, loaded.dtype, profile)
    audits = None if audit == "none" else RowAuditor(None if audit == "full" else AUDIT_ROWS)
    auditor = Tracer(check_trace(trace_tokens, prompt.tokens), audits) if trace_tokens else audits
    fit = fitted.of_model(loaded.revision)
    if fit is not None and calibrated is None:
        config = fit.floored(config)  # of whose runs its losses and bounds are
    session = RoutingSession(
        config,
        calibrated,
        profile=profile,
        auditor=auditor,
        salt=prompt.sha256,
        graphs=graphs,
        progress=progress,
        tuned_price=tuned_price,
    )
    ids = torch.tensor([prompt.token_ids], device=loaded.model.device)
    rows = sample_rows(prompt.tokens, config.seed) if audit == "full" else None
    wanted = measure_dense or audit == "full"
    steps = steps_after(loaded, prompt.tokens) if wanted or check_answer else 0
    replay = Replay(loaded, session, prompt.tokens, f"{config.seed} {prompt.sha256}")
    with (
        routed_by(loaded.model, replay.router),
        _kept(loaded, rows) as routed_rows,
        replay.hidden() as routed_hidden,
    ):
        if loaded.on_gpu:
            session.prepare(_blank_inputs(prompt.tokens, loaded, loaded.dtype), torch.device(loaded.device))
        with _counted(loaded, progress, "route"):
            routed = prefill(loaded.model, ids, steps > 0)
    trace = session.trace
    seen = replay.of(ids, routed_hidden) if trace.prompts[-1].passes else None
    dense = None
    if wanted or (check_answer and _affordable(trace.prompts[-1], routed.total_ms)):
        # One cache at a time.
        routed, by_routed = _continued(loaded, routed, steps)
        with (
            _counted(loaded, progress, "dense"),
            _kept(loaded, rows) as dense_rows,
            replay.hidden() as dense_hidden,
        ):
            dense = prefill(loaded.model, ids, steps > 0)
        seen = replay.beside(seen, routed_hidden, dense_hidden)
        dense, by_dense = _continued(loaded, dense, steps)
    compared: dict[str, Any] = {} if dense is None else answer_figures(routed.logits, dense.logits)
    info = RunInfo(
        model=loaded.name,
        model_revision=loaded.revision,
        tokenizer_hash=loaded.tokenizer_hash,
        prompt_name=prompt.name,
        prompt_sha256=prompt.sha256,
        domain=domain,
        prompt=PromptRow("", prompt.text, prompt.block_starts(config.block_k), prompt.block_starts(1))
        if keep_text
        else None,
        total_ms=routed.total_ms - trace.prompts[-1].audit_ms,
        dense_ms=None if dense is None else dense.total_ms,
        calibration_mismatch=mismatch,
        run_id=run_id,
        rope=loaded.rope,
        probe_bytes=probe_bytes,
        **compared,
    )
    record = with_loss(trace.record(info), seen, fit, loss_target, config)
    if dense is not None:
        text_of = loaded.text_of if keep_text else None
        answers = answer_rows(routed.logits, dense.logits, record.run.run_id, text_of)
        record = replace(record, answers=answers)
        if steps:
            row = continuation_row(by_routed, by_dense, record.run.run_id, text_of)
            record = replace(record, continuations=(row,))
        if rows is not None and record.run.routed:
            record = with_forward_errors(record, routed_rows, dense_rows)
    progress("write", 0, 1)
    return record


def compile_for_prompts(model: str) -> Compiled | None:
    """Compile, in parallel, what prompts of this model of any length launch on this machine's GPU; None without one.

    model: as ``load_model`` takes it; only its shape is read. Settings are the default ones, whatever a prompt wants
    besides is compiled when it comes. Errors: ModelError, UnsupportedModelError.
    """
    if not torch.cuda.is_available():
        return None
    config = default_config(True)
    settings = free_settings(config)
    shape = shape_of(model)
    wanted: list[Wanted] = []
    for tokens in lengths_of_every_kind(config.segment_tokens):
        inputs = _blank_inputs(tokens, shape, "bfloat16")
        wanted += kernels_of(inputs, split(tokens, tokens, config), settings, [None])
    return compile_together(compiler_of(torch.device("cuda")), wanted, no_progress)


def _blank_inputs(tokens: int, shape: LoadedModel | ModelShape, dtype: str) -> AttentionInputs:
    sizes = {"heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim}
    return blank_inputs(tokens, **sizes, dtype=getattr(torch, dtype))


@torch.no_grad()
def prefill(model: Any, ids: torch.Tensor, keep_cache: bool = False) -> Prefill:
    """Prefill token ids int64 [B, n] to the last position's logits.

    Errors: NumericsError where a logit is NaN or Inf, which names no layer: the layers before were finite.
    """
    if ids.is_cuda:
        torch.cuda.synchronize(ids.device)
    started = time.perf_counter()
    found = model(ids, logits_to_keep=1, use_cache=keep_cache)
    logits = found.logits[:, -1].float()
    if ids.is_cuda:
        torch.cuda.synchronize(ids.device)
    elapsed = (time.perf_counter() - started) * 1e3
    if not bool(torch.isfinite(logits).all()):
        raise NumericsError("NaN or Inf in the logits; nothing was recorded for this prompt")
    return Prefill(logits, elapsed, found.past_key_values if keep_cache else None)


def steps_after(loaded: LoadedModel, tokens: int) -> int:
    """How many tokens the prompt may be continued by."""
    if loaded.cache_bytes(tokens) > CACHE_SHARE * loaded.free_bytes():
        return 0
    return max(0, min(CONTINUED, loaded.max_tokens - tokens))


def _continued(loaded: LoadedModel, found: Prefill, steps: int) -> tuple[Prefill, tuple[int, ...]]:
    """The prefill without its cache, and the tokens decoded from it."""
    tokens = continued(loaded.model, found.logits, found.cache, steps) if steps else ()
    return replace(found, cache=None), tokens


def _affordable(prompt: PromptTrace, total_ms: float) -> bool:
    """Whether a dense prefill beside this routed one is predicted to be quick; False where dense ran untouched."""
    if not prompt.passes:
        return False
    others_ms = total_ms - prompt.audit_ms - prompt.timings()["total_ms"]
    dense_ms = sum(layer_pass.sum_of("dense_us") for layer_pass in prompt.passes) / 1e3
    return others_ms + dense_ms <= DENSE_AFFORDABLE_MS


@contextmanager
def _kept(loaded: LoadedModel, rows: torch.Tensor | None) -> Iterator[KeptRows]:
    """Rows of every layer's attention output inside the block, if any."""
    found = KeptRows(torch.empty(0) if rows is None else rows)
    with nullcontext() if rows is None else watched(loaded.model, found):
        yield found


@contextmanager
def _counted(loaded: LoadedModel, progress: Progress, stage: str) -> Iterator[None]:
    """Report layer k of L while the model runs."""
    modules = attention_modules(loaded.model)
    progress(stage, 0, len(modules))
    hooks = [
        module.register_forward_hook(lambda *_, place=place: progress(stage, place, len(modules)))
        for place, module in enumerate(modules, start=1)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
