"""``routesparse calibrate``: lambda, alpha, the error predictor and delta_q of one domain or several."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from routesparse.engine import paths
from routesparse.engine.calibration.folders import check_name, check_not_bundled, length_buckets
from routesparse.engine.cli.checks import check_prompts, json_target
from routesparse.engine.cli.options import (
    CertifiedMass,
    JsonFlag,
    ModelArgument,
    ProcessCount,
    ProfileName,
    RayAddress,
    RopeJson,
    Segment,
)
from routesparse.engine.cli.output import Reporter, out_console, print_json
from routesparse.engine.config import Policy, RouterConfig, certified_mass, default_segment
from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import Team
from routesparse.engine.errors import InputError
from routesparse.engine.models.rope import RopeScaling

if TYPE_CHECKING:
    from routesparse.engine.calibration.artifact import Calibration


def calibrate(
    model: ModelArgument,
    prompts: Annotated[list[Path], typer.Argument(help="Text files, or folders, each a group of its own.")],
    domain: Annotated[str, typer.Option(help="What the prompts are, such as code; also the name.")],
    fold_a: Annotated[int, typer.Option(help="Prompts per group and length bucket to fit on.")] = 24,
    fold_b: Annotated[int, typer.Option(help="Prompts per group and bucket to take delta from.")] = 60,
    tokens: Annotated[tuple[int, int], typer.Option(help="Least and most tokens of a prompt.")] = (
        4_096,
        8_192,
    ),
    robust: Annotated[
        bool, typer.Option("--robust", help="delta is the largest over the groups, not their pool's.")
    ] = False,
    audit_rows: Annotated[int, typer.Option(help="Body rows audited per unit; 0: all of them.")] = 512,
    policy: Annotated[
        Policy, typer.Option(help="What is calibrated: priced, certified.")
    ] = RouterConfig.policy,
    tau: CertifiedMass = None,
    price: Annotated[float | None, typer.Option(help="What a block must be worth; a part of it.")] = None,
    segment: Segment = None,
    profile: ProfileName = "auto",
    processes: ProcessCount = None,
    ray: RayAddress = None,
    out: Annotated[Path | None, typer.Option(help="File; default: <home>/calibrations/DOMAIN.json.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of folds, windows and random rows.")] = 0,
    rope: RopeJson = None,
    json_output: JsonFlag = False,
) -> None:
    """Measure how far the probe flatters the selected heads on your prompts, and keep it as a calibration."""
    report = Reporter()
    shared = Processes(processes, ray)
    target = _target(out, domain)
    if policy not in ("priced", "certified"):
        raise InputError(f"policy {policy!r} has no calibration; pass priced or certified")
    if audit_rows < 0:
        raise InputError(f"audit_rows {audit_rows} must be at least 1, or 0 for all body rows")
    config = RouterConfig(
        policy=policy,
        **certified_mass(policy, tau),
        price=RouterConfig.price if price is None else price,
        segment_tokens=default_segment(False) if segment is None else segment,
        break_even_tokens=0,
        seed=seed,
    )
    config.check_runnable()
    scaling = None if rope is None else RopeScaling.parse(rope)
    lengths = length_buckets(*tokens)
    if fold_a < 1 or fold_b < 1:
        raise InputError(f"folds of {fold_a} and {fold_b} prompts are too small; use better 20 and 100")
    check_prompts(prompts)
    from routesparse.engine.calibrate.fit import Recipe, cut_folds
    from routesparse.engine.calibrate.measure import Ask, ask, opening, share_calibration
    from routesparse.engine.calibrate.prompts import document_groups
    from routesparse.engine.models.load import load_tokenizer
    from routesparse.engine.models.token_count import most_tokens

    if tokens[1] > (most := most_tokens(model, scaling)):
        raise InputError(f"prompts of {tokens[1]:,} tokens are longer than the model reads, {most:,}")
    tokenizer = load_tokenizer(model).tokenizer
    recipe = Recipe(target.stem, domain, config, lengths, (fold_a, fold_b), audit_rows, robust, profile)
    folds = cut_folds(document_groups(prompts, domain, tokenizer), recipe, tokenizer)
    report.line(f"loading model {model}")
    opened = opening(model, scaling)
    crew, count = shared.crew(opened)
    with Team(crew, count, report.line) as team:
        subject, config = ask(team, opened, Ask(config, segment is not None, profile))
        recipe = dataclasses.replace(recipe, config=config)
        report.line(
            f"{len(folds[0])} prompts to fit on, {len(folds[1])} to take delta from, by {count} on "
            f"{subject.device}"
        )
        made = share_calibration(team, opened, folds, recipe, subject)
    path = made.save(target.parent)
    if json_output:
        print_json(_summary(made, path))
    else:
        _print_summary(made, path)


def _target(out: Path | None, domain: str) -> Path:
    check_name(domain)
    if out is None:
        check_not_bundled(domain, ", or a file with --out")
    return json_target(out or paths.calibrations() / f"{domain}.json")


def _summary(made: Calibration, path: Path) -> dict[str, Any]:
    quality = {} if made.predictor is None else made.predictor.fit
    names = ("name", "domain", "model", "gate_threshold", "alpha")
    return {name: getattr(made, name) for name in names} | {
        "buckets": list(map(vars, made.buckets)),
        "documents": {fold: len(part["documents"]) for fold, part in made.folds.items()},
        "predictor": {k: quality[k] for k in ("r2", "mean_absolute_error", "candidates") if k in quality},
        "drift_prompts": None if made.drift is None else len(made.drift.distances),
        "path": str(path),
    }


def _print_summary(made: Calibration, path: Path) -> None:
    console = out_console()
    table = Table("tokens", "prompts", "documents", "units", "delta .9", "delta .95", "delta .99")
    for bucket in made.buckets:
        shown = [bucket.deltas[q] for q in ("0.9", "0.95", "0.99")]
        table.add_row(
            f"{bucket.min_tokens:,} to {bucket.max_tokens:,}",
            str(bucket.prompts),
            str(bucket.documents),
            f"{bucket.units:,}",
            *("none" if delta is None or math.isinf(delta) else f"{delta:.4f}" for delta in shown),
        )
    console.print(table)
    gate = "lambda of each head's own" if made.gate_threshold is None else f"lambda {made.gate_threshold:.3f}"
    told = "no error predictor"
    if made.predictor is not None:
        r2 = made.predictor.fit.get("r2")
        told = "predictor r2 " + ("not measured (one document)" if r2 is None else f"{r2:.2f}")
    console.print(
        f"{gate}, alpha {made.alpha:.2f}, {told}; none: too few prompts for that q\n{path}",
        markup=False,
        soft_wrap=True,
    )
