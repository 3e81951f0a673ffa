"""The times of requests inside one vLLM engine, by a stand-in for it; with vLLM's CPU build it was run by hand."""

import argparse
import itertools
import json
from types import SimpleNamespace

import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.lab.bench import serving
from routesparse.engine.lab.bench.serving import Engine, Windows


class Served:
    """Routed requests take half the time of stock ones; notes what it was asked."""

    def __init__(self):
        self.asked = []

    def serve(self, prompts, extra, tokens):
        self.asked.append((extra, prompts))
        ms = 10.0 * len(prompts[0]) * (1 if extra else 0.5)
        return [{"first_ms": ms + len(self.asked) % 2, "cached_tokens": 0} for _ in prompts]

    def mixed(self, asks, streams, tokens):
        for cell, prompts, extra in asks:
            yield cell, {"tokens_per_s": float(len(prompts) * (1 if extra else 2)), "beside": len(streams)}


def options(**given):
    known = {"tokens": [40], "at_once": [1], "repeats": 6, "cell_s": 60.0, "answer_tokens": 2}
    known |= {"shared": False, "spread": 0.0, "streams": 0}
    return argparse.Namespace(**known | given)


def measured(**given):
    engine = Served()
    windows = Windows(list(range(serving.STEP * 3)), 200)
    (rows,) = serving.measure(engine, windows, options(**given), ("stock", "routed"))
    return engine, rows, serving.summarise(rows)


def test_both_ways_serve_the_same_new_prompts_and_take_turns_in_going_first():
    engine, rows, (cell,) = measured(at_once=[2])
    stock, routed = (
        [prompts for extra, prompts in engine.asked if bool(extra) is way] for way in (True, False)
    )
    assert stock == routed
    firsts = [prompt[0] for prompts in stock for prompt in prompts]
    assert len({*firsts}) == len(firsts) == 14
    assert [row["way"] for row in rows[::2]] == ["stock", "routed", "routed", "stock"] * 3
    assert cell["ways"]["stock"]["n"] == 12 and cell["ways"]["stock"]["rounds"] == 6
    ratio = cell["ratios"]["first_ms"]
    assert ratio["value"] == pytest.approx(0.5, abs=0.01) and ratio["low"] <= ratio["value"] <= ratio["high"]


def test_a_cell_ends_with_its_time_and_has_no_interval_of_a_few_rounds():
    _, rows, (cell,) = measured(cell_s=-1.0)
    assert len(rows) == 2 and cell["ratios"]["first_ms"]["low"] is None


def test_shared_prompts_are_alike_in_three_quarters():
    engine, _, _ = measured(shared=True)
    prompts = [prompt for _, prompts in engine.asked for prompt in prompts]
    assert len({tuple(prompt[:30]) for prompt in prompts}) == 1
    assert len({tuple(prompt[30:]) for prompt in prompts}) == 2 + 6 and {len(p) for p in prompts} == {40}


def test_spread_prompts_differ_in_length_and_are_the_same_for_both_ways():
    engine, _, _ = measured(spread=0.5)
    stock, routed = (
        [[len(p) for p in prompts] for way, prompts in engine.asked if bool(way) is is_stock]
        for is_stock in (True, False)
    )
    lengths = [length for prompts in stock for length in prompts]
    assert stock == routed and len({*lengths}) > 4 and all(20 <= length <= 40 for length in lengths)


def test_a_mixed_load_is_a_row_a_round_and_way():
    _, rows, (cell,) = measured(streams=4)
    assert len(rows) == 12 and rows[0]["beside"] == 4
    assert cell["ratios"]["tokens_per_s"]["value"] == pytest.approx(2)


def mixed(asks, room):
    """What a mixed load finds with an engine of which one step, a second long, answers each request with one token."""
    open_ = {}

    def add(ids, tokens, extra):
        answer, name = SimpleNamespace(token_ids=[]), f"r{len(open_)}"
        open_[name] = SimpleNamespace(request_id=name, finished=False, outputs=[answer], tokens=tokens)
        return name

    def steps():
        while left := [one for one in open_.values() if not one.finished]:
            for one in left:
                one.outputs[0].token_ids.append(0)
                one.finished = len(one.outputs[0].token_ids) == one.tokens
                yield one

    def abort(names):
        for name in names:
            open_[name].finished = True

    engine = Engine.__new__(Engine)
    engine._core, engine.room, engine.add, engine.steps = (
        SimpleNamespace(abort_request=abort),
        room,
        add,
        steps,
    )
    now = SimpleNamespace(perf_counter=lambda: float(len(open_["r0"].outputs[0].token_ids)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "time", now)
        found = list(engine.mixed(asks, [[3], [4]], 2))
    assert all(one.finished for one in open_.values())
    return found


def test_a_mixed_load_counts_all_tokens_from_a_groups_sending_to_its_last_answer():
    asks = [({"round": at}, [[1] * 30] * n, {}) for at, n in enumerate((1, 2))]
    (first, one), (second, two) = mixed(asks, 100)
    assert (first, second) == ({"round": 0}, {"round": 1})
    # Two steps each: a stream's token comes before the sending, its next behind the last answer.
    assert one == {"tokens_per_s": (30 + 2 + 4) / 2, "first_ms": 1000.0, "longest_gap_ms": 1000.0}
    assert two["tokens_per_s"] == (60 + 4 + 4) / 2


def test_a_mixed_load_ends_when_a_stream_has_no_room():
    assert len(mixed([({}, [[1] * 30], {})] * 50, 7)) == 2


def test_a_round_that_the_streams_did_not_finish_does_not_count(monkeypatch):
    """And a cell that has no other is refused."""
    stock = Served.mixed
    monkeypatch.setattr(Served, "mixed", lambda *given: itertools.islice(stock(*given), 4 + 7))
    _, rows, (cell,) = measured(streams=4)
    assert [row["round"] for row in rows] == [0, 0, 1, 1, 2, 2] and cell["ratios"]["tokens_per_s"][
        "value"
    ] == 2
    monkeypatch.setattr(Served, "mixed", lambda *given: itertools.islice(stock(*given), 4 + 1))
    with pytest.raises(InputError, match="fewer --streams or longer --tokens"):
        measured(streams=4)


def test_a_text_that_is_too_short_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"hold 10 tokens; pass texts of 34 or more"):
        Windows(list(range(10)), 32)
    with pytest.raises(InputError, match=r"holds no text"):
        serving.load_text(tmp_path)
    (tmp_path / "b.md").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "c.json").write_text(json.dumps("third"))
    assert serving.load_text(tmp_path) == "first\nsecond"
