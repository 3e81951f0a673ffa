"""The container files name what exists, and their commands work on the files that they copy. No engine, no GPU.

What only an engine can show, that the images build, is not tested.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import typer
import yaml

from routesparse.engine.cli.main import app
from routesparse.engine.cli.operations import metrics
from tests.e2e.serve import free_port

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".container"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
LINES = re.sub(r"\\\n", " ", (FOLDER / "Containerfile").read_text()).splitlines()
INSTRUCTIONS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]
WORKDIR = "/opt/routesparse"


def given(instruction: str) -> list[str]:
    return [rest for name, rest in INSTRUCTIONS if name == instruction]


def copied() -> list[tuple[str, str]]:
    """(source, target) of every COPY."""
    pairs = []
    for line in given("COPY"):
        *sources, target = line.split()
        pairs += [(each, target if len(sources) == 1 else f"{target.rstrip('/')}/{each}") for each in sources]
    return pairs


def stages() -> dict[str, list[tuple[str, str]]]:
    """Instructions of each stage, those that it is built from included."""
    found, name = {}, ""
    for instruction, rest in INSTRUCTIONS:
        if instruction == "FROM":
            base, _, name = rest.split()
            found[name] = list(found.get(base, []))
        found[name].append((instruction, rest))
    return found


def command(service: str) -> list[str]:
    """What a service runs: its own command, else its image's."""
    own = SERVICES[service].get("command")
    target = SERVICES[service].get("build", {}).get("target")
    return own or json.loads([rest for name, rest in stages()[target] if name == "CMD"][-1])


def health(service: str) -> list[str]:
    kind, *rest = SERVICES[service]["healthcheck"]["test"]
    assert kind == "CMD"
    return rest


def commands() -> list[list[str]]:
    return [each for name in SERVICES for each in (command(name), health(name))]


def test_every_source_is_tracked_and_lands_where_it_stood():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for source, target in copied():
        assert re.search(rf"^{re.escape(source)}(/|$)", tracked, flags=re.MULTILINE), source
        assert os.path.normpath(target) == source


def test_what_is_installed_is_the_lock_s():
    install = next(line for line in given("RUN") if "lock.py" in line)
    assert "python -m venv .venv && .venv/bin/python .ci/lock.py install" in install
    assert not re.search(r"\bpip\b", "".join(given("RUN")))
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    assert {"requirements.txt", "requirements.lock", "pyproject.toml", *packages.values()} <= dict(
        copied()
    ).keys()


def test_nothing_names_a_host_but_loopback():
    for file in FOLDER.iterdir():
        text = file.read_text()
        assert set(re.findall(r"https?://([\w.-]+)", text)) <= {"127.0.0.1"}, file.name
        assert not re.search(r"\b[\w-]+\.(io|com|org|net)\b", text), file.name


def test_every_service_is_an_ordinary_user_on_a_read_only_file_system_with_the_shared_home():
    for name, service in SERVICES.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["volumes"] == ["home:/var/lib/routesparse"], name
    assert "home" in COMPOSE["volumes"]
    for name, instructions in stages().items():
        user = [rest for instruction, rest in instructions if instruction == "USER"][-1]
        assert user == "routesparse", name
    variables = dict(pair.split("=") for line in given("ENV") for pair in line.split())
    assert variables.keys() == {"HOME", "ROUTESPARSE_HOME", "PYTHONDONTWRITEBYTECODE"}
    volume = given("VOLUME")[0]
    assert variables["HOME"] == volume and Path(variables["ROUTESPARSE_HOME"]).is_relative_to(volume)
    assert given("WORKDIR") == [WORKDIR]


def test_images_are_built_by_the_services_that_use_them():
    built = {service["image"] for service in SERVICES.values() if "build" in service}
    for name, service in SERVICES.items():
        assert service["image"] in built, name
        if "build" in service:
            build = service["build"]
            assert (FOLDER / build["context"] / build["dockerfile"]).samefile(FOLDER / "Containerfile")
            assert build["target"] in stages()


def test_commands_and_options_exist():
    group = typer.main.get_command(app)
    for words in commands():
        if words[0] == ".venv/bin/routesparse":
            options = {option for parameter in group.commands[words[1]].params for option in parameter.opts}
            assert {word for word in words if word.startswith("-")} <= options, words
        else:
            assert words[0] == ".venv/bin/python" and words[1] in ("-m", "-c"), words


def test_ports_are_those_that_the_repository_documents():
    port = re.search(r"^PORT \?= (\d+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)[1]
    assert given("EXPOSE") == [port] == command("web")[-1:] and f":{port}/" in health("web")[-1]
    assert (
        command("metrics")[-1] == str(metrics.__defaults__[0])
        and f":{command('metrics')[-1]}/" in health("metrics")[-1]
    )


def test_the_commands_work_on_the_copied_files_alone_and_write_to_the_home_alone(tmp_path):
    """As the images would: the files of COPY, their packages under their names, the commands, the health checks."""
    place, home = tmp_path / "opt", tmp_path / "home"
    for source, target in copied():
        into = place / target
        into.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, into, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, into)
    packages = tmp_path / "packages" / "routesparse"
    packages.mkdir(parents=True)
    for name in ("app", "engine", "kernels"):
        (packages / name).symlink_to(place / name)
    environment = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
    } | {
        "HOME": str(home),
        "ROUTESPARSE_HOME": str(home / "home"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(packages.parent),
    }
    home.mkdir()

    def words_of(words: list[str], port: int) -> list[str]:
        """This machine's Python for the image's, and a free port for the one that may be in use."""
        python = {
            ".venv/bin/python": [sys.executable],
            ".venv/bin/routesparse": [sys.executable, "-m", "routesparse.engine.cli.main"],
        }
        return [*python[words[0]], *(re.sub(r"8501|9464", str(port), word) for word in words[1:])]

    def healthy(service: str, port: int) -> bool:
        done = subprocess.run(
            words_of(health(service), port), cwd=place, env=environment, capture_output=True
        )
        return done.returncode == 0

    before = {path: path.lstat().st_mtime_ns for path in place.rglob("*")}
    ports = {"web": free_port(), "worker": 0, "metrics": free_port()}
    running = {}
    try:
        assert not healthy("worker", 0), "a worker that does not run is not healthy"
        with open(tmp_path / "log", "wb") as log:
            for service, port in ports.items():
                running[service] = subprocess.Popen(
                    words_of(command(service), port), cwd=place, env=environment, stdout=log, stderr=log
                )
        deadline = time.monotonic() + 90
        for service, port in ports.items():
            while not healthy(service, port):
                assert running[service].poll() is None and time.monotonic() < deadline, (
                    tmp_path / "log"
                ).read_text()
                time.sleep(0.2)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait(30)
    assert {path: path.lstat().st_mtime_ns for path in place.rglob("*")} == before
    assert (home / "home" / "jobs.sqlite3").exists()
