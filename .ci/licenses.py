"""``data/LICENSES.md``: the licence of every package in requirements.lock, as its own metadata state it.

    make licenses

pip is asked what it would install on this machine, PyTorch's CUDA build included; packages that only other systems
need are named without a licence.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lock import LOCK, REQUIREMENTS, ROOT, entries, follows_torch, normal
from packaging.requirements import Requirement

OUT = ROOT / "data" / "LICENSES.md"
LONGEST = 250  # characters of a licence's name; some packages put its whole text there
HEAD = """\
# Licences of what is installed

Made by `make licenses` from the metadata of the {count} packages that `requirements.lock` names; RouteSparse itself
is Apache-2.0, and [data](README.md) names the sources of what ships here. *Run* is what the dashboard, the command line
and the scorers of the suites need, *CUDA* what only PyTorch's build for NVIDIA GPUs needs on Linux, *development* the
rest. Nothing of these packages is in this repository.

| package | version | licence | for |
|---|---|---|---|
"""


def main() -> None:
    """Write the table."""
    locked = entries(LOCK.read_text("utf-8"))
    found = {normal(item["name"]): item for item in would_install(locked)}
    needed = closure(runtime(), found)
    lines = []
    for name, entry in locked.items():
        version = re.split(r"==|[ ;\\]", entry)[1]
        use = (
            "CUDA" if follows_torch(name) and name != "torch" else "run" if name in needed else "development"
        )
        lines.append(f"| {name} | {version} | {licence(found.get(name))} | {use} |\n")
    OUT.write_text(HEAD.format(count=len(lines)) + "".join(lines), "utf-8")


def would_install(locked: dict[str, str]) -> list[dict[str, Any]]:
    """The metadata of each package for this machine."""
    with tempfile.TemporaryDirectory() as scratch:
        pins, report = Path(scratch, "pins.txt"), Path(scratch, "report.json")
        pins.write_text("".join(re.split(r" *\\\n", entry)[0] + "\n" for entry in locked.values()))
        options = [
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--no-deps",
            "--no-build-isolation",
            "--use-pep517",
        ]
        command = [sys.executable, "-m", "pip", "install", *options, "-r", str(pins), "--report", str(report)]
        subprocess.run(command, check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
        return [item["metadata"] for item in json.loads(report.read_text("utf-8"))["install"]]


def runtime() -> set[str]:
    """What requirements.txt asks for above its development tools."""
    text = REQUIREMENTS.read_text("utf-8").partition("# Development")[0]
    return {normal(re.split(r"[=;]", line)[0]) for line in text.splitlines() if "==" in line}


def closure(names: set[str], found: dict[str, dict[str, Any]]) -> set[str]:
    """These packages and all that they need here."""
    reached: set[str] = set()
    while names:
        reached |= names
        wanted = [
            Requirement(text) for name in names for text in found.get(name, {}).get("requires_dist", ())
        ]
        here = {
            normal(want.name) for want in wanted if not want.marker or want.marker.evaluate({"extra": ""})
        }
        names = here - reached
    return reached


def licence(metadata: dict[str, Any] | None) -> str:
    """The licence's name: the SPDX expression, else the classifiers, else a short text."""
    if metadata is None:
        return "not needed on Linux"
    marked = [
        text.rpartition(" :: ")[2]
        for text in metadata.get("classifier", ())
        if text.startswith("License ::") and text != "License :: OSI Approved"
    ]
    stated = [
        line for line in metadata.get("license", "").splitlines() if line.strip() and ".txt" not in line
    ][:1]
    words = [metadata.get("license_expression", ""), ", ".join(marked), *stated]
    short = [word for word in words if 0 < len(word) <= LONGEST]
    return short[0].replace("|", "/") if short else "see the package"


if __name__ == "__main__":
    main()
