"""The paired tables: who loses less, over documents, and what is left out. Rows by hand, and the shipped ones."""

import json
import runpy

import numpy as np
import pytest

from routesparse.engine import paths
from routesparse.engine.errors import InputError
from routesparse.engine.lab.studies.selection import paired
from routesparse.engine.lab.studies.selection.rows import read_rows

REAL = paths.DATA / "results" / "real"
EVIDENCE, DOMAIN = (REAL / f"evidence_{name}1.5b_h200.jsonl.gz" for name in ("", "domain_"))


def rows(task, index, document, losses, areas=(0.7, 0.3)):
    """Dense, base=1 and other=2 on one prompt."""
    about = {"task": task, "length": 100, "index": index, "seed": 8, "extras": True, "documents": [document]}
    names = (
        ("dense", 1.0, 0.0, 1.0),
        ("base", 1.0, losses[0], areas[0]),
        ("other", 2.0, losses[1], areas[1]),
    )
    return [
        about
        | {
            "method": name,
            "setting": setting,
            "kl": lost,
            "nats": 1 + lost,
            "positions": 2,
            "area": area,
            "score": 1.0,
        }
        for name, setting, lost, area in names
    ]


def test_both_kinds_are_paired_by_prompt_and_what_reads_too_much_is_left_out(tmp_path, capsys):
    rng = np.random.default_rng(0)
    made = [
        one for i in range(40) for one in rows("text:prose", i, i % 10, (0.03 + rng.normal(0, 0.002), 0.01))
    ]
    made += [one for i in range(40) for one in rows("vt", i, i % 10, (0.1, 0.1 + rng.normal(0, 0.3)))]
    made += rows("vt", 40, 0, (0.1, 9.0), areas=(0.7, 0.5))
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, made)))
    paired.main([str(tmp_path / "rows.jsonl"), "--base", "base=1", "--other", "other=2", "--deciding", "0.3"])
    told = capsys.readouterr().out
    texts = next(line for line in told.splitlines() if line.startswith("| **texts")).split(" | ")
    assert texts[1] == "40, 10" and texts[4].startswith("0.0") and float(texts[6]) < 0.001
    questions = next(line for line in told.splitlines() if line.startswith("| **questions")).split(" | ")
    assert questions[1] == "40, 10" and float(questions[6]) > 0.01
    assert "1 of 81 prompts left out" in told
    lost = paired.pairs(made, "base=1", "other=2")[40:80]
    found = paired.less_lost(lost)
    by_hand = np.mean([2 * (base["nats"] - other["nats"]) for _, base, other in lost])
    assert found.value == pytest.approx(by_hand) and found.low < by_hand < found.high


def test_methods_without_common_prompts_are_refused_with_what_there_is():
    with pytest.raises(InputError, match=r"known: base=1, dense=1, other=2"):
        paired.pairs(rows("vt", 0, 0, (0.1, 0.1)), "base=1", "nobody=1")


def test_the_worst_tenth_is_each_method_s_own(tmp_path):
    rng = np.random.default_rng(0)
    losses = rng.gamma(1, 0.01, (40, 2))
    made = [one for i, both in enumerate(losses) for one in rows("text:prose", i, i, both)]
    found = paired.less_lost_at_worst(paired.pairs(made, "base=1", "other=2"))
    worst = np.sort(losses, axis=0)[-4:].mean(0)
    assert found.value == pytest.approx(worst[0] - worst[1]) and found.low < found.value < found.high


def test_a_relative_gain_that_grows_by_length_alone_is_found_there(tmp_path, capsys):
    rng, made = np.random.default_rng(0), []
    for task, length, base in (
        ("text:prose", 100, 0.03),
        ("text:code", 100, 0.06),
        ("text:prose", 200, 0.03),
    ):
        other = base / 3 if length == 100 else base / 6
        for i in range(20):
            scale = rng.uniform(0.8, 1.2)
            made += [
                r | {"length": length}
                for r in rows(task, i, i, (base * scale, other * scale * rng.uniform(0.9, 1.1)))
            ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, made)))
    asked = [str(tmp_path / "rows.jsonl"), "--base", "base=1", "--other", "other=2", "--plain"]
    paired.main([*asked, "text:prose/100"])
    told = {line.split(" | ")[0]: line.split(" | ") for line in capsys.readouterr().out.splitlines()}
    assert (
        float(told["| **length**"][-1].strip(" |"))
        < 0.001
        < 0.05
        < float(told["| **domain**"][-1].strip(" |"))
    )
    assert told["| **length**"][3].startswith("0.16") and "| **both**" not in told
    with pytest.raises(InputError, match="known: text:code/100"):
        paired.main([*asked, "text:docs/100"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, "yes"),
        ({"dense": {"score": 0.0}}, "headroom under 2 points"),
        ({"base": {"score": 1.0}, "other": {"score": 1.0}}, "under 5% differ"),
        ({"base": {"fallback": 0.0}, "other": {"fallback": 0.02}}, "under 3% raised"),
        ({"base": {"fallback": 0.0}, "other": {"fallback": 0.05}}, "yes"),
    ],
)
def test_a_plan_is_refused_where_nothing_could_come_of_it(change, told, tmp_path, capsys):
    rng, made = np.random.default_rng(0), []
    for i in range(20):
        for row in rows("vt", i, i, (0.1 + rng.normal(0, 0.1), 0.1)):
            score = {"score": 0.0} if row["method"] == "base" else {}
            made.append(row | score | change.get(row["method"], {}))
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, made)))
    asked = (str(tmp_path / "rows.jsonl"), "--base", "base=1", "--other", "other=2")
    paired.main([*asked, "--plan", "80"])
    line = capsys.readouterr().out.splitlines()[2].split(" | ")
    assert told in line[-1]
    # Twice the pilot's standard error at four times its prompts: 3.42 of them.
    spread = np.std([2 * (b["nats"] - o["nats"]) for _, b, o in paired.pairs(made, "base=1", "other=2")])
    assert float(line[3]) == pytest.approx(3.42 * spread / 80**0.5, rel=0.05)


def test_the_second_computation_gives_the_page_s_verdicts():
    script = paths.DATA / "results" / "verdicts.py"
    again = runpy.run_path(str(script))["verdicts"](EVIDENCE, DOMAIN)
    every = list(read_rows([EVIDENCE])[0].values())
    pairs = paired.pairs(every, "minference@prose/16384=1", "routesparse_fitted=0.25")
    answers = [
        p for p in pairs if not p[0]["task"].startswith("text:") and p[2]["area"] <= p[1]["area"] - 0.3
    ]
    texts = paired.pairs(every, "routesparse_fitted=0.23", "routesparse_fitted@tau_head:0.85=0.25")
    cells = {
        (code, long): [
            p
            for p in pairs
            if p[0]["task"][:5] == "text:"
            and (p[0]["task"] != "text:prose", p[0]["length"] > 16_384) == (code, long)
        ]
        for code in (False, True)
        for long in (False, True)
    }
    plain = cells[False, False]
    again_by_domain = paired.pairs(
        list(read_rows([DOMAIN])[0].values()), "minference@prose/16384=1", "routesparse_fitted=0.25"
    )
    new = [p for p in again_by_domain if p[0]["task"] != "text:prose"]
    old = [p for p in again_by_domain if p[0]["task"] == "text:prose"]
    ours = {
        "H1": paired.less_lost(answers),
        "H2 domain": paired.shift(new, old)[1],
        "H2 length": paired.shift(cells[False, True], plain)[1],
        "H2 both": paired.shift(cells[True, True], plain)[1],
        "H3": paired.less_lost(texts),
        "H3 in the worst tenth": paired.less_lost_at_worst(texts),
    }
    page = (paths.DATA / "results" / "EVIDENCE.md").read_text()
    for name, found in ours.items():
        row = again.loc[name]
        spread = found.high - found.low
        assert row.estimate == pytest.approx(found.value, abs=0.06 * spread), name
        assert (row.low, row.high) == pytest.approx((found.low, found.high), abs=0.25 * spread), name
        sure = row.verdict.split()[0]
        assert (sure == "supported") == (found.low > 0) and (sure == "rejected") == (found.high < 0), name
    rows_of_page = {
        line.split(" | ")[0].strip("|* "): line for line in page.splitlines() if line.startswith("| **H")
    }
    for name, title in (
        ("H1", "H1**: answers, at equal time"),
        ("H2 length", "H2, length"),
        ("H2 both", "H2, both"),
    ):
        assert "supported" in rows_of_page[title] and again.verdict[name] == "supported"
    assert "rejected" in rows_of_page["H3, mean"] and again.verdict["H3"] == "rejected"
    assert "rejected" in rows_of_page["H2, domain"] and again.verdict["H2 domain"] == "rejected"
    assert f"{ours['H1'].value:.3f}".lstrip("0") in rows_of_page["H1**: answers, at equal time"]
