"""A run as one ZIP for somebody without RouteSparse: the bundle's files, what they are, and how to read them.

``<run_id>/manifest.json`` and the Parquet files are the bundle itself, so ``routesparse ingest`` reads the ZIP, too.
Equal runs give equal files. The ZIP is written beside its target and renamed: on an error nothing half made is left.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from routesparse.engine.certificate_rows import CertificateRow
from routesparse.engine.errors import BundleError, DiskFullError, InputError
from routesparse.engine.export import dictionary
from routesparse.engine.export.plain_text import visible
from routesparse.engine.files.plain_files import open_plain
from routesparse.engine.rows import RunRow
from routesparse.engine.store import bundle, tables
from routesparse.engine.store.bundle import Manifest

README, DICTIONARY, LOAD = "README.txt", "DATA_DICTIONARY.md", "load.py"
# What is left out with the prompt's text, besides the prompt.
_TEXTS = {
    "answer": ("text",),
    "continuation": ("same_text", "dense_text", "routed_text"),
    "named_row": ("text",),
}
_CHUNK_BYTES = 1 << 20
# Run where pandas and pyarrow are, without RouteSparse.
_LOAD_TEXT = '''"""Read this folder with pandas: python load.py, or: from load import tables, units."""
import json
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
manifest = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))
tables = {file.stem: pd.read_parquet(file) for file in sorted(HERE.glob("*.parquet"))}

if "run" in tables:
    # Every unit (a head of a layer in a segment) with its audit, where it was audited: NULL is "not measured", never 0.
    unit = ["run_id", "batch_index", "layer", "head", "segment"]
    names = {"rows": "audit_rows", "mass": "audited_mass", "min_mass": "audited_min_mass"}
    audit = tables["audit"].drop(columns="lower_mass").rename(columns=names)
    head, units = tables["run"].iloc[0], tables["head_choice"].merge(audit, on=unit, how="left")
    told = units.groupby("pattern")[["density", "lower_mass", "audited_mass", "mean_error"]].mean()
else:
    claims = tables["claim"]
    head = tables["certificate"].iloc[0]
    units = claims[claims["scope"] == "head"].sort_values("mean_error", ascending=False)
    told = units[["layer", "head", "mean_error", "mean_error_bound", "largest_error", "mass", "hit_rate"]].head(10)

if __name__ == "__main__":
    # Names come from files of others: what a terminal would obey becomes an escape.
    shown = head.reindex(["run_id", "prompt_name", "tokens", "layers", "heads", "verdict", "sentence"]).dropna()
    text = f"{shown.to_string()}\\n\\n{told}\\n"
    print("".join(c if c.isprintable() or c == "\\n" else ascii(c)[1:-1] for c in text))
'''


def has_text(folder: Path) -> bool:
    """Whether a bundle holds the prompt's text, or of a certificate that of the tokens that were named.

    Errors: BundleError.
    """
    if not (folder / "named_row.parquet").is_file():
        return (folder / "prompt.parquet").is_file()
    return bundle.read_table(folder, "named_row")["text"].null_count == 0


def write(folder: Path, target: Path, *, text: bool) -> Path:
    """Write the ZIP of a checked bundle; without ``text`` neither the prompt nor its next tokens, texts
    and numbers, are in it.

    Errors: BundleError for a bundle that is damaged or was changed meanwhile, DiskFullError, InputError where the
    target can't be written. The target is then as it was.
    """
    manifest = bundle.verify_bundle(folder)
    run = tables.from_arrow(manifest.head, bundle.read_table(folder, manifest.head))[0]
    # A run whose text was not kept still holds its next tokens.
    left_out = not (text and has_text(folder))
    changed = _without_text(folder, manifest) if left_out else {}
    with replacing(target) as partial, zipfile.ZipFile(partial, "w") as archive:
        for name in (bundle.MANIFEST, *sorted(manifest.files)):
            if name in changed:
                archive.writestr(_entry(manifest, name), changed[name])
            elif not (left_out and name == "prompt.parquet"):
                _copy(archive, folder, manifest, name)
        for name, content in (
            (README, _readme(run, text=has_text(folder) and text)),
            (DICTIONARY, dictionary.markdown(manifest.head)),
            (LOAD, _LOAD_TEXT),
        ):
            archive.writestr(_entry(manifest, name), content)
    return target


def _readme(run: RunRow | CertificateRow, *, text: bool) -> str:
    """README.txt: what this is, how it was made, and whether the prompt's text is inside."""
    versions = ", ".join(
        f"{name} {version}" for name, version in sorted(json.loads(run.versions_json).items())
    )
    kind, table = "run", "prompt"
    what = (
        "One prompt, prefilled by a language model with sparse attention: which attention head took which pattern, "
        "what was certified about it, and what an audit found."
    )
    if isinstance(run, CertificateRow):
        kind, table = "certificate", "named_row"
        what = (
            f"What the attention {run.subject} did to one prompt: random rows of every head, compared with exact "
            "attention. No routing was recorded."
        )
    lines = [
        f"RouteSparse {kind} {run.run_id}",
        "",
        what,
        "",
        f"made      {run.created_at}",
        f"prompt    {run.prompt_name}, {run.tokens:,} tokens",
        f"model     {run.model}, revision {run.model_revision}",
        f"device    {run.device}, {run.dtype}",
        f"versions  {versions}",
        f"commit    {run.git_commit or 'unknown'}",
        f"seed      {run.seed}",
        f"text      {f'the prompt’s text is inside ({table}.parquet)' if text else 'the prompt’s text is not inside'}",
        "",
        f"{DICTIONARY:20}every table and column: type, unit, meaning, what NULL means",
        f"{LOAD:20}reads all tables with pandas",
        f"{bundle.MANIFEST:20}settings, and the sha256 of each table",
        "*.parquet           the tables",
        "",
        f"`routesparse ingest FILE.zip` shows the {kind} on another machine's dashboard.",
    ]
    return "\n".join(visible(line) for line in lines) + "\n"


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary sibling that becomes the target when the block succeeds, and is removed when it does not.

    Errors: DiskFullError, InputError where the target can't be written.
    """
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        yield partial
        os.replace(partial, target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"the disk is full: {target} was not written, and nothing half made is left; free space and retry"
            ) from error
        raise InputError(
            f"{target} cannot be written ({error.strerror or error}); check its folder, or name another file"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _copy(archive: zipfile.ZipFile, folder: Path, manifest: Manifest, name: str) -> None:
    """A file of the bundle, a part at a time, held to its checksum once more."""
    digest = hashlib.sha256()
    with open_plain(folder / name, follow_links=False) as source:
        size = os.fstat(source.fileno()).st_size
        with archive.open(_entry(manifest, name), "w", force_zip64=size >= zipfile.ZIP64_LIMIT) as sink:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)
    if digest.hexdigest() != manifest.files.get(name, manifest.digest):
        raise BundleError(f"{folder.name}/{name} changed while it was exported; export it again")


def _without_text(folder: Path, manifest: Manifest) -> dict[str, bytes]:
    """The files that differ where the text is left out: how the prompt goes on, and the manifest of what is there."""
    files = {
        name: dict(entry) for name, entry in manifest.values["files"].items() if name != "prompt.parquet"
    }
    changed: dict[str, bytes] = {}
    for table, texts in _TEXTS.items():
        name = f"{table}.parquet"
        if name not in files:
            continue
        data = bundle.read_table(folder, table)
        for column in texts:
            place = data.schema.get_field_index(column)
            field = data.schema.field(place)
            data = data.set_column(place, field, pa.nulls(data.num_rows, field.type))
        if table == "answer":  # with the model's tokenizer, a number is its text
            place = data.schema.get_field_index("token_id")
            data = data.set_column(place, data.schema.field(place), data["dense_rank"])
        sink = pa.BufferOutputStream()
        pq.write_table(data, sink, compression="zstd")
        content = changed[name] = sink.getvalue().to_pybytes()
        files[name] |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    values = {**manifest.values, "files": files}
    changed[bundle.MANIFEST] = (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()
    return changed


def _entry(manifest: Manifest, name: str) -> zipfile.ZipInfo:
    """Fixed times make equal bundles equal files; Parquet is compressed already, texts are small."""
    return zipfile.ZipInfo(f"{manifest.run_id}/{name}")
