"""A run's or a job's settings in words: rescaled positions. No GPU, no browser."""

from __future__ import annotations

import pytest

from routesparse.app.shell import setting_words
from routesparse.app.shell.access import access
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store import queries

YARN = '{"rope_type": "yarn", "factor": 4.0}'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (YARN, "RoPE yarn ×4"),
        (
            '{"rope_type": "linear", "factor": 2.5, "original_max_position_embeddings": 65536}',
            "RoPE linear ×2.5 of 65,536 tokens",
        ),
        ('{"rope_type": "yarn", "factor": 2, "beta_fast": 16.0}', "RoPE yarn ×2 (beta fast 16)"),
        (
            '{"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0], "long_factor": [2.0]}',
            "RoPE longrope ×2 (long factor, short factor)",
        ),
        ("<b>", "RoPE <b>"),
    ],
)
def test_the_words_of_a_scaling(text, told):
    assert setting_words.rope(text) == {"rope": told}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"policy": "priced", "tau": 0.7, "price": 0.3, "budget": "0.35"},
            "policy priced, price 0.3, τ layer 0.70, Tℓ 35 %, segment by the device",
        ),
        ({"break_even": 0}, "no time limit, routed at any length, segment"),
        ({"break_even": 4096}, "routed from 4,096 tokens on, segment"),
        ({"policy": "certified", "tau": 0.9}, "policy certified, τ 0.90, no time limit, segment"),
        ({"rope": '{"rope_type": "yarn", "factor": 4.0}'}, "model demo, RoPE yarn ×4, policy"),
        (
            {"policy": "priced", "price": 1.4, "quality": "prose-kl"},
            "price 1.4, quality prose-kl, τ layer 0.30,",
        ),
        (
            {"calibration": "prose", "keep_text": False, "audit": "rows"},
            "calibration prose, probe exact, audit rows, hash only",
        ),
    ],
    ids=["priced", "any length", "from a length", "certified", "rope", "quality", "calibration"],
)
def test_what_a_job_was_asked_in_words(asked, told):
    assert told in setting_words.asked(RunRequest(**asked))


def test_nothing_is_said_of_the_models_own_positions():
    assert setting_words.rope(None) == setting_words.rope(float("nan")) == {}
    assert "RoPE" not in setting_words.asked(RunRequest())


def test_a_run_on_rescaled_positions_says_so_on_its_pages_and_in_the_list(spooled, record, open_page):
    spooled()
    made = spooled("rescaled", config={"rope": YARN})
    opened = access()
    while len(opened.store.run_ids()) < 2:
        opened.look_into_spool()
    assert "RoPE yarn ×4 · " in open_page("routing_map", run=made.run.run_id).told
    assert "RoPE" not in open_page("routing_map", run=record.run.run_id).told
    listed = queries.runs(opened.store).set_index("run_id")["rope"]
    assert listed[made.run.run_id] == YARN
    settings = open_page("runs").dataframe[0].value["settings"]
    assert sum(", RoPE yarn ×4, audit" in words for words in settings) == 1
    own, other = (setting_words.parts(vars(one.run)) for one in (made, record))
    assert setting_words.differing([own, other]) == ["RoPE yarn ×4", ""]
