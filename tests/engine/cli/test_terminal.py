"""No name or message of somebody else's file is obeyed by a terminal. No model."""

import io
import json
import sys
from dataclasses import replace

import click
import pytest

from routesparse.engine import paths
from routesparse.engine.cli.output import Reporter, out_console
from routesparse.engine.rows import RunRecord
from routesparse.engine.store.bundle import write_bundle
from routesparse.engine.terminal import escaped

HOSTILE = "[/x] :bomb: \x1b[2J\x9b2J \u202egnp\u2066 a\u200bb \r\x07\x7f\udcff"
FOLDER = HOSTILE.replace("/", "")


def harmless(text):
    assert all(c.isprintable() or c == "\n" for c in text), ascii(text)
    return text


def test_runs_lists_what_a_bundle_says_and_what_its_folder_is_called(run, home, factory):
    """Every text of the row, printed as it stands: no markup, no emoji, nothing that a terminal obeys."""
    record = factory.make_record("5a11a11a11a1", layers=1, heads=1, segments=1, tokens=1024, probe_columns=8)
    for name, values in {"a": {"policy": "[/x]"}, "b": {"model": "[/x]", "prompt_name": "[/x]"}}.items():
        write_bundle(RunRecord(run=replace(record.run, run_id=name, **values)), paths.spool())
    (paths.spool() / "\x1b[2J\u202egnp").mkdir()
    code, out, err = run("runs")
    assert code == 0 and harmless(out).count("[/x]") == 3 and "gnp" in out
    harmless(err)


@pytest.mark.parametrize(
    "command",
    [
        ("analyze", HOSTILE),
        ("ingest", HOSTILE),
        ("export", HOSTILE),
        ("score", HOSTILE, "x", "y"),
        ("evaluate", HOSTILE),
        ("report", HOSTILE, "--debug"),
        (HOSTILE,),
        ("runs", f"--{HOSTILE}"),
    ],
    ids=lambda command: command[0][:8],
)
def test_an_error_quotes_harmlessly(run, home, command):
    code, out, err = run(*command)
    assert code == 2 and out == "" and "gnp" in harmless(err) and "error: " in err


def test_whoever_writes_during_a_command_is_escaped(run, home, monkeypatch):
    """Libraries log and warn of what stands in a model's files; print and a reporter's line pass there too."""

    def speaks():
        print(HOSTILE)
        sys.stderr.writelines([f"{HOSTILE}\n"])
        Reporter().line(f"two\n{HOSTILE}")
        Reporter().warn(HOSTILE)
        Reporter()(HOSTILE, 1, 2)
        out_console().print(HOSTILE)
        return {}

    monkeypatch.setattr("routesparse.engine.cli.bundles._runs", speaks)
    code, out, err = run("runs")
    assert code == 0 and harmless(out).count("gnp") == 2 and harmless(err).count("gnp") == 4
    assert "two [/x] :bomb:" in err


def test_a_bar_shows_its_stage_as_it_stands(monkeypatch):
    """Its terminal is real to rich: colours and the cursor's moves are ours, and stay."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", drawn := io.StringIO())
    report = Reporter()
    with report.bars():
        report(HOSTILE.replace("\r", ""), 1, 2)
    assert "[/x] :bomb: \\x1b[2J" in drawn.getvalue() and not {"\u202e", "\x9b", "\x07"} & set(
        drawn.getvalue()
    )


def test_json_stays_json(run, home):
    (paths.spool() / FOLDER).mkdir(parents=True)
    code, out, _ = run("runs", "--json")
    (row,) = json.loads(harmless(out))["runs"]
    assert code == 0 and row["run_id"] == FOLDER


def test_what_writes_by_click_finds_a_stream_of_text(capsys):
    """As Streamlit's server does when it starts: click tries whether a stream takes bytes."""
    with escaped():
        click.echo("\u202eready")
    assert capsys.readouterr().out == "\\u202eready\n"
