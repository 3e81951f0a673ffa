"""``requirements.lock``: every file that may be installed, by its sha256; ``requirements.txt`` says what we ask for.

    .venv/bin/python .ci/lock.py install     # the Makefile's set-up
    make lock                                # after a change of requirements.txt

Everything but PyTorch is installed from the lock with pip's ``--require-hashes``. PyTorch has several builds of one
version (for CUDA, for CPUs), which only some machines can have, and each needs other packages: pip chooses the build,
and its files are compared with the lock once they are there, before anything imports them. A build that the lock does
not know is taken off again; one that stood in the environment before is left alone. Standard library only.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
REQUIREMENTS = ROOT / "requirements.txt"
LEAST_PYTHON = "3.11"
# PyTorch's own builds for CPUs, which its index has beside those of the package index: version -> sha256.
CPU_BUILDS = {
    "2.13.0": (
        # torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
    ),
}
HEADER = """\
# Every package that make run installs, for Linux, macOS and Windows, Python {python} and newer, with the sha256 of each
# of its files. Made by `make lock`; .ci/lock.py says how it is used.
"""


def entries(text: str) -> dict[str, str]:
    """Package name -> its lines of a lock, from ``name==version`` to the last hash."""
    blocks = re.findall(r"^[a-z0-9].*?(?=^[a-z0-9]|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return {normal(re.split(r"[=\[ ]", block, maxsplit=1)[0]): block for block in blocks}


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def hashes(entry: str) -> set[str]:
    """The sha256 of each file that an entry allows."""
    return set(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))


def follows_torch(name: str) -> bool:
    """Whether the package is PyTorch, or one that only its CUDA build needs."""
    return name == "torch" or name.startswith(("nvidia-", "cuda-"))


def install() -> int:
    """Install what the lock names into this Python's environment; the exit code."""
    locked = entries(LOCK.read_text("utf-8"))
    # It builds the packages that come as source, this repository among them.
    builder = locked.pop("setuptools")
    late = {name: entry for name, entry in locked.items() if follows_torch(name)}
    with tempfile.TemporaryDirectory() as scratch:
        report, pins = Path(scratch, "report.json"), Path(scratch, "pins.txt")
        pins.write_text("".join(re.split(r" *\\\n", entry)[0] + "\n" for entry in late.values()))
        packages = [entry for name, entry in locked.items() if name not in late]
        for step, part in enumerate(([builder], packages), 1):
            print(f"{step} of 3: {len(part)} packages", flush=True)
            hashed = Path(scratch, "hashed.txt")
            hashed.write_text("".join(part))
            pip(
                "install",
                "--require-hashes",
                "--no-deps",
                "--no-build-isolation",
                "--use-pep517",
                "-r",
                hashed,
            )
        # Stopped between pip and the comparison, the next install must not take unknown files for known ones.
        unchecked = Path(sys.prefix, ".unchecked")
        if unchecked.exists():
            pip("uninstall", "--yes", *late)
        unchecked.touch()
        print("3 of 3: PyTorch, by far the largest, and what needs it", flush=True)
        pip("install", "--no-build-isolation", "-c", pins, "-r", REQUIREMENTS, "--report", report)
        strangers = list(unknown_files(json.loads(report.read_text("utf-8"))["install"], locked))
    if strangers:
        pip("uninstall", "--yes", *(name for name, _ in strangers))
    unchecked.unlink()
    if not strangers:
        return 0
    for name, url in strangers:
        print(
            f"error: {name}: {url.rpartition('/')[2]} is not in requirements.lock, so it was removed",
            file=sys.stderr,
        )
    print(
        "For another build of PyTorch install it first: python3 -m venv .venv, .venv/bin/pip install torch==... from "
        "where you trust it, then make run; what is there is kept.",
        file=sys.stderr,
    )
    return 2


def unknown_files(installed: Iterable[dict[str, Any]], locked: dict[str, str]) -> Iterator[tuple[str, str]]:
    """(name, address) of what pip's installation report names and the lock does not; this repository apart."""
    for item in installed:
        source, name = item["download_info"], normal(item["metadata"]["name"])
        if "dir_info" in source:
            continue
        archive = source.get("archive_info", {})
        found = archive.get("hashes", {}).get("sha256") or archive.get("hash", "").partition("=")[2]
        if found not in hashes(locked.get(name, "")):
            yield name, source["url"]


def pip(*arguments: str | Path) -> None:
    """Run this environment's pip, which tells what it fetches; where it fails it has said why."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def make() -> int:
    """Write the lock anew from requirements.txt; versions that still fit stay. Needs uv beside this Python."""
    with tempfile.TemporaryDirectory() as scratch:
        wanted, out = Path(scratch, "requirements.in"), Path(scratch, "requirements.lock")
        lines = REQUIREMENTS.read_text("utf-8").splitlines(keepends=True)
        wanted.write_text(
            "".join([line for line in lines if not line.startswith("-e")] + ["setuptools>=80\n"])
        )
        if LOCK.exists():
            out.write_bytes(LOCK.read_bytes())
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal"]
        options = ["--python-version", LEAST_PYTHON, "--generate-hashes", "--no-annotate", "--no-header"]
        subprocess.run([*uv, *options, str(wanted), "-o", str(out)], check=True)
        locked = entries(out.read_text("utf-8"))
    version = re.match(r"torch==([\w.]+)", locked["torch"])
    for digest in set(CPU_BUILDS.get(version[1] if version else "", ())) - hashes(locked["torch"]):
        locked["torch"] = f"{locked['torch'].rstrip()} \\\n    --hash=sha256:{digest}\n"
    LOCK.write_text(HEADER.format(python=LEAST_PYTHON) + "".join(locked.values()), "utf-8")
    return 0


if __name__ == "__main__":
    steps = {"install": install, "make": make}
    if sys.argv[1:] not in [[name] for name in steps]:
        raise SystemExit(f"python .ci/lock.py {'|'.join(steps)}")
    raise SystemExit(steps[sys.argv[1]]())
