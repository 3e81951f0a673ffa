"""A load whose loss target is kept, by a stand-in for vLLM's engine; with its CPU build it was run by hand."""

import json

import pytest

from routesparse.engine.calibration import keeping_log
from routesparse.engine.calibration.keeping import Kept, State
from routesparse.engine.lab.bench import kept
from routesparse.engine.provenance import now

TARGET = 0.01


def logged(at, request, predicted, true):
    line = Kept(at, request, "demo", "0", TARGET, "prose", 0.2, predicted, true, State(0.2, TARGET))
    keeping_log.append(keeping_log.log_of("demo", TARGET), line)


class Keeping:
    """Predicts half the target where a text is of "a", else twice it; every second one's true loss is three targets."""

    def __init__(self, options):
        self.options, self.version, self.asked, self.waiting = {"model": str(options.model)}, "0", [], []

    def ids(self, text):
        return [ord(letter) for letter in text]

    def add(self, ids, tokens, extra):
        name = f"bench-{len(self.asked)}"
        self.asked.append((ids, tokens, dict(extra)))
        if not extra:
            self.waiting.append((name, ids))
        return name

    def steps(self):
        yield "a first token"
        for number, (name, ids) in enumerate(self.waiting):
            predicted, true = TARGET * (0.5 if ids[0] == ord("a") else 2), 3 * TARGET if number % 2 else None
            logged(now(), f"{name}-ac5f7093", predicted, true)
            yield name
        self.waiting.clear()


@pytest.fixture
def serve(home, tmp_path, monkeypatch):
    engines = []
    monkeypatch.setattr(kept, "Engine", lambda options: engines.append(Keeping(options)) or engines[-1])
    for name, value in {"": "1", "_LOSS": str(TARGET), "_KEEP": "1"}.items():
        monkeypatch.setenv(f"ROUTESPARSE_VLLM{name}", value)
    for name, texts in {"a": "a" * 90, "b": "b" * 70, "c": "c" * 64, "short": "d" * 63}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(texts)
    logged("2026-01-01", "bench-2-00000000", 9.0, 9.0)  # of an earlier run

    def run(*prompts):
        folders = (
            f"{name}={','.join(str(tmp_path / one) for one in mine.split('+'))}" for name, mine in prompts
        )
        out = tmp_path / "kept.json"
        numbers = ("--tokens", "64", "--requests", "11", "--at-once", "4", "--answer-tokens", "3")
        code = kept.main(["--model", "demo", "--prompts", *folders, *numbers, "--out", str(out)])
        return code, json.loads(out.read_text()), engines[-1].asked

    return run


def test_parts_come_one_behind_the_other_and_single_requests_behind_them(serve, capsys):
    code, found, asked = serve(("prose", "a"), ("mixed", "b+c"))
    load, lone = ([row for row in found["groups"] if row["of"] == of] for of in ("load", "lone"))
    assert code == 0 and [len(row["requests"]) for row in load] == [4, 1, 4, 2]
    places = [place for row in load for place in row["requests"].values()]
    assert [part for part, *_ in places] == ["prose"] * 5 + ["mixed"] * 6
    assert {document[-10:] for part, document, _ in places if part == "mixed"} == {"b/text.txt", "c/text.txt"}
    for row in load:
        for name, (_, document, first) in row["requests"].items():
            ids, tokens, extra = asked[int(name.split("-")[1])]
            assert (len(ids), chr(ids[0]), tokens, extra) == (64, document[-10], 3, {}) and first <= 26
    assert len({first for *_, first in places}) > 3
    assert all(0 < row["first_ms"] <= row["ms"] for row in found["groups"])
    assert [row["way"] for row in lone] == ["kept", "own loss", "stock"] * kept.LONE
    assert [asked[2 + 11 + at][1:] for at in range(3)] == [
        (3, {}),
        (3, {"routesparse_loss": TARGET}),
        (3, {"routesparse_route": 0}),
    ]
    assert len(found["log"]) == 11 + kept.LONE and found["environment"]["ROUTESPARSE_VLLM_KEEP"] == "1"
    assert capsys.readouterr().out.splitlines() == [
        "prose, in targets: true 3 (n 2), predicted 0.5 (n 5); price 0.2 (n 5)",
        "mixed, in targets: true 3 (n 3), predicted 2 (n 6); price 0.2 (n 6)",
    ]
    assert serve(("prose", "a"), ("mixed", "b+c"))[2] == asked  # one seed, one load


@pytest.mark.parametrize(
    ("keep", "folders", "message"),
    [
        ("1", "a+short", "short holds no text of 64 tokens"),
        ("0", "a", "no target is kept; set ROUTESPARSE_VLLM=1"),
    ],
)
def test_a_folder_of_short_texts_and_a_server_that_keeps_nothing_are_refused(
    serve, monkeypatch, capsys, keep, folders, message
):
    monkeypatch.setenv("ROUTESPARSE_VLLM_KEEP", keep)
    with pytest.raises(SystemExit) as caught:
        serve(("prose", folders))
    said = capsys.readouterr().err
    assert caught.value.code == 2 and message in said and said.count("\n") == 1
