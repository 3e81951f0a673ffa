"""``routesparse ingest``, ``runs``, ``export`` and ``report``: on bundles in folders; the database is never opened.

The web process owns the database and takes in whatever appears in the spool, so these commands work whether it
runs or not.
"""

from __future__ import annotations

import lzma
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from routesparse.engine import paths
from routesparse.engine.cli.options import JsonFlag, Replace
from routesparse.engine.cli.output import Reporter, out_console, print_json
from routesparse.engine.errors import BundleError, InputError, StoreError
from routesparse.engine.files import plain_files
from routesparse.engine.rows import is_layer_uncertified, is_uncertified

if TYPE_CHECKING:
    from routesparse.engine.store.bundle import Manifest

MAX_UNPACKED_BYTES = 1 << 30
RunId = Annotated[str, typer.Argument(help="A run id, its beginning, or its end as the dashboard prints it.")]


def ingest(
    bundles: Annotated[list[Path], typer.Argument(help="Bundle folders, or zip files made by export.")],
    json_output: JsonFlag = False,
) -> None:
    """Check run bundles and put them into the spool, where the web process takes them in; all or none."""
    from routesparse.engine.store import bundle

    report = Reporter()
    with tempfile.TemporaryDirectory() as scratch:
        checked = []
        for place, path in enumerate(bundles):
            report("checking bundles", place + 1, len(bundles))
            folder = _unpacked(path, Path(scratch) / str(place)) if path.suffix == ".zip" else path
            manifest, data = bundle.verified_tables(folder)
            known = next((path for _, path in _bundles() if path.name == manifest.run_id), None)
            if known is not None and bundle.verify_bundle(known).digest != manifest.digest:
                raise BundleError(
                    f"run {manifest.run_id} is already there with other content; keep one of them"
                )
            checked.append((folder, manifest, data[manifest.head]["owner"][0].as_py(), known))
        results = [
            {
                "run_id": manifest.run_id,
                "bundle": str(known or _copy(folder, manifest)),
                "new": known is None,
                "owner": owner,
            }
            for folder, manifest, owner, known in checked
        ]
    if json_output:
        print_json({"bundles": results})
        return
    for result in results:
        print(f"{result['run_id']}  {'put into the spool' if result['new'] else 'already there'}")
        if result["owner"] is not None:
            report.warn(
                f"run {result['run_id']} was made under a login; pages show it under the same login only"
            )


def runs(
    limit: Annotated[int, typer.Option(help="Show the newest N.", min=1)] = 50, json_output: JsonFlag = False
) -> None:
    """List the runs and certificates in the spool and in the web process's folder, newest first."""
    found = sorted(_runs(), key=lambda row: row.get("created_at", ""), reverse=True)[:limit]
    if json_output:
        print_json({"runs": found})
        return
    if not found:
        print(f"no runs yet in {paths.home()}; start with: routesparse analyze FILE")
        return
    table = Table(
        "run", "model", "prompt", "tokens", "policy", "tau", "density", "fell back", "mass < tau", "place"
    )
    table.columns[0].no_wrap = True
    for row in found:
        if "problem" in row:
            table.add_row(row["run_id"], "", row["problem"], "", "", "", "", "", "", row["place"])
            continue
        if row["kind"] == "certificate":
            told = f"certificate of {row['plan'] or row['function']}: {row['verdict']}"
            cells = (row["run_id"], row["model"], row["prompt_name"], f"{row['tokens']:,}", told)
            table.add_row(*cells, "-", "-", "-", "-", row["place"])
            continue
        density = "-" if row["density"] is None else f"{row['density']:.3f}"
        names = (row["run_id"], row["model"], row["prompt_name"])
        fell_back = f"{row['dense_fallback_units']} of {row['units']}"
        uncertified = f"{row['uncertified_units']} of {row['units']}"
        if row["uncertified_layers"]:
            uncertified += f", layers {row['uncertified_layers']}"
        # Of a priced run the layer's: its heads' own is only a floor.
        tau = f"{row['tau']:g}" if row["tau_layer"] is None else f"{row['tau_layer']:g} a layer"
        numbers = (f"{row['tokens']:,}", row["policy"], tau, density, fell_back, uncertified)
        table.add_row(*names, *numbers, row["place"])
    out_console().print(table)


def export(
    run_id: RunId,
    out: Annotated[Path | None, typer.Option(help="The zip file to write; default: RUN_ID.zip here.")] = None,
    without_text: Annotated[
        bool, typer.Option("--without-text", help="Leave the prompt's text out, as for a colleague.")
    ] = False,
    force: Replace = False,
    json_output: JsonFlag = False,
) -> None:
    """Check a run bundle and pack it into one zip file with a data dictionary; ingest reads it, here or elsewhere."""
    from routesparse.engine.export import archive

    folder = _resolve(run_id)
    target = _free_target(out, f"{folder.name}.zip", force)
    archive.write(folder, target, text=not without_text)
    text = archive.has_text(folder) and not without_text
    if json_output:
        size = target.stat().st_size
        print_json({"run_id": folder.name, "file": str(target), "bytes": size, "text": text})
        return
    print(target)
    if text:
        Reporter().line("the prompt's text is inside; --without-text leaves it out")


def report(
    what: Annotated[
        list[str],
        typer.Argument(
            help="A run id, its beginning, or its end as the dashboard prints it; or folders that `evaluate` wrote."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The HTML file to write; default: RUN_ID.html or evaluation.html here."),
    ] = None,
    text: Annotated[
        bool,
        typer.Option("--text", help="Show words of the prompt beside the worst rows and the next token."),
    ] = False,
    force: Replace = False,
    markdown: Annotated[Path | None, typer.Option(help="Evaluations: also as a Markdown page.")] = None,
    compact: Annotated[
        Path | None, typer.Option(help="Evaluations: also as the JSON file that the page Results reads.")
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Write a run, or evaluations, as one HTML page that opens without a server."""
    from routesparse.engine.export import archive, report_page

    if any((Path(name) / file).is_file() for name in what for file in ("job.json", "scores.json")):
        if text:
            raise InputError("--text is for a run: an evaluation's report holds no prompts; leave it out")
        _report_evaluations(what, out, markdown, compact, force=force, json_output=json_output)
        return
    if len(what) > 1 or markdown or compact:
        raise InputError(
            f"{what[0]} is no folder of an evaluation; several of them, --markdown and --compact are for "
            "folders that `routesparse evaluate` wrote"
        )
    folder = _resolve(what[0])
    target = _free_target(out, f"{folder.name}.html", force)
    page = report_page.of_bundle(folder, words=text)
    with archive.replacing(target) as partial:
        partial.write_text(page, "utf-8")
    if json_output:
        print_json({"run_id": folder.name, "file": str(target), "bytes": target.stat().st_size})
    else:
        print(target)


def _report_evaluations(
    what: list[str],
    out: Path | None,
    markdown: Path | None,
    compact: Path | None,
    *,
    force: bool,
    json_output: bool,
) -> None:
    from routesparse.engine.export import archive
    from routesparse.engine.lab.runner.score import gather
    from routesparse.engine.results import evaluations, report

    targets = [_free_target(out, "evaluation.html", force)]
    targets += [_free_target(path, path.name, force) for path in (markdown, compact) if path is not None]
    command = " ".join(["routesparse report", *(Path(name).name for name in what)])
    command += "".join(
        f" --{name} {path.name}" for name, path in (("markdown", markdown), ("compact", compact)) if path
    )
    text = evaluations.compact(gather([Path(name) for name in what]), command)
    found = evaluations.of_text(text)
    pages = [report.page(found, command)]
    pages += [report.markdown(found, command)] if markdown else []
    pages += [text] if compact else []
    for target, content in zip(targets, pages, strict=True):
        with archive.replacing(target) as partial:
            partial.write_text(content, "utf-8")
    if json_output:
        print_json({"evaluations": [one.suite for one in found], "files": list(map(str, targets))})
    else:
        print(*targets, sep="\n")


def _free_target(out: Path | None, name: str, force: bool) -> Path:
    """Where a file may be written; ``name`` in the folder that ``out`` names. InputError: it exists."""
    target = out or Path(name)
    if target.is_dir():
        target = target / name
    if target.exists() and not force:
        raise InputError(f"{target} exists; pass another --out, or --force to replace it")
    return target


def _bundles() -> Iterator[tuple[str, Path]]:
    """Finished ones: in the spool, and in the folder into which the web process moves them."""
    for place, folder in (("spool", paths.spool()), ("store", paths.bundles())):
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.is_dir() and not path.name.startswith(".") and path.name != "rejected":
                    yield place, path


def _runs() -> Iterator[dict[str, Any]]:
    """One dict per bundle: its row of totals, or what is wrong with it. Checksums are left to ingest and export."""
    from routesparse.engine.store import bundle

    for place, path in _bundles():
        try:
            row = bundle.head_of(path)
            known = {"kind": "certificate", **row} if "verdict" in row else {"kind": "run", **_run(path, row)}
        except BundleError as error:
            known = {"run_id": path.name, "problem": str(error)}
        yield {**known, "place": place, "bundle": str(path)}


def _run(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    """A run's row with what ran without certified mass. Errors: BundleError."""
    from routesparse.engine.store import bundle, tables

    units = bundle.read_table(path, "head_choice").to_pylist()
    layers = tables.from_arrow("layer_run", bundle.read_table(path, "layer_run"))
    uncertified = sum(is_uncertified(unit["pattern"], unit["lower_mass"], row["tau"]) for unit in units)
    sparse = {unit["layer"] for unit in units if unit["pattern"] != "dense"}
    missed = [
        is_layer_uncertified(each.lower_mass, row["tau_layer"], each.layer in sparse) for each in layers
    ]
    layers_missed = None if row["tau_layer"] is None else sum(missed)
    return {**row, "uncertified_units": uncertified, "uncertified_layers": layers_missed}


def _resolve(text: str) -> Path:
    """The run with this id, or the only one that begins or ends so: pages print the end. Errors: InputError."""
    matches = {
        path.name: path for _, path in _bundles() if path.name.startswith(text) or path.name.endswith(text)
    }
    if text in matches:
        return matches[text]
    if len(matches) == 1:
        return next(iter(matches.values()))
    if matches:
        raise InputError(f"run {text!r} is ambiguous: {', '.join(sorted(matches)[:4])}; pass more of the id")
    raise InputError(
        f"no run is called {text!r}; `routesparse runs` lists the {sum(1 for _ in _bundles())} known ones"
    )


def _copy(folder: Path, manifest: Manifest) -> Path:
    """Copy into the spool so that a reader sees all of the bundle or nothing."""
    from routesparse.engine.store import bundle

    target = paths.spool() / manifest.run_id
    try:
        bundle.copy(folder, manifest, target)
    except OSError as error:
        raise StoreError(
            f"run {manifest.run_id} was not copied into {target.parent}: {error.strerror or error}"
        ) from error
    return target


def _unpacked(file: Path, scratch: Path) -> Path:
    """The bundle folder inside a zip file: of its one folder, the files that a bundle may have."""
    folder = scratch / "bundle"
    folder.mkdir(parents=True)
    try:
        with plain_files.open_plain(file) as handle, zipfile.ZipFile(handle) as archive:
            _unpack(archive, file.name, folder)
    except FileNotFoundError:
        raise BundleError(f"{file} does not exist; pass a bundle folder or a zip file") from None
    except OSError as error:
        raise BundleError(f"{file.name} can't be unpacked ({error.strerror or error})") from error
    # What a foreign archive makes zipfile raise: encrypted, an unknown method, damaged, nonsense in its fields.
    except (
        *(zipfile.BadZipFile, RuntimeError, NotImplementedError, zlib.error, lzma.LZMAError, EOFError),
        *(ValueError, KeyError, IndexError, OverflowError, struct.error),
    ) as error:
        told = f"{type(error).__name__}: {error}"
        raise BundleError(
            f"{file.name} is not a readable zip file ({told}); pack the bundle again"
        ) from error
    return folder


def _unpack(archive: zipfile.ZipFile, name: str, folder: Path) -> None:
    """Errors: BundleError for another shape than ``export`` packs, or too much; those of zipfile."""
    from routesparse.engine.store import bundle, tables

    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    # zipfile reads no more of an entry than the size that it declares.
    if sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
        raise BundleError(f"{name} unpacks to more than {MAX_UNPACKED_BYTES >> 20} MB; it is no bundle")
    tops = {entry.filename.split("/")[0] for entry in entries}
    if len(tops) != 1 or any(entry.filename.count("/") != 1 for entry in entries):
        raise BundleError(f"{name} is not a bundle; expected one folder as `routesparse export` packs it")
    known = {**tables.TABLES, **tables.CERTIFICATE_TABLES}
    taken = {bundle.MANIFEST, *(f"{table}.parquet" for table in known)}
    for entry in entries:
        target = folder / entry.filename.split("/")[1]
        if target.name not in taken:
            continue
        if target.exists():
            raise BundleError(f"{name} holds {target.name} twice; pack the bundle again")
        with archive.open(entry) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)  # a piece at a time: read() makes room for what an entry claims
