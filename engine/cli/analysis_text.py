"""What ``routesparse analyze`` says to people: a run's table, its warnings, and a folder's summary."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from rich.table import Table

from routesparse.engine.calibration.tuned import TunedPrice
from routesparse.engine.cli.output import Reporter, out_console
from routesparse.engine.config import RouterConfig
from routesparse.engine.method import families
from routesparse.engine.rows import EXECUTED_TOLERANCE, RunRecord, deviates
from routesparse.engine.verdict import of_record

if TYPE_CHECKING:
    from routesparse.engine.bulk.folder import FolderRuns

MOST_NAMED = 8  # uncertified units in the warning; --json has all


def warnings(record: RunRecord, fallback_limit: float) -> list[str]:
    """What of a run the user should act on."""
    run, found = record.run, []
    if run.units and run.dense_fallback_units > fallback_limit * run.units:
        found.append(
            f"{run.dense_fallback_units} of {run.units} units fell back to dense, more than "
            f"{fallback_limit:.0%}: this prompt does not suit the library or tau"
        )
    if record.uncertified_layers:
        found.append(uncertified_layers_text(record))
    if record.uncertified:
        found.append(uncertified_text(record))
    return found


def tell(
    report: Reporter, tuned_price: TunedPrice, revision: str, config: RouterConfig, tokens: int, force: bool
) -> None:
    """What the price promises, or with ``force`` why it promises nothing here. Errors: CalibrationError."""
    if not force:
        tuned_price.check(revision, config)
    wrong = tuned_price.mismatch(revision, config) or tuned_price.beyond(tokens)
    if wrong is None:
        report.line(f"{tuned_price.name}: {tuned_price.says}")
    else:
        report.warn(no_promise(tuned_price, wrong))


def no_promise(tuned_price: TunedPrice, wrong: str) -> str:
    """Why a price that is used promises nothing for a prompt."""
    return f"price {tuned_price.price:g} is used, but promises nothing here: {wrong}"


def uncertified_text(record: RunRecord) -> str:
    """How many units ran without certified mass, which, and what to do about it."""
    run, units = record.run, record.uncertified
    unmet = sum(choice.unmet is True for choice in units)
    why = f"T_l left {unmet} of them no time to expand: raise --budget" if unmet else "fallback was off"
    segment = " segment {0.segment}" if run.segments > 1 else ""
    names = [("layer {0.layer} head {0.head}" + segment).format(choice) for choice in units]
    tau = f"tau {run.tau:g}" if run.tau_layer is None else f"tau_head {run.tau:g}"
    return f"{len(units)} of {run.units} units ran without certified mass, bound below {tau} ({why}): {_first(names)}"


def uncertified_layers_text(record: RunRecord) -> str:
    """Policy "priced": which layers ran although their own certificate is below tau_layer."""
    run, layers = record.run, record.uncertified_layers
    return (
        f"{len(layers)} of {run.layers} layers ran without certified mass, the bound of their mean below tau_layer "
        f"{run.tau_layer:g} (fallback was off): layer {_first(list(map(str, layers)))}"
    )


def _first(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


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
        f"{run.tau_layer:g}), {raised} of {run.layers} layers raised, {len(record.uncertified_layers)} below it; "
        f"tau_head {run.tau:g} is a floor for single heads, not a measure of quality"
    )


def loss_text(record: RunRecord) -> str:
    """The predicted loss, of what it is, and the truth where a dense prefill ran."""
    run, count = record.run, sum(row.tokens for row in record.losses)
    bound = "" if run.loss_bound is None else f", at most {run.loss_bound:.4f} ({run.confidence:.0%})"
    by = f"its fit on {run.loss_fit} texts"
    if run.loss_fit is None:
        by = "a stated factor: this model is not fitted"
    truth = "" if record.true_loss is None else f"; {record.true_loss:.4f} there by dense"
    return (
        f"predicted loss {run.loss_nats:.4f} nats a token{bound}, by {by}; {count} rows replayed in "
        f"{run.loss_ms:,.0f} ms{truth}"
    )


def print_summary(record: RunRecord, bundle: Path) -> None:
    """The run in a few lines on the console: times, density, certificates, audit, and where its bundle lies."""
    run, console = record.run, out_console()
    if not run.routed:
        console.print(
            f"{run.tokens:,} tokens are below break-even: dense attention ran untouched ({run.total_ms:,.0f} ms)",
            markup=False,
        )
    else:
        heads = ("pattern", "units", "mean density", "mean mass", "least certified mass", "below tau")
        table = Table(*heads, title=None)
        missed = Counter(choice.pattern for choice in record.uncertified)
        for pattern in families.in_order({choice.pattern for choice in record.choices}):
            rows = [choice for choice in record.choices if choice.pattern == pattern]
            if not rows:
                continue
            bounds = [choice.lower_mass for choice in rows if choice.lower_mass is not None]
            means = (fmean(choice.density for choice in rows), fmean(choice.mass for choice in rows))
            certified = (f"{min(bounds):.3f}", str(missed[pattern])) if bounds else ("-", "-")
            table.add_row(pattern, str(len(rows)), *(f"{mean:.3f}" for mean in means), *certified)
        console.print(table)
        lines = [
            f"density {run.density:.3f} of the causal area; expanded {run.expanded_units}, dense by fallback "
            f"{run.dense_fallback_units}, dense by the router {run.dense_router_units}, mass "
            f"not certified in {len(record.uncertified)} of {run.units} units",
            f"probe {run.probe_ms:,.1f} ms, index {run.index_ms:,.1f} ms, route {run.route_ms:,.1f} ms, "
            f"kernels {run.kernel_ms:,.1f} ms; prefill {run.total_ms:,.0f} ms"
            + ("" if run.dense_ms is None else f", dense {run.dense_ms:,.0f} ms"),
        ]
        if run.tau_layer is not None:
            lines.insert(1, layers_text(record))
        if run.loss_nats is not None:
            lines.insert(0, loss_text(record))
        if run.coverage is not None:
            lines.append(
                f"audit: coverage {run.coverage:.3f} (nominal {run.confidence:g}, in-prompt certificate), "
                f"mean error {run.mean_error:.4f}, worst row {run.max_error:.4f}"
            )
            lines += _executed(record)
        console.print("\n".join(lines), soft_wrap=True)
    judged = of_record(record)
    lines = [
        f"{'verdict ' + judged.level if place == 0 else '  ' + found.level}: {found.text}"
        for place, found in enumerate(judged.findings)
    ]
    console.print("\n".join([*lines, f"run {run.run_id}", str(bundle)]), soft_wrap=True)


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


def print_folder(made: FolderRuns) -> None:
    """A line for each run, the verdicts counted, and what failed."""
    console = out_console()
    table = Table("prompt", "tokens", "density", "verdict", "prefill", "run")
    for run in made.runs:
        table.add_row(
            run.prompt,
            f"{run.tokens:,}",
            "dense" if run.density is None else f"{run.density:.3f}",
            run.verdict,
            f"{run.total_ms:,.0f} ms",
            f"{run.run_id} (done before)" if run.earlier else run.run_id,
        )
    if made.runs:
        console.print(table)
    lines = [f"{run.prompt}: warning: {told}" for run in made.runs for told in run.warnings]
    lines += [f"{name}: the same text as {of}, run once" for name, of in made.same.items()]
    lines += [f"{name} failed: {why}" for name, why in made.failed.items()]
    verdicts = ", ".join(f"{count} {level}" for level, count in made.verdicts.items())
    before = sum(run.earlier for run in made.runs)
    lines.append(f"{len(made.runs)} runs ({before} done before): {verdicts}; {len(made.failed)} failed")
    console.print("\n".join(lines), soft_wrap=True)
