"""``routesparse analyze``: one prompt, or a folder of them."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from routesparse.engine import shared_folder
from routesparse.engine.bulk.asked import Analyst, Asked
from routesparse.engine.calibration import tuned
from routesparse.engine.cli.analysis_text import no_promise, print_folder, print_summary, tell, warnings
from routesparse.engine.cli.checks import read_prompt_for, writable_folder
from routesparse.engine.cli.options import (
    BundleFolder,
    CertifiedMass,
    JsonFlag,
    ModelName,
    ProcessCount,
    ProfileName,
    PromptNumber,
    RayAddress,
    RopeJson,
    Segment,
)
from routesparse.engine.cli.output import Reporter, analysis_object, print_json
from routesparse.engine.config import (
    AuditDepth,
    BoundName,
    LatencyBudget,
    Policy,
    Price,
    ProbeMode,
    RouterConfig,
    argument,
    certified_mass,
    default_segment,
    parse_trace,
)
from routesparse.engine.crew.crews import Processes
from routesparse.engine.errors import InputError
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.prompts.text import PromptText
from routesparse.engine.rows import RunRecord


def analyze(
    file: Annotated[
        Path,
        typer.Argument(
            help="A text file in UTF-8: the prompt. Or a .jsonl file, read as New run does. Or a folder of .txt and "
            ".md files, a run each."
        ),
    ],
    model: ModelName = "demo",
    number: PromptNumber = None,
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
    tau: CertifiedMass = None,
    loss: Annotated[
        float | None,
        typer.Option(
            help="Mean loss to aim at, nats a token, by the model's fit for --domain; default 0.01 where it has one."
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            help="Policy priced: what a block must be worth, in place of --loss; higher reads less."
        ),
    ] = None,
    segment: Segment = None,
    probe: Annotated[
        ProbeMode, typer.Option(help="Score rows against all keys, or against pooled ones.")
    ] = "exact",
    audit: Annotated[
        AuditDepth, typer.Option(help="Compare with dense attention: not at all, on sampled rows, on all.")
    ] = "none",
    out: BundleFolder = None,
    profile: ProfileName = "auto",
    break_even: Annotated[
        int | None, typer.Option(help="Tokens below which dense runs untouched; default: from the profile.")
    ] = None,
    domain: Annotated[str | None, typer.Option(help="A label for grouping runs, such as code.")] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            help="Tokens whose rows are kept key by key in every head, such as 120,4071; 16 at most."
        ),
    ] = None,
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
    processes: ProcessCount = None,
    ray: RayAddress = None,
    rope: RopeJson = None,
    json_output: JsonFlag = False,
) -> None:
    """Prefill one prompt with routing, or each of a folder, and write its run bundle: every choice, and why."""
    report = Reporter()
    report.line(f"reading {file.name}")
    from routesparse.engine.prompts.text import check_domain

    crew = Processes(processes, ray)
    check_domain(domain)
    scaling = None if rope is None else RopeScaling.parse(rope)
    many = file.is_dir()
    if not many and (processes, ray) != (None, None):
        raise InputError(
            f"--processes and --ray share a folder's prompts, {file.name} is one; leave them out"
        )
    if many and number is not None:
        raise InputError(f"--number is for a .jsonl file, {file.name} is a folder; leave it out")
    text = None if many else read_prompt_for(model, file, number, report)
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
    target = writable_folder(shared_folder.check(out))
    asked = _checked(
        Asked(
            model,
            config,
            own_segment=segment is not None,
            own_price=price is not None,
            loss=loss,
            calibration=calibration,
            profile=profile,
            audit=audit,
            trace_tokens=parse_trace(trace),
            measure_dense=measure_dense,
            check_answer=not no_answer_check,
            keep_text=not no_text,
            domain=domain,
            force=force,
            rope=scaling,
        ),
        price,
    )
    if text is None:
        _folder(report, file, asked, target, crew, json_output)
    else:
        _prompt(report, text, asked, target, json_output)


def _checked(asked: Asked, price: float | None) -> Asked:
    """What can be refused before a model is loaded. price: as given beside a tuned price. Errors: InputError."""
    tuned_price = None if asked.calibration is None else tuned.find(asked.calibration)
    if tuned_price is not None:
        config = tuned_price.applied(asked.config, price)
        asked = dataclasses.replace(asked, config=config, calibration=None, tuned_price=tuned_price)
    if asked.loss is not None:
        argument(Price, asked.loss, "loss")
        if price is not None or tuned_price is not None or asked.config.policy != "priced":
            raise InputError("--loss sets the price; leave --price, a tuned price and another --policy out")
    predicts = False
    if asked.calibration is not None:
        from routesparse.engine.calibration.artifact import load_calibration

        predicts = load_calibration(asked.calibration).predictor is not None
    asked.config.check_runnable(predicts)
    if asked.profile != "auto":
        from routesparse.engine.profiles.files import load_profile

        load_profile(asked.profile)
    return asked


def _prompt(report: Reporter, text: PromptText, asked: Asked, target: Path, json_output: bool) -> None:
    from routesparse.engine.models.token_count import refuse_before_loading

    refuse_before_loading(asked.model, text, asked.rope)
    report.line(f"loading model {asked.model}")
    from routesparse.engine.models.load import load_model
    from routesparse.engine.prompts.text import tokenize

    loaded = load_model(asked.model, rope=asked.rope)
    prompt = tokenize(text, loaded.tokenizer, loaded.max_tokens)
    if asked.tuned_price is not None:
        config = asked.config_on(loaded)
        tell(report, asked.tuned_price, loaded.revision, config, prompt.tokens, asked.force)
    report.line(
        f"{prompt.tokens:,} tokens, {loaded.layers} layers of {loaded.heads} heads on {loaded.device}"
    )
    from routesparse.engine.analyze import analyze_prompt
    from routesparse.engine.store.bundle import write_bundle

    analyst = Analyst(asked, loaded, analyze_prompt)
    if analyst.told is not None:
        report.line(analyst.told)
    with report.bars():
        record = analyst(prompt, progress=report)
    bundle = write_bundle(record, target)
    for told in warnings(record, asked.config.fallback_limit):
        report.warn(told)
    if json_output:
        print_json(analysis_object(record, bundle))
    else:
        print_summary(record, bundle)


def _warned(asked: Asked, record: RunRecord) -> list[str]:
    """What one prompt alone would be warned of."""
    found = warnings(record, asked.config.fallback_limit)
    if asked.tuned_price is not None:
        run = record.run
        config = dataclasses.replace(
            asked.config, segment_tokens=json.loads(run.config_json)["segment_tokens"]
        )
        wrong = asked.tuned_price.mismatch(run.model_revision, config) or asked.tuned_price.beyond(run.tokens)
        if wrong is not None:
            found.insert(0, no_promise(asked.tuned_price, wrong))
    return found


def _folder(
    report: Reporter, folder: Path, asked: Asked, target: Path, crew: Processes, json_output: bool
) -> None:
    """Exit code 1 where a prompt failed."""
    from routesparse.engine.models.files import check_folder, resolve

    check_folder(resolve(asked.model)[0])
    report.line(f"loading model {asked.model}")
    from routesparse.engine.analyze import analyze_prompt
    from routesparse.engine.bulk.folder import analyze_folder

    made = analyze_folder(
        folder, asked, target, analyze_prompt, crew, report.line, functools.partial(_warned, asked)
    )
    if json_output:
        found: dict[str, Any] = dataclasses.asdict(made) | {"verdicts": made.verdicts}
        print_json(found)
    else:
        print_folder(made)
    if made.failed:
        raise typer.Exit(1)
