"""The latency model's arithmetic, the break-even length, and a profile's file. No GPU, nothing is timed."""

import dataclasses
import json

import numpy as np
import pytest

from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import ProfileError
from routesparse.engine.method.latency import BREAK_EVEN_DENSITY, LONGEST, LatencyProfile
from routesparse.engine.method.segments import split

SMALL = RouterConfig(block_q=32, block_k=16, tail_tokens=32)


@pytest.fixture
def profile(oracle):
    return oracle.PROFILE


def test_a_sparse_head_pays_rows_tiles_columns_and_the_dense_tail(profile):
    segment = split(700, 700, SMALL)[-1]
    tail = segment.causal_tiles(body_only=False) - segment.causal_tiles()
    found = profile.sparse_us(segment, np.array([[100.0, 200.0]]), np.array([[0.0, 40.0]]))
    fixed = 0.5 * segment.body_blocks + 1.2 * tail
    np.testing.assert_allclose(found, [[fixed + 100.0, fixed + 200.0 + 2.0]])


def test_break_even_is_the_first_length_at_which_routing_pays(profile):
    dear = dataclasses.replace(profile, probe_base_us=20_000.0, block_q=128, block_k=64)
    least = dear.break_even_tokens(8)

    def pays(tokens):
        config = RouterConfig(tail_tokens=1)
        segment = dataclasses.replace(split(tokens, tokens, config)[-1], rows=tokens, body=tokens - 128)
        segment = dataclasses.replace(segment, first=0, position=0)
        return dear.pays([segment], 8)

    assert 256 < least < LONGEST and least % 256 == 0
    assert pays(least) and not pays(least - 256)


def test_setup_is_shared_by_the_layers_and_paid_per_segment(profile):
    segments = split(4_096, 4_096, dataclasses.replace(SMALL, segment_tokens=1_024))
    assert len(segments) == 4 and profile.pays(segments, 8)
    slack = 0.97 * sum(8 * profile.dense_us(s) for s in segments) - sum(
        8 * float(profile.sparse_us(s, np.array(BREAK_EVEN_DENSITY * s.causal_tiles()), np.zeros(())))
        + profile.probe_us(s, 8)
        for s in segments
    )
    fits = dataclasses.replace(profile, setup_us=0.99 * slack * 32 / 4)
    assert fits.pays(segments, 8, layers=32) and not fits.pays(segments, 8, layers=31)


def test_a_probe_that_never_pays_has_no_break_even(profile):
    assert dataclasses.replace(profile, tile_us=1e6).break_even_tokens(8) == LONGEST


def test_a_profile_survives_its_file(profile, tmp_path):
    full = dataclasses.replace(
        profile, cells=({"n": 1, "mix": "dense", "median_us": 2.0},), versions={"a": "1"}
    )
    assert LatencyProfile.load(full.save(tmp_path / "new")) == full
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["synthetic.json"]


def test_a_missing_profile_says_what_to_run(tmp_path):
    with pytest.raises(ProfileError, match=r"no latency profile none\.json; run `routesparse profile`"):
        LatencyProfile.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: b"\xff\xfe\x00",
        lambda text: "[]",
        lambda text: '"profile"',
        lambda text: "null",
        lambda text: text.replace('"tile_us"', '"tyle_us"'),
        lambda text: text.replace('"schema": 1,', ""),
        lambda text: text.replace('"cells": []', '"cells": 3'),
        lambda text: text.replace('"tile_us": 1.0', '"tile_us": "fast"'),
        lambda text: text.replace('"tile_us": 1.0', '"tile_us": NaN'),
        lambda text: text.replace('"tile_us": 1.0', '"tile_us": Infinity'),
        lambda text: text.replace('"tile_us": 1.0', '"tile_us": true'),
        lambda text: text.replace('"tile_us": 1.0', '"tile_us": -1.0'),
        lambda text: text.replace('"threads": 0', '"threads": 0, "threads": 1'),
        lambda text: text.replace('"cells": []', '"cells": [{"n": 0, "mix": "dense", "median_us": 1}]'),
        lambda text: text.replace('"cells": []', f'"cells": {"[" * 100_000}'),
        lambda text: text.replace('"name": "synthetic"', '"name": ["synthetic"]'),
    ],
    ids=[
        *(
            "cut",
            "empty",
            "binary",
            "list",
            "string",
            "null",
            "misspelt",
            "no-schema",
            "cells",
            "text-number",
            "nan",
        ),
        *("infinity", "boolean", "negative", "twice", "cell", "deep", "list-name"),
    ],
)
def test_a_corrupt_profile_is_refused(profile, tmp_path, damage):
    path = profile.save(tmp_path)
    good = path.read_text()
    damaged = damage(good)
    assert damaged != good
    path.write_bytes(damaged if isinstance(damaged, bytes) else damaged.encode())
    with pytest.raises(ProfileError, match=r"profile synthetic\.json is corrupt .*run `routesparse profile`"):
        LatencyProfile.load(path)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "no name"])
def test_what_is_no_plain_file_is_no_profile(tmp_path, no_plain_file, kind):
    path = tmp_path / ("x\0.json" if kind == "no name" else "x.json")
    if kind != "no name":
        no_plain_file(path, kind)
    with pytest.raises(ProfileError, match="can't be read"):
        LatencyProfile.load(path)


def test_a_newer_profile_is_refused_with_both_numbers(profile, tmp_path):
    path = profile.save(tmp_path)
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "schema": 2}))
    with pytest.raises(ProfileError, match="has schema 2; this version reads 1"):
        LatencyProfile.load(path)


def test_early_segments_that_do_not_pay_alone_do_not_keep_a_long_prompt_dense(oracle):
    """Break-even belongs to the prompt: its first segments are cheap either way."""
    profile = dataclasses.replace(oracle.PROFILE, probe_base_us=6_000.0)
    segments = split(4_096, 4_096, dataclasses.replace(oracle.SMALL, segment_tokens=512))
    assert not profile.pays(segments[:1], 4)
    assert profile.pays(segments, 4)
