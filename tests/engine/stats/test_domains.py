"""Which runs are compared as domains, which heads differ, and what chance alone would give. No GPU."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from routesparse.engine.stats import domains


def run(number, domain="prose", tokens=4_096, price=0.5, prompt=None, revision="r", sample=False, **settings):
    return {
        "run_id": f"run{number}",
        "created_at": f"2026-11-27T00:00:{number:02}",
        "model_revision": revision,
        "config_json": json.dumps({"price": price, "seed": number, **settings}),
        "prompt_sha256": prompt or f"p{number}",
        "domain": domain,
        "tokens": tokens,
        "is_sample": sample,
    }


def sets_of(*runs):
    return [list(one["run_id"]) for one in domains.comparable(pd.DataFrame(runs))]


@pytest.mark.parametrize(
    "other",
    [{"price": 1.0}, {"revision": "s"}, {"tokens": 4_600}, {"rope": "yarn"}],
    ids=["settings", "weights", "length", "scaling"],
)
def test_runs_that_differ_in_more_than_their_prompts_are_not_compared(other):
    assert sorted(sets_of(run(1), run(2, "code", **other))) == [["run1"], ["run2"]]


def test_seed_break_even_and_a_few_tokens_do_not_part_runs_and_a_prompt_counts_once():
    # A run of before a setting existed has its default.
    runs = (
        run(1, break_even_tokens=None),
        run(2, "code", 4_200, head_floors=None),
        run(3, prompt="p1", break_even_tokens=0),
    )
    assert sets_of(*runs) == [["run2", "run3"]]


def test_the_set_that_tells_most_comes_first():
    alone = run(1, price=0.1)
    samples = [run(n, kind, price=0.2, sample=True) for n, kind in ((2, "prose"), (3, "code"))]
    several = [run(n, kind, price=0.3, sample=True) for n, kind in enumerate(["prose", "code"] * 2, 4)]
    own = [run(n, kind, price=0.4) for n, kind in ((8, "mail"), (9, "law"))]
    found = sets_of(alone, *samples, *several, *own)
    assert [one[0] for one in found] == ["run8", "run4", "run2", "run1"]


def heads(densities):
    """domain -> [prompts][heads]."""
    rows = [
        (f"{domain}{n}", domain, 0, head, density)
        for domain, prompts in densities.items()
        for n, prompt in enumerate(prompts)
        for head, density in enumerate(prompt)
    ]
    return pd.DataFrame(rows, columns=["run_id", "domain", "layer", "head", "density"])


def test_heads_that_differ_come_first_and_those_within_the_spread_are_not_counted():
    #                      more, twice but within, less, the same, more by next to nothing
    rows = heads(
        {
            "prose": [[0.20, 0.1, 0.4, 0.3, 0.2], [0.20, 0.5, 0.4, 0.3, 0.2]],
            "code": [[0.32, 0.6, 0.2, 0.3, 0.209]],
        }
    )
    found = domains.changes(rows, "prose", "code")
    assert found["head"].tolist() == [2, 0, 1, 4, 3]
    assert found["more"].tolist() == ["one", "other", "", "", ""]
    assert found["difference"].tolist() == pytest.approx([-0.2, 0.12, 0.3, 0.009, 0.0])
    assert found["spread"].tolist() == pytest.approx([0, 0, 0.4, 0, 0])
    said = domains.finding(rows, "prose", "code")
    assert (said.heads, said.more_in_one, said.more_in_other) == (5, 1, 1)
    assert domains.changes(rows, "code", "prose")["more"].tolist() == ["other", "one", "", "", ""]


def test_of_one_prompt_a_domain_the_spread_is_not_known_and_half_as_much_again_counts():
    rows = heads({"prose": [[0.1, 0.2]], "code": [[0.16, 0.21]]})
    assert domains.changes(rows, "prose", "code")["spread"].isna().all()
    assert domains.finding(rows, "prose", "code") == domains.Finding(2, 0, 1, None)


def test_chance_counts_as_many_as_are_found_where_the_domains_are_alike():
    random = np.random.default_rng(1)
    alike = {name: random.uniform(0.1, 0.5, (3, 400)).tolist() for name in ("prose", "code")}
    said = domains.finding(heads(alike), "prose", "code")
    found = said.more_in_one + said.more_in_other
    assert said.chance is not None and abs(found - said.chance) < 20 and found < 60
    apart = {name: random.uniform(low, low + 0.01, (3, 400)) for name, low in (("prose", 0.1), ("code", 0.3))}
    said = domains.finding(heads(apart), "prose", "code")
    assert said.more_in_other == 400 and said.chance == 0
