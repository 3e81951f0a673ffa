"""The report's figures, settings, calibration, and what the run was made with."""

from __future__ import annotations

import json
import shlex
from typing import Any

from routesparse.engine.export import numbers
from routesparse.engine.export.report_html import facts, note, section, table, text
from routesparse.engine.rows import RunRecord, RunRow


def figures(record: RunRecord) -> str:
    """The figures at the top, as the page Routing map has them."""
    run = record.run
    agreement = {None: "not compared", 1.0: "as by dense"}.get(run.top1_agreement, "differs from dense")
    return facts(
        (
            ("Causal area kept", numbers.share(run.density), "mean over units"),
            (
                "Prefill",
                numbers.millis(run.total_ms) if run.speedup is None else numbers.times(run.speedup),
                "dense not measured"
                if run.speedup is None
                else f"{numbers.millis(run.total_ms)}, dense {numbers.millis(run.dense_ms)}",
            ),
            (
                "Dense by fallback",
                numbers.share(run.fallback_share),
                f"{run.dense_fallback_units:,} of {run.units:,} units, {run.expanded_units:,} expanded",
            ),
            (
                "Uncertified",
                f"{len(record.uncertified):,} of {run.sparse_units:,}",
                "sparse units"
                if run.tau_layer is None
                else f"sparse units; {len(record.uncertified_layers):,} of {numbers.several(run.layers, 'layer')}",
            ),
            (
                "Next token",
                agreement,
                f"KL {numbers.kl(run.kl_nats)}" if run.kl_nats is not None else "",
            ),
            ("Output error", numbers.mass(run.mean_error, 4), "relative, audited mean"),
        )
    )


def calibration(run: RunRow) -> str:
    """Calibration and drift; why the conformal claim is void, where it is."""
    if run.calibration is None:
        return section(
            "Calibration and drift", note("No calibration was used: in-prompt certificates alone.")
        )
    alarm = {None: numbers.NOT_MEASURED, True: "yes: ignore the conformal claim", False: "no"}[
        run.drift_alarm
    ]
    rows = (
        ("calibration", run.calibration),
        ("fits this run", run.calibration_mismatch or "yes"),
        ("delta of the conformal claim", "none" if run.delta is None else numbers.mass(run.delta, 4)),
        ("distance from the calibration's prompts", numbers.mass(run.drift_distance, 2)),
        ("its conformal p-value", numbers.mass(run.drift_p)),
        ("drift alarm", alarm),
    )
    return section(
        "Calibration and drift",
        table("How the calibration fits this prompt.", ("what", "value"), rows, (0, 1)),
    )


def settings(run: RunRow) -> str:
    """What was asked for; every setting of the router below."""
    mass = (
        f"{run.tau:g} of each head"
        if run.tau_layer is None
        else f"{run.tau_layer:g} of a layer, {run.tau:g} of a head"
    )
    rows = [
        ("policy", run.policy + ("" if run.price is None else f", price {run.price:g}")),
        *([] if run.tuned_price is None else [("price of the quality target", run.tuned_price)]),
        ("certified mass to reach", f"{mass}, at confidence {run.confidence:g}"),
        ("T_l, limit of a layer", numbers.limit(run.budget)),
        ("probe", run.probe_mode),
        (
            "audit",
            f"{run.audit_depth}, {run.audit_rows:,} rows a unit" if run.audit_rows else run.audit_depth,
        ),
        ("latency profile", run.profile),
        ("domain", run.domain or "none given"),
        (
            "prompt",
            f"{run.tokens:,} tokens, {numbers.several(run.segments, 'segment')}, batch of {run.batch}, sha256 "
            f"{run.prompt_sha256}",
        ),
        (
            "model",
            f"{run.model}, revision {run.model_revision}: {run.layers} layers, {run.heads} heads, "
            f"{run.kv_heads} KV heads of {run.head_dim}",
        ),
    ]
    every = sorted(json.loads(run.config_json).items())
    config = table(
        "Every setting of the router.", ("setting", "value"), [(k, json.dumps(v)) for k, v in every], (0, 1)
    )
    return section(
        "Settings",
        table("What was asked for.", ("what", "value"), rows, (0, 1)),
        f"<details><summary>All {len(every)} settings of the router</summary>{config}</details>"
        if every
        else "",
    )


def made_with(record: RunRecord) -> str:
    """Versions, device, seed, and the command that repeats the run."""
    run = record.run
    versions = sorted(json.loads(run.versions_json).items())
    rows = [
        ("device", f"{run.device}, {run.dtype}"),
        ("commit of RouteSparse", run.git_commit or "unknown"),
        ("seed", run.seed),
        *versions,
    ]
    return section(
        "Made with",
        table("Device, versions and seed.", ("what", "value"), rows, (0, 1)),
        note("To repeat it, with the prompt in a file:"),
        f"<pre>{text(command(record))}</pre>",
    )


def command(record: RunRecord) -> str:
    """The command line that repeats a run; what was not given is left out."""
    run = record.run
    config: dict[str, Any] = json.loads(run.config_json)
    options: dict[str, Any] = {
        "--model": run.model,
        "--calibration": run.calibration,
        "--policy": run.policy,
        "--budget": run.budget,
        "--tau": repr(run.tau if run.tau_layer is None else run.tau_layer),
        "--price": run.price,
        "--segment": config.get("segment_tokens"),
        "--probe": run.probe_mode,
        "--audit": run.audit_depth,
        "--break-even": config.get("break_even_tokens"),
        "--domain": run.domain,
        "--seed": run.seed,
        "--bound": config.get("bound"),
        "--beta": config.get("beta"),
        "--rope": config.get("rope"),
    }
    # A name that begins with a dash would be read as an option.
    parts = [
        "routesparse",
        "analyze",
        f"./{run.prompt_name}" if run.prompt_name[:1] == "-" else run.prompt_name,
    ]
    for name, value in options.items():
        parts += [] if value is None else [name, str(value)]
    flags = {
        "--measure-dense": run.dense_ms is not None,
        "--no-text": record.prompt is None,
        "--force": run.calibration_mismatch is not None,
    }
    return shlex.join([*parts, *(flag for flag, wanted in flags.items() if wanted)])
