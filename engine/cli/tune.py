"""``routesparse tune``: the cheapest price that keeps a quality target on a domain's texts."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from routesparse.engine import paths
from routesparse.engine.calibrate.questions import are_questions, read_questions
from routesparse.engine.calibrate.tuning_rows import WINDOW, read_measured
from routesparse.engine.calibration import tuned
from routesparse.engine.calibration.choose import LEAST_CLUSTERS, Row, Target, check_kind, choose
from routesparse.engine.calibration.folders import LEAST_TOKENS, check_name
from routesparse.engine.calibration.tuned import Part, TunedPrice
from routesparse.engine.cli.checks import check_prompts, json_target, writable_folder
from routesparse.engine.cli.options import JsonFlag, ModelName, ProcessCount, RayAddress, RopeJson
from routesparse.engine.cli.output import Reporter, out_console, print_json
from routesparse.engine.config import Confidence, HeadFloors, argument
from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import Team, failures
from routesparse.engine.errors import InputError, RouteSparseError
from routesparse.engine.models.rope import RopeScaling

if TYPE_CHECKING:
    from routesparse.engine.calibrate.tuning_windows import Drawn

ALL = "mixed"  # the domain that is the mean of all in the rows
# Options that only measuring reads.
_MEASURING = ("model", "windows", "tokens", "seed", "processes", "ray", "rope")


def tune(
    context: typer.Context,
    domain: Annotated[str, typer.Argument(help="What the texts are, such as code; mixed: all in --rows.")],
    target: Annotated[
        str,
        typer.Option(
            help="kl=0.01 or nats=0.01, in nats a token, or agreement=0.97; of questions answer=0.05, in nats a token."
        ),
    ] = "kl=0.01",
    confidence: Annotated[float, typer.Option(help="That the target is kept, .5 to .9999.")] = 0.95,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Text file, or folder of them, repeatable: measure on these. A folder is a domain. Or .jsonl files "
            'with a question a line, {"prompt": ..., "answer": ...}, and "document" where some share one.'
        ),
    ] = None,
    rows: Annotated[
        list[Path] | None,
        typer.Option(
            help="Measured rows, repeatable; new ones are appended to the first. Default: in the home."
        ),
    ] = None,
    model: ModelName = "demo",
    windows: Annotated[
        int, typer.Option(help="Windows to measure of each domain, or questions of all.")
    ] = 96,
    tokens: Annotated[int, typer.Option(help="Of a window; half where a document is shorter.")] = 16_384,
    prices: Annotated[
        str | None,
        typer.Option(
            help="Prices to measure and test, such as 0.25,0.5,1; default: .18 to 2 in 8 steps, or all in --rows."
        ),
    ] = None,
    robust: Annotated[
        bool, typer.Option("--robust", help="Keep it in each domain by itself, not in their mean.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Of the result; default: DOMAIN-kl or the like.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write; default: <home>/calibrations/tuned/NAME.json.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the windows.")] = 0,
    processes: ProcessCount = None,
    ray: RayAddress = None,
    rope: RopeJson = None,
    json_output: JsonFlag = False,
) -> None:
    """Choose the cheapest price that keeps a loss against dense attention below a target."""
    report = Reporter()
    wanted = Target.parse(target)
    argument(Confidence, confidence, "confidence")
    called = name or f"{domain}-{wanted.measure}"
    check_name(called)
    path = _target(out, called)
    files = list(rows or [paths.home() / "tuning" / f"{called}.jsonl"])
    grid = None if prices is None else numbers(prices)
    command = command_of(context, "tune", "domain")
    drawn = None
    if prompts:
        if (asked := are_questions(prompts)) and _is_given(context, "tokens"):
            raise InputError("questions are measured whole; leave --tokens out")
        check_kind(asked, wanted)  # before minutes are spent on measuring
        scaling = None if rope is None else RopeScaling.parse(rope)
        load = Loading(model, scaling, Processes(processes, ray))
        drawn, grid = measure(report, prompts, domain, files[0], load, windows, tokens, grid, seed, command)
    elif unread := [f"--{one}" for one in _MEASURING if _is_given(context, one)]:
        raise InputError(
            f"{', '.join(unread)} can't change what was measured; leave it out, or pass --prompts"
        )
    found, headers = read_measured([file for file in files if rows or file.exists()], report.warn)
    if drawn is not None:
        keys = {one.key for one in drawn}
        found = [row for row in found if tuple(row.get(part) for part in WINDOW) in keys]
        domains = sorted({row["domain"] for row in found})
    else:
        domains = _domains(found, domain, robust)
    made = choose(
        _priced(found, domains, grid),
        headers[0],
        wanted,
        confidence,
        name=path.stem,
        domain=domain,
        domains=domains,
        robust=robust,
        measured=[header["command"] for header in headers],
        command=command,
    )
    if path.exists():
        report.line(f"{path} is replaced")
    made.save(path)
    if json_output:
        print_json({**dataclasses.asdict(made), "says": made.says, "path": str(path)})
    else:
        _print(made, path)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def command_of(context: typer.Context, name: str, argument: str) -> str:
    """The command that makes this again: all that was given, without the folders of one machine."""
    words = ["routesparse", name, str(context.params[argument])]
    for option, value in context.params.items():
        if option in (argument, "json_output", "processes", "ray") or not _is_given(context, option):
            continue
        option = f"--{option}"
        if value is True:
            words.append(option)
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [option, Path(one).name if Path(str(one)).is_absolute() else str(one)]
    return shlex.join(words)


def _domains(rows: Sequence[Row], domain: str, robust: bool) -> list[str]:
    """Those of the rows that were asked for. Errors: InputError for one that was not measured."""
    measured = sorted({str(row["domain"]) for row in rows})
    if domain in measured:
        return [domain]
    if domain != ALL and not robust:
        raise InputError(
            f"domain {domain[:80]!r} was not measured, only {', '.join(measured) or 'none'}; pass one of these, "
            f"{ALL} for their mean, or --robust for each of them"
        )
    return measured


def _priced(rows: Sequence[Row], domains: Sequence[str], prices: Sequence[float] | None) -> list[Row]:
    """The rows of these prices. Errors: InputError for one that was not measured on every domain."""
    for one in domains:
        missing = sorted(set(prices or ()) - {row["price"] for row in rows if row["domain"] == one})
        if missing:
            raise InputError(
                f"price {missing[0]:g} was not measured on {one}; pass --prompts, or leave it out of --prices"
            )
    return [row for row in rows if prices is None or row["price"] in prices]


def _target(out: Path | None, name: str) -> Path:
    if out is None or out.resolve().parent == tuned.own_folder().resolve():
        tuned.check_free(name if out is None else out.stem)
    return json_target(out or tuned.own_folder() / f"{name}.json")


@dataclasses.dataclass(frozen=True)
class Loading:
    """Which model, with which positions, in which processes."""

    model: str
    rope: RopeScaling | None
    processes: Processes


def measure(
    report: Reporter,
    prompts: Sequence[Path],
    domain: str,
    file: Path,
    wanted: Loading,
    windows: int,
    tokens: int,
    prices: Sequence[float] | None,
    seed: int,
    command: str,
    floors_of: Callable[[Sequence[Drawn]], HeadFloors | None] | None = None,
) -> tuple[list[Drawn], list[float]]:
    """Append what the file lacks; the windows that were drawn, and the prices.

    floors_of: finds, before anything else is measured, the head floors that all windows are routed by.
    """
    if file.suffix == ".gz":
        raise InputError(f"{file} is compressed and can't be appended to; pass a .jsonl file as first --rows")
    if windows < 2 or tokens < LEAST_TOKENS:
        raise InputError(
            f"windows {windows}, tokens {tokens}: use at least 2 windows of {LEAST_TOKENS:,} tokens"
        )
    check_prompts(prompts)
    writable_folder(file.parent)
    from routesparse.engine.calibrate import one_profile, tuning_windows
    from routesparse.engine.calibrate.prompts import document_groups
    from routesparse.engine.models.load import load_tokenizer
    from routesparse.engine.models.token_count import most_tokens

    grid = tuning_windows.check_prices(tuning_windows.GRID if prices is None else prices)
    tokenizer = load_tokenizer(wanted.model).tokenizer
    drawn: list[Drawn] = []
    questions = are_questions(prompts)
    if questions:
        drawn = _questions(report, prompts, domain, tokenizer, windows)
        tokens = max(one.window.tokens + len(one.window.answer_ids) for one in drawn)
    if tokens > (most := most_tokens(wanted.model, wanted.rope)):
        raise InputError(f"windows of {tokens:,} tokens are longer than the model reads, {most:,}")
    if not questions:
        # Nothing is known of what belongs together but the documents themselves.
        drawn = [
            one
            for group, part in document_groups(prompts, domain, tokenizer).items()
            for one in tuning_windows.draw_windows(
                part, {d.name: f"{group}/{d.name}" for d in part}, tokens, windows, tokenizer, seed
            )
        ]
    _check_enough(drawn, questions)
    head_floors = None if floors_of is None else floors_of(drawn)
    report.line(f"loading model {wanted.model}")
    asked = (wanted.model, wanted.rope, seed, "calibration", tokens, command)
    opened = tuning_windows.Asked(*asked, captured=not questions, head_floors=head_floors).opened
    crew, count = wanted.processes.crew(opened)
    with Team(crew, count, report.line) as team:
        first = one_profile.ask(team, opened)
        assert first is not None  # no time limit is set here
        outcome = tuning_windows.append(team, opened, drawn, grid, first, file)
    if outcome.failed:
        raise RouteSparseError(f"{failures(outcome, 'windows')}; the same command tries again")
    return drawn, grid


def _check_enough(drawn: Sequence[Drawn], questions: bool) -> None:
    """What ``choose`` would refuse after minutes of measuring. Errors: InputError."""
    for domain in sorted({one.window.domain for one in drawn}):
        counted = Counter(one.cluster for one in drawn if one.window.domain == domain)
        if questions and len(counted) < 2:
            raise InputError(
                "the questions are all of one document; pass --prompts with questions about others too"
            )
        if not questions and len(counted) < LEAST_CLUSTERS and min(counted.values()) < 2:
            raise InputError(
                f"{len(drawn)} windows of {len(counted)} documents of {domain!r}: fewer than {LEAST_CLUSTERS} "
                f"documents need at least 2 windows each; pass --windows {2 * len(counted)}, or more --prompts"
            )


def _questions(
    report: Reporter, prompts: Sequence[Path], domain: str, tokenizer: Any, count: int
) -> list[Drawn]:
    """Those of files of questions that are measured. Errors: CalibrationError."""
    from routesparse.engine.calibrate.tuning_windows import draw_questions

    found = [one for path in prompts for one in read_questions(path, domain, tokenizer)]
    drawn = draw_questions(found, count)
    if len(drawn) < len(found):
        report.line(f"{len(drawn)} of {len(found)} questions are measured; --windows sets how many")
    return drawn


def numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"prices {text[:40]!r} are no numbers; pass some like 0.25,0.5,1") from None


def _print(made: TunedPrice, path: Path) -> None:
    console = out_console()
    table = Table("price", "loss", "bound", "largest", "area", "kept")
    for row in made.tested:
        numbers: list[Any] = [row.loss, row.bound, row.largest, row.area]
        table.add_row(f"{row.price:g}", *(f"{value:.4f}" for value in numbers), "yes" if row.kept else "no")
    console.print(table)
    if any(row.kept and row.price > made.price for row in made.tested):
        console.print(
            f"price {made.price:g} reads least of those that were kept; a higher one gives heads more again"
        )
    for part in made.parts:
        console.print(counted(part, made.units))
    console.print(f"{made.says}\n{path}", soft_wrap=True)


def counted(part: Part, units: str) -> str:
    """How much of a domain was measured, and what its bound is over: every question of RULER is its own document."""
    if part.unit == "document" and part.clusters == part.documents == part.windows:
        return f"{part.domain}: {part.windows} {units}, each its own document"
    return f"{part.domain}: {part.windows} {units} of {part.documents} documents; unit: {part.unit}"
