"""``routesparse analyze`` and ``routesparse profile``."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from routesparse.engine import paths
from routesparse.engine.calibration import tuned
from routesparse.engine.cli.checks import writable_folder
from routesparse.engine.cli.options import JsonFlag, ModelName, RopeJson
from routesparse.engine.cli.output import Reporter, analysis_object, out_console, print_json
from routesparse.engine.config import (
    AuditDepth,
    BoundName,
    LatencyBudget,
    Policy,
    ProbeMode,
    RouterConfig,
    certified_mass,
    default_segment,
)
from routesparse.engine.errors import InputError
from routesparse.engine.method import families
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.profiles.here import measure_here
from routesparse.engine.rows import EXECUTED_TOLERANCE, RunRecord, deviates
from routesparse.engine.verdict import of_record

if TYPE_CHECKING:
    from routesparse.engine.models.load import ModelShape

_MOST_HEADS = 512
_HEAD_SIZES = range(4, 513)
MOST_NAMED = 8  # uncertified units in the warning; --json has all


def analyze(
    file: Annotated[Path, typer.Argument(help="A text file in UTF-8: the prompt.")],
    model: ModelName = "demo",
    calibration: Annotated[
        str | None,
        typer.Option(
            help="prose, code, dialog, mixed, or a .json file; without: in-prompt only. A tuned price, such as "
            "prose-kl, sets the price."
        ),
    ] = None,
    policy: Annotated[Policy, typer.Option(help="How candidates are chosen.")] = RouterConfig.policy,
    budget: Annotated[
        str | None, typer.Option(help="T_l per layer: a share of dense (0.25) or a time (800us).")
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(help="Certified mass, 0 to 1: of a layer where policy is priced, else of each head."),
    ] = None,
    price: Annotated[
        float | None, typer.Option(help="Policy priced: what a block must be worth; higher reads less.")
    ] = None,
    segment: Annotated[
        int | None, typer.Option(help="Tokens of a routing segment; default 16384, on a GPU 131072.")
    ] = None,
    probe: Annotated[
        ProbeMode, typer.Option(help="Score rows against all keys, or against pooled ones.")
    ] = "exact",
    audit: Annotated[
        AuditDepth, typer.Option(help="Compare with dense attention: not at all, on sampled rows, on all.")
    ] = "none",
    out: Annotated[Path | None, typer.Option(help="Folder for the run bundle; default: the spool.")] = None,
    profile: Annotated[str, typer.Option(help="Latency profile: auto, a name, or a .json file.")] = "auto",
    break_even: Annotated[
        int | None, typer.Option(help="Tokens below which dense runs untouched; default: from the profile.")
    ] = None,
    domain: Annotated[str | None, typer.Option(help="A label for grouping runs, such as code.")] = None,
    measure_dense: Annotated[
        bool, typer.Option("--measure-dense", help="Run the dense prefill too, however long it takes.")
    ] = False,
    no_answer_check: Annotated[
        bool,
        typer.Option(
            "--no-answer-check", help="No dense prefill for the next token, not even where it takes seconds."
        ),
    ] = False,
    no_text: Annotated[
        bool, typer.Option("--no-text", help="Keep the prompt's text out of the bundle.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the probe's random rows.")] = 0,
    bound: Annotated[
        BoundName, typer.Option(help="How the in-prompt certificate bounds the mean.")
    ] = "betting",
    beta: Annotated[
        float, typer.Option(help="Weight of the calibration's error predictor in the risk; 0: none.")
    ] = 0.0,
    force: Annotated[
        bool, typer.Option("--force", help="Use a calibration that does not fit; the record tells.")
    ] = False,
    rope: RopeJson = None,
    json_output: JsonFlag = False,
) -> None:
    """Prefill one prompt with routing and write its run bundle: every choice, and why."""
    report = Reporter()
    report.line(f"reading {file.name}")
    from routesparse.engine.prompts import check_domain, read_prompt, tokenize

    check_domain(domain)
    scaling = None if rope is None else RopeScaling.parse(rope)
    text = read_prompt(file)
    config = RouterConfig(
        policy=policy,
        **certified_mass(policy, tau),
        price=RouterConfig.price if price is None else price,
        budget=None if budget is None else LatencyBudget.parse(budget),
        segment_tokens=default_segment(False) if segment is None else segment,
        probe=probe,
        break_even_tokens=break_even,
        bound=bound,
        beta=beta,
        seed=seed,
    )
    target = writable_folder(out or paths.spool())
    tuned_price = None if calibration is None else tuned.find(calibration)
    if tuned_price is not None:
        config, calibration = tuned_price.applied(config, price), None
    predicts = False
    if calibration is not None:
        from routesparse.engine.calibration.artifact import load_calibration

        predicts = load_calibration(calibration).predictor is not None
    config.check_runnable(predicts)
    if profile != "auto":
        from routesparse.engine.profiles.files import load_profile

        load_profile(profile)
    from routesparse.engine.models.token_count import refuse_before_loading

    refuse_before_loading(model, text, scaling)
    report.line(f"loading model {model}")
    from routesparse.engine.models.load import load_model

    loaded = load_model(model, rope=scaling)
    if segment is None:
        config = dataclasses.replace(config, segment_tokens=default_segment(loaded.on_gpu))
    prompt = tokenize(text, loaded.tokenizer, loaded.max_tokens)
    target_name = None
    if tuned_price is not None:
        _tell(report, tuned_price, loaded.revision, config, prompt.tokens, force)
        # Used by force where it does not fit, the price is a number like any other.
        fits = tuned_price.mismatch(loaded.revision, config) is None
        target_name = tuned_price.name if fits else None
    report.line(
        f"{prompt.tokens:,} tokens, {loaded.layers} layers of {loaded.heads} heads on {loaded.device}"
    )
    from routesparse.engine.analyze import analyze_prompt
    from routesparse.engine.store.bundle import write_bundle

    with report.bars():
        record = analyze_prompt(
            prompt,
            loaded,
            config,
            calibration=calibration,
            profile=profile,
            audit=audit,
            measure_dense=measure_dense,
            check_answer=not no_answer_check,
            keep_text=not no_text,
            domain=domain,
            force=force,
            progress=report,
            tuned_price=target_name,
        )
    bundle = write_bundle(record, target)
    run = record.run
    if run.units and run.dense_fallback_units > config.fallback_limit * run.units:
        report.warn(
            f"{run.dense_fallback_units} of {run.units} units fell back to dense, more than "
            f"{config.fallback_limit:.0%}: this prompt does not suit the library or tau"
        )
    if record.uncertified_layers:
        report.warn(uncertified_layers_text(record))
    if record.uncertified:
        report.warn(uncertified_text(record))
    if json_output:
        print_json(analysis_object(record, bundle))
    else:
        _print_summary(record, bundle)


def _tell(
    report: Reporter,
    tuned_price: tuned.TunedPrice,
    revision: str,
    config: RouterConfig,
    tokens: int,
    force: bool,
) -> None:
    """What the price promises, or with ``force`` why it promises nothing here. Errors: CalibrationError."""
    if not force:
        tuned_price.check(revision, config)
    wrong = tuned_price.mismatch(revision, config) or tuned_price.beyond(tokens)
    if wrong is None:
        report.line(f"{tuned_price.name}: {tuned_price.says}")
    else:
        report.warn(f"price {tuned_price.price:g} is used, but promises nothing here: {wrong}")


def profile(
    model: ModelName = "demo",
    shape: Annotated[
        str | None,
        typer.Option(help="Query heads, KV heads and head size instead of a model, as in 32,8,128."),
    ] = None,
    probe: Annotated[ProbeMode, typer.Option(help="The probe mode that the profile is for.")] = "exact",
    quick: Annotated[
        bool, typer.Option("--quick", help="Two short lengths only: seconds, less precise.")
    ] = False,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder of texts, repeatable: fit on the plans that the router makes of them, for the model; half of "
            "the texts check the fit. Without: synthetic plans of that shape. Never texts that you evaluate on."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the profile; default: the home folder.")
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Measure what plans and the probe cost on this machine, for a model's head size, and keep it."""
    report = Reporter()
    if prompts and shape is not None:
        raise InputError("--prompts needs a model that reads them; pass --model instead of --shape")
    what = f"model {model}" if shape is None else f"shape {shape}"
    report.line(
        f"measuring plans for {what}: {'seconds' if quick else 'a minute or more on a CPU'}"
        + (", and minutes for the prompts" if prompts else "")
    )
    target = writable_folder(out or paths.profiles())
    wanted = _model_shape(model, shape)
    texts = None
    if prompts:
        from routesparse.engine.calibrate.prompt_plans import read_prompts
        from routesparse.engine.models.load import load_model

        loaded = load_model(model)
        texts = read_prompts(loaded, prompts, loaded.device.partition(":")[0], seed=0)
    with report.bars():
        measured = measure_here(wanted, RouterConfig(probe=probe), quick, texts, report)
    command = "routesparse profile"
    command += "" if shape is None else f" --shape {shape}"
    command += "".join(f" --prompts {'/'.join(path.parts[-2:])}" for path in prompts or ())
    measured = dataclasses.replace(measured, command=command)
    path = measured.save(target)
    result = {
        "name": measured.name,
        "device": measured.device,
        "backend": measured.backend,
        "dtype": measured.dtype,
        "head_dim": measured.head_dim,
        "groups": measured.groups,
        "threads": measured.threads,
        "plans": measured.plans,
        "median_error": measured.median_error,
        "validation_error": measured.validation_error,
        "break_even_tokens": measured.break_even_tokens(wanted.heads, wanted.layers),
        "cells": list(measured.cells),
        "path": str(path),
    }
    if json_output:
        print_json(result)
        return
    table = Table("tokens", "mix", "median ms", "p20", "p80")
    for cell in measured.cells:
        times = (f"{cell[name] / 1e3:.2f}" for name in ("median_us", "p20_us", "p80_us"))
        table.add_row(f"{cell['n']:,}", str(cell["mix"]), *times)
    console = out_console()
    console.print(table)
    console.print(
        f"{measured.device}: median prediction error {measured.errors_text()}; routing pays from "
        f"{result['break_even_tokens']:,} tokens\n{path}",
        markup=False,
        soft_wrap=True,
    )


def _model_shape(model: str, shape: str | None) -> ModelShape:
    """The model's, or where given that of "32,8,128": query heads, KV heads, head size. Errors: InputError."""
    from routesparse.engine.method.latency import LAYERS
    from routesparse.engine.models.load import ModelShape, shape_of

    if shape is None:
        return shape_of(model)
    numbers = re.fullmatch(r"\s*([0-9]{1,4})\s*,\s*([0-9]{1,4})\s*,\s*([0-9]{1,4})\s*", shape)
    if numbers is not None:
        heads, kv_heads, head_dim = map(int, numbers.groups())
        if 1 <= kv_heads <= heads <= _MOST_HEADS and heads % kv_heads == 0 and head_dim in _HEAD_SIZES:
            return ModelShape(shape, heads, kv_heads, head_dim, LAYERS)
    raise InputError(
        f"shape {shape[:40]!r}: pass query heads (at most {_MOST_HEADS}), KV heads and head size ({_HEAD_SIZES[0]} to "
        f"{_HEAD_SIZES[-1]}), as in 32,8,128; KV heads divide query heads"
    )


def uncertified_text(record: RunRecord) -> str:
    """How many units ran uncertified, which, and what to do about it."""
    run, units = record.run, record.uncertified
    unmet = sum(choice.unmet is True for choice in units)
    why = f"T_l left {unmet} of them no time to expand: raise --budget" if unmet else "fallback was off"
    names = [
        f"layer {choice.layer} head {choice.head}"
        + (f" segment {choice.segment}" if run.segments > 1 else "")
        for choice in units[:MOST_NAMED]
    ]
    more = f" and {len(units) - MOST_NAMED} more" if len(units) > MOST_NAMED else ""
    tau = f"tau {run.tau:g}" if run.tau_layer is None else f"tau_head {run.tau:g}"
    return (
        f"{len(units)} of {run.units} units ran uncertified, with a certificate below {tau} ({why}): "
        f"{', '.join(names)}{more}"
    )


def uncertified_layers_text(record: RunRecord) -> str:
    """Policy "priced": which layers ran although their own certificate is below tau_layer."""
    run, layers = record.run, record.uncertified_layers
    more = f" and {len(layers) - MOST_NAMED} more" if len(layers) > MOST_NAMED else ""
    return (
        f"{len(layers)} of {run.layers} layers ran uncertified, with a certificate of their mean mass below tau_layer "
        f"{run.tau_layer:g} (fallback was off): layer {', '.join(map(str, layers[:MOST_NAMED]))}{more}"
    )


def layers_text(record: RunRecord) -> str:
    """Policy "priced": the least certified layer, how many climbed for it, and what a head's certificate is worth."""
    run = record.run
    certified = [row for row in record.layers if row.lower_mass is not None]
    if not certified:
        return f"price {run.price:g}: every layer is dense, so no layer needs a certificate"
    least = min(certified, key=lambda row: row.lower_mass or 0.0)
    raised = sum(bool(row.raised) for row in record.layers)
    return (
        f"price {run.price:g}; least certified layer mass {least.lower_mass:.3f} (layer {least.layer}, tau_layer "
        f"{run.tau_layer:g}), {raised} of {run.layers} layers raised, {len(record.uncertified_layers)} uncertified; "
        f"tau_head {run.tau:g} is a floor for single heads, not a measure of quality"
    )


def _print_summary(record: RunRecord, bundle: Path) -> None:
    run, console = record.run, out_console()
    if not run.routed:
        console.print(
            f"{run.tokens:,} tokens are below break-even: dense attention ran untouched ({run.total_ms:,.0f} ms)",
            markup=False,
        )
    else:
        chosen = Counter(choice.pattern for choice in record.choices)
        table = Table(
            "pattern", "units", "mean density", "mean mass", "least certified mass", "uncertified", title=None
        )
        missed = Counter(choice.pattern for choice in record.uncertified)
        for pattern in families.in_order(chosen):
            rows = [choice for choice in record.choices if choice.pattern == pattern]
            if not rows:
                continue
            bounds = [choice.lower_mass for choice in rows if choice.lower_mass is not None]
            table.add_row(
                pattern,
                str(chosen[pattern]),
                f"{sum(choice.density for choice in rows) / len(rows):.3f}",
                f"{sum(choice.mass for choice in rows) / len(rows):.3f}",
                f"{min(bounds):.3f}" if bounds else "-",
                str(missed[pattern]) if bounds else "-",
            )
        console.print(table)
        lines = [
            f"density {run.density:.3f} of the causal area; expanded {run.expanded_units}, dense by fallback "
            f"{run.dense_fallback_units}, dense by the router {run.dense_router_units}, uncertified "
            f"{len(record.uncertified)} of {run.units} units",
            f"probe {run.probe_ms:,.1f} ms, index {run.index_ms:,.1f} ms, route {run.route_ms:,.1f} ms, "
            f"kernels {run.kernel_ms:,.1f} ms; prefill {run.total_ms:,.0f} ms"
            + ("" if run.dense_ms is None else f", dense {run.dense_ms:,.0f} ms"),
        ]
        if run.tau_layer is not None:
            lines.insert(1, layers_text(record))
        if run.coverage is not None:
            lines.append(
                f"audit: coverage {run.coverage:.3f} (nominal {run.confidence:g}, in-prompt certificate), "
                f"mean error {run.mean_error:.4f}, worst row {run.max_error:.4f}"
            )
            lines += _executed(record)
        console.print("\n".join(lines), markup=False, soft_wrap=True)
    judged = of_record(record)
    lines = [
        f"{'verdict ' + judged.level if place == 0 else '  ' + found.level}: {found.text}"
        for place, found in enumerate(judged.findings)
    ]
    console.print("\n".join([*lines, f"run {run.run_id}", str(bundle)]), markup=False, soft_wrap=True)


def _executed(record: RunRecord) -> list[str]:
    """What the audit says about the kernel: how far its output lies from the rebuilt rows."""
    audits = [row for row in record.audits if row.executed_error is not None]
    if not audits:
        return []
    tolerance = EXECUTED_TOLERANCE[record.run.dtype]
    worst = max(audits, key=lambda row: row.executed_error or 0.0)
    told = f"kernel output against the rebuilt rows: at most {worst.executed_error:.1e}, tolerance {tolerance:.0e}"
    wrong = sum(deviates(row.executed_error, record.run.dtype) for row in audits)
    if not wrong:
        return [told]
    return [
        f"FAILED: the kernel's output is not that of the chosen plan in {wrong} of {len(audits)} audited units, "
        f"worst in layer {worst.layer}, head {worst.head}, segment {worst.segment}; {told}. Do not use this output; "
        "run `routesparse doctor` and report it"
    ]
