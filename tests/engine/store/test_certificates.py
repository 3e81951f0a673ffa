"""A certificate as a bundle: written, refused where it makes no sense, stored, deleted, owned. No GPU."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pandas as pd
import pytest

from routesparse.engine.errors import BundleError, InputError, StoreError
from routesparse.engine.store import bundle, certificate_queries, queries, trash
from routesparse.engine.store.owner_view import OwnerView

ID = "20261101-120000-ce47f1ca"


@pytest.fixture(scope="session")
def certified(factory):
    return factory.make_certificate()


@pytest.fixture
def stored(store, certified, small, take_in):
    """A store with a certificate and a run."""
    take_in(certified, small)
    return store


def test_a_certificate_round_trips_and_names_what_it_is(certified, small, tmp_path):
    path = bundle.write_bundle(certified, tmp_path)
    back = bundle.read_certificate(path)
    assert back.certificate == certified.certificate and set(back.claims) == set(certified.claims)
    manifest = bundle.verify_bundle(path)
    assert manifest.head == "certificate" and set(manifest.files) == {
        "certificate.parquet",
        "claim.parquet",
        "named_row.parquet",
    }
    assert set(back.named) == set(certified.named) and len(back.named) == 8
    assert len(pd.read_parquet(path / "claim.parquet")) == 1 + 4 + 16
    with pytest.raises(BundleError, match="is a certificate: no routing was recorded"):
        bundle.read_bundle(path)
    with pytest.raises(BundleError, match="is a run, not a certificate"):
        bundle.read_certificate(bundle.write_bundle(small, tmp_path))


@pytest.mark.parametrize("kind", ["certificate", "run"])
def test_a_bundle_has_the_tables_of_one_kind(certified, small, tmp_path, kind):
    path = bundle.write_bundle(certified if kind == "certificate" else small, tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    other = "audit.parquet" if kind == "certificate" else "claim.parquet"
    manifest["files"][other] = {"sha256": "0" * 64}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=f"names '{other}', which is no table of a bundle"):
        bundle.verify_bundle(path)


def test_infinite_errors_of_a_broken_output_are_kept(certified, store, tmp_path):
    claims = tuple(
        replace(claim, largest_error=math.inf, plan_error=math.inf, disagreement=math.inf, nonfinite_rows=1)
        for claim in certified.claims
    )
    path = bundle.write_bundle(replace(certified, claims=claims), tmp_path)
    assert store.adopt(path, "spool", move=False) == ID
    view = OwnerView(store, None)
    assert math.isinf(certificate_queries.whole(view, ID).largest_error)
    assert certificate_queries.claims(view, ID, "head")["largest_error"].tolist() == [math.inf] * 16


HEAD = 5  # where the first claim of a head stands: behind the pass and four layers
OF_A_PLAN = (
    *("mass", "mass_bound", "low_rows", "low_rows_bound", "hit_rate", "hit_rate_bound"),
    *("plan_error", "disagreement"),
)
WRONG = {
    "a verdict that there is none of": ({"verdict": "perfect"}, 0, {}),
    "findings that are no list": ({"findings_json": "{}"}, 0, {}),
    "findings that are no sentences": ({"findings_json": "[1]"}, 0, {}),
    "settings that are no object": ({"config_json": "[]"}, 0, {}),
    "a time that there is none of": ({"created_at": "2026-13-01T00:00:00"}, 0, {}),
    "more heads than a map has": ({"layers": 4096, "heads": 4096}, 0, {}),
    "more layers without a plan than layers": ({"dense_layers": 5}, 0, {}),
    "a confidence above 1": ({"confidence": 1.5}, 0, {}),
    "a mean error above 1": ({}, 0, {"mean_error": 1.5}),
    "an error that is no number": ({}, 0, {"largest_error": math.nan}),
    "more bad rows than rows": ({}, 0, {"beyond_rounding": 10**6}),
    "a layer of the whole pass": ({}, 0, {"layer": 1}),
    "a head that there is none of": ({}, HEAD, {"head": 4}),
    "a head without its layer": ({}, HEAD, {"layer": None}),
    "a head twice": ({}, HEAD, {"head": 1}),
    "a head without its worst token": ({}, HEAD, {"worst_position": None}),
    "a token behind the prompt": ({}, HEAD, {"worst_position": 4096}),
    "a plan's figure that is missing": ({}, 0, {"low_rows": None}),
    "a plan's figures that are missing together": ({}, 0, dict.fromkeys(OF_A_PLAN)),
    "a plan's figures that a head lacks": ({}, HEAD, dict.fromkeys(OF_A_PLAN)),
    "a plan's figures without a plan": ({"plan": None}, 0, {}),
    "rows beyond no tolerance": ({}, 0, {"beyond_tolerance": 0, "beyond_tolerance_bound": 0.1}),
    "no rows beyond a tolerance": ({"tolerance": 0.1}, 0, {}),
    "a verdict that the claims contradict": ({"verdict": "exact"}, 0, {}),
    "no claim of the pass": ({}, 0, {"scope": "layer", "layer": 9}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_nonsense_is_refused_before_it_is_stored(certified, tmp_path, wrong):
    changes, place, claim = WRONG[wrong]
    claims = list(certified.claims)
    claims[place] = replace(claims[place], **claim)
    made = replace(certified, certificate=replace(certified.certificate, **changes), claims=tuple(claims))
    path = bundle.write_bundle(made, tmp_path)
    with pytest.raises(BundleError, match="holds a value that no run can have"):
        bundle.verify_bundle(path)


def test_a_tolerance_without_its_figures_does_not_pass_for_kept(factory, tmp_path):
    """With NULL in the place of rows beyond the tolerance the verdict would be judged as if none was asked for."""
    made = factory.make_certificate(plan=None, tolerance=0.1)
    bundle.verify_bundle(bundle.write_bundle(replace(made, named=()), tmp_path / "whole"))
    empty = tuple(replace(claim, beyond_tolerance=None, beyond_tolerance_bound=None) for claim in made.claims)
    for claims in (empty, (*made.claims[:-1], empty[-1])):
        path = bundle.write_bundle(replace(made, claims=claims, named=()), tmp_path)
        with pytest.raises(BundleError, match="a figure, as the certificate has a tolerance"):
            bundle.verify_bundle(path)


NAMED_WRONG = {
    "a label with words of the prompt": {"label": "the code of Oslo"},
    "a token behind the prompt": {"position": 4096},
    "a layer that there is none of": {"worst_layer": 4},
    "a head that there is none of": {"worst_head": 4},
    "fewer rows than heads": {"rows": 15},
    "more bad rows than rows": {"beyond_rounding": 17},
    "a token twice": {"position": 4095},
    "rows beyond no tolerance": {"beyond_tolerance": 0},
    "a mass without the largest key": {"hit_rate": None},
    "no mass under a plan": {"mass": None, "hit_rate": None},
    "a long text": {"text": "w" * 65},
}


@pytest.mark.parametrize("wrong", NAMED_WRONG)
def test_nonsense_of_named_rows_is_refused(certified, tmp_path, wrong):
    named = (replace(certified.named[0], **NAMED_WRONG[wrong]), *certified.named[1:])
    path = bundle.write_bundle(replace(certified, named=named), tmp_path)
    with pytest.raises(BundleError, match="holds a value that no run can have"):
        bundle.verify_bundle(path)


@pytest.mark.parametrize("column", ["nonfinite_rows", "beyond_rounding"])
def test_a_verdict_better_than_its_named_rows_is_refused(factory, tmp_path, column):
    exact = factory.make_certificate(plan=None)
    bundle.verify_bundle(bundle.write_bundle(exact, tmp_path / "exact"))
    named = (replace(exact.named[0], **{column: 1}), *exact.named[1:])
    path = bundle.write_bundle(replace(exact, named=named), tmp_path)
    with pytest.raises(BundleError, match="one that the claim of the pass and the named rows allow"):
        bundle.verify_bundle(path)


def test_a_certificate_is_stored_beside_the_runs_and_is_none_of_them(stored, certified, small):
    view = OwnerView(stored, None)
    assert certificate_queries.certificate(view, ID) == certified.certificate
    assert certificate_queries.whole(view, ID) == certified.claims[0]
    assert len(certificate_queries.claims(view, ID, "head")) == 16
    assert certificate_queries.named_rows(view, ID) == list(certified.named)
    assert certificate_queries.certificates(view)["run_id"].tolist() == [ID]
    assert list(queries.runs(view)["run_id"]) == [small.run.run_id] == list(view.run_ids())
    assert stored.run_ids() == {ID, small.run.run_id}, "neither is taken in again after a crash"
    assert queries.newest(view) == small.run.run_id and certificate_queries.newest(view) == ID
    assert certificate_queries.resolve(view, "ce47f1ca") == ID
    assert certificate_queries.resolve(view, "ca") is None, "four characters at least"
    with pytest.raises(InputError, match="is a certificate of window=256; no routing was recorded"):
        queries.resolve(view, "ce47f1ca")


def test_deleted_restored_and_gone_for_good(stored):
    view = OwnerView(stored, None)
    view.delete_run(ID)
    assert certificate_queries.certificates(view).empty and view.bundle(ID) is None
    for table in ("claim", "named_row"):
        assert stored.rows(f"SELECT count(*) FROM {table}") == [(0,)], "they go with it"
    trash.sync(stored)
    assert stored.rows("SELECT run_id, prompt_name FROM trashed_run") == [(ID, "ledger.txt")]
    view.restore_run(ID)
    assert certificate_queries.newest(view) == ID and view.bundle(ID).is_dir()
    view.delete_run(ID)
    view.empty_trash([ID])
    assert not stored.rows("SELECT * FROM trashed_run") and not (stored.trash / ID).exists()


def test_somebody_else_neither_sees_nor_deletes_it(factory, store, take_in):
    take_in(factory.make_certificate(owner="a" * 32))
    other, ann = OwnerView(store, "b" * 32), OwnerView(store, "a" * 32)
    assert certificate_queries.certificates(other).empty and certificate_queries.resolve(other, ID) is None
    assert certificate_queries.claims(other, ID, "head").empty and other.bundle(ID) is None
    assert certificate_queries.named_rows(other, ID) == []
    with pytest.raises(StoreError, match="is not in the store"):
        other.delete_run(ID)
    assert len(certificate_queries.claims(ann, ID, "head")) == 16


@pytest.mark.parametrize("same", [True, False])
def test_a_run_finds_the_certificates_of_its_prompt_and_whether_its_own_router_was_certified(
    factory, store, small, take_in, same
):
    config = json.loads(small.run.config_json) | {"seed": 7, "break_even_tokens": 0}
    config |= {} if same else {"tail_tokens": 4_096}
    records = [small]
    for name, about in {
        "own": {"plan": None, "config_json": json.dumps({"method": "routesparse", "router": config})},
        "rule": {"plan": "xattention=0.9"},
        "other": {"prompt_sha256": "another prompt"},
    }.items():
        same_prompt = {"prompt_sha256": small.run.prompt_sha256, "model_revision": small.run.model_revision}
        records.append(factory.make_certificate(f"20261101-{name}", **(same_prompt | about)))
    take_in(*records)
    found = certificate_queries.of_same_prompt(OwnerView(store, None), small.run.run_id)
    assert dict(zip(found["run_id"], found["same_router"], strict=True)) == {
        "20261101-own": same,
        "20261101-rule": False,
    }
