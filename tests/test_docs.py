"""The documents keep their word: what they name exists, what exists is named, and the README's example runs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import typer

from routesparse.engine.cli.main import app
from routesparse.engine.config import RouterConfig
from routesparse.engine.store.tables import TABLES
from tests.engine import shipped_profile

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
REFERENCE = (ROOT / "engine" / "README.md").read_text()
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part == "var" for part in path.relative_to(ROOT).parts)
)
SOURCES = sorted(
    path for folder in ("app", "engine", "kernels", "tests") for path in (ROOT / folder).rglob("*.py")
)
# A reference to a section: CONTRIBUTING.md, "Adding a page". Line breaks and comment signs may stand between.
QUOTED = re.compile(r"([\w/]+\.md),[\s#]+\"([^\"]+)\"")


def section(document: str, heading: str) -> str:
    """The text below one second-level heading."""
    return document.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def table_rows(text: str) -> list[list[str]]:
    """Cells of the Markdown tables in the text, header and rule left out."""
    rows = [line.strip("|\n").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


def commands() -> dict[str, set[str]]:
    """Every command of the command line with its long options."""
    group = typer.main.get_command(app)
    return {
        name: {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        for name, command in group.commands.items()
    }


def test_every_command_and_option_is_documented_and_every_documented_one_exists():
    items = re.findall(r"^(- `(\w+).*\n(?:  .*\n)*)", section(REFERENCE, "Commands"), flags=re.MULTILINE)
    documented = {name: set(re.findall(r"`(--[\w-]+)", text)) for text, name in items}
    assert documented == commands()


def test_shell_lines_name_commands_that_exist():
    named = re.findall(
        r"\bbin/routesparse (\w+)|`routesparse (\w+)", "".join(p.read_text() for p in DOCUMENTS)
    )
    assert {first or second for first, second in named} <= {*commands(), "COMMAND"}


def test_every_configuration_field_is_documented_with_its_default():
    rows = table_rows(section(REFERENCE, "Configuration"))
    documented = {row[0].strip("`"): row[1].strip("`") for row in rows}
    assert documented == {field.name: str(field.default) for field in dataclasses.fields(RouterConfig)}


def test_every_file_of_a_bundle_is_documented():
    rows = table_rows(section(REFERENCE, "Run bundle"))
    assert {row[0].strip("`") for row in rows} == {f"{table}.parquet" for table in TABLES}


def test_quoted_headings_exist():
    """A comment that sends its reader to a section of a document names one that is there."""
    missing = []
    for path in [*DOCUMENTS, *SOURCES]:
        for name, heading in QUOTED.findall(path.read_text()):
            document = ROOT / name
            if not document.is_file() or not re.search(
                rf"^#+ {re.escape(' '.join(heading.split()))}$", document.read_text(), flags=re.MULTILINE
            ):
                missing.append(f"{path.relative_to(ROOT)}: {name}, {heading!r}")
    assert not missing


def test_no_source_names_a_document_outside_the_repository():
    outside = re.compile(
        r"\b(METHOD|FACTS|ARCHITECTURE|DASHBOARD|BENCHMARKS|STYLE|DEMO_MODEL)\b(\.md|'s| asks| section)"
    )
    named = [str(p.relative_to(ROOT)) for p in [*DOCUMENTS, *SOURCES] if outside.search(p.read_text())]
    assert not named


def test_the_readme_is_a_landing_page():
    assert len(README.splitlines()) <= 90
    assert len(re.findall(r"^- ", section(README, "Limits"), flags=re.MULTILINE)) == 5


def test_what_is_written_by_hand_has_no_line_longer_than_160_characters():
    """Tables that a command writes, and concluded studies, are left as they were written."""
    results = ROOT / "data" / "results"
    written = re.compile(r"^(Written by `|Concluded: )", flags=re.MULTILINE)
    by_hand = [path for path in DOCUMENTS if "data" not in path.relative_to(ROOT).parts]
    by_hand += [ROOT / ".container" / "README.md", ROOT / "data" / "README.md"]
    by_hand += [path for path in (results / "notes").glob("*.md") if not written.search(path.read_text())]
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in by_hand
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 160
    ]
    assert long == []


def test_nothing_is_left_to_fill_in():
    left = [str(p.relative_to(ROOT)) for p in DOCUMENTS if re.search(r"@[A-Z]+@|TODO|TBD", p.read_text())]
    assert not left


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_named_paths_lead_to_files(path):
    text = path.read_text()
    links = re.findall(r"(?:\]\(|src=\"|srcset=\")([^)#:\"]+)[)\"]", text)
    assert [link for link in links if not (path.parent / link).exists()] == []
    named = re.findall(r"`((?:data|engine|app|kernels|tests)/[\w/.-]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_tests_exist_that_are_named_beside_a_defect():
    page = (ROOT / "data" / "results" / "RELIABILITY.md").read_text()
    named = re.findall(r"\| `(tests/[\w/.]+\.py)` \| `(test_\w+)` \|", page)
    assert len(named) >= 22, "the defects of the first attack"
    missing = [test for file, test in named if f"def {test}(" not in (ROOT / file).read_text()]
    assert missing == []


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    """On the beginning of its text."""
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    shorter = example.replace(".read_text()", ".read_text()[:4_000]")
    assert shorter != example
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path))
    shipped_profile.keep(tmp_path)
    exec(compile(shorter.replace("var/spool", str(tmp_path / "spool")), "README.md", "exec"), {})
    assert "probe_ms" in capsys.readouterr().out
    assert len(list((tmp_path / "spool").glob("*/manifest.json"))) == 1
