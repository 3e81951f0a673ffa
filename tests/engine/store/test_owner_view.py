"""Two owners and a sample in one store: each sees their own runs and the sample, in every query there is. No GPU."""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
from dataclasses import replace
from importlib import import_module

import numpy as np
import pandas as pd
import pytest

import routesparse.engine.store as package
from routesparse.engine.errors import InputError, RouteSparseError, StoreError
from routesparse.engine.rows import FallbackEventRow
from routesparse.engine.store import bundle, queries, spool
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.labels import Label
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.queries import Unit

DAY = "2026-11-22"  # of Ann's; the others' are earlier
ANN, BOB = "a" * 32, "b" * 32
ANNS, BOBS, SAMPLE = "a1a1a1a1a1a1a1a1", "b2b2b2b2b2b2b2b2", "5a5a5a5a5a5a5a5a"
PRIVATE = ("run_label", "trashed_run")  # samples have none of their own
ANNS_DELETED = "a3a3a3a3a3a3a3a3"
MODULES = [
    import_module(f"{package.__name__}.{found.name}")
    for found in pkgutil.iter_modules(package.__path__)
    # They take the whole store, or make the views.
    if found.name not in ("duckdb_store", "duckdb_file", "spool")
]
# How a query is asked for a run; a parameter of another name has to be added here.
ARGUMENTS = {
    "run_id": lambda run_id: run_id,
    "text": lambda run_id: run_id[:8],
    "run_ids": lambda run_id: [run_id],
    "unit": lambda run_id: Unit(run_id, 0, 0, 0),
    "segment": lambda run_id: 0,
    "batch_index": lambda run_id: 0,
    "layer": lambda run_id: None,
    "head": lambda run_id: None,
    "token": lambda run_id: 5,
    "position": lambda run_id: 700,
    "limits": lambda run_id: None,
    "shape": lambda run_id: (2, 2),
    "most": lambda run_id: 50,
    "order": lambda run_id: "mass",
    "profile": lambda run_id: f"profile-{run_id}",
    "calibrations": lambda run_id: [f"calibration-{run_id}"],
    "certificate_id": lambda run_id: f"certificate-{run_id}",
    "scope": lambda run_id: "head",
    "last_day": lambda run_id: DAY,
    "days": lambda run_id: 7,
    "sweep_id": lambda run_id: f"sweep-{run_id}",
}


def query_functions():
    """Every public function of the store's modules that reads through an owner's view."""
    for module in MODULES:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            takes = inspect.signature(function).parameters.values()
            reads = any(parameter.annotation == "OwnerView" for parameter in takes)
            if function.__module__ == module.__name__ and not name.startswith("_") and reads:
                yield pytest.param(function, id=f"{module.__name__.rpartition('.')[2]}.{name}")


FUNCTIONS = list(query_functions())


def make(factory, run_id, owner):
    """A small run that differs from the others in everything that a query may show."""
    record = factory.make_record(
        run_id,
        name=f"{run_id}.txt",
        domain=f"domain-{run_id}",
        layers=2,
        heads=2,
        segments=1,
        tokens=2048,
        probe_columns=16,
    )
    run = replace(
        record.run,
        owner=owner,
        calibration=f"calibration-{run_id}",
        profile=f"profile-{run_id}",
        device=f"device-{run_id}",
        sweep=f"sweep-{run_id}",
        tuned_price=f"target-{run_id}",
        tau_layer=0.7,
        created_at=f"{DAY if owner == ANN else '2026-11-20'}T09:00:00+00:00",
        config_json=json.dumps(
            json.loads(record.run.config_json) | {"served": {"by": "vllm", "one_in": 100}}
        ),
    )
    event = FallbackEventRow(run_id, 0, 0, 0, 0, 1, 3, 0.8, 0.9, "expand", 4, 12.5)
    layers = tuple(replace(row, forward_error=0.01, lower_mass=0.75, raised=0) for row in record.layers)
    return replace(record, run=run, layers=layers, fallbacks=(event,))


def certificate(factory, run_id, owner):
    """A certificate of the run's prompt."""
    run = make(factory, run_id, owner).run
    names = {"prompt_sha256": run.prompt_sha256, "model_revision": run.model_revision, "owner": owner}
    return factory.make_certificate(f"certificate-{run_id}", plan=f"plan-{run_id}", **names)


@pytest.fixture(scope="module")
def stores(factory, tmp_path_factory):
    """The same store twice: with Ann's run, and as if it had never been."""
    opened = []
    for with_ann in (True, False):
        home = tmp_path_factory.mktemp("store")
        store = Store(home / "routesparse.duckdb")
        bundle.write_bundle(make(factory, SAMPLE, None), home / "samples")
        bundle.write_bundle(certificate(factory, SAMPLE, None), home / "samples")
        spool.ingest_samples(store, home / "samples")
        hers = ((ANNS, ANN), (ANNS_DELETED, ANN)) * with_ann
        for run_id, owner in ((BOBS, BOB), *hers):  # hers are the newest
            bundle.write_bundle(make(factory, run_id, owner), home / "spool")
            bundle.write_bundle(certificate(factory, run_id, owner), home / "spool")
        spool.ingest_spool(store, home / "spool")
        if with_ann:
            ann = OwnerView(store, ANN)
            ann.delete_run(ANNS_DELETED)
            for run_id in (ANNS, SAMPLE):
                ann.set_label(run_id, Label("hers", "her notes", ("her tag",), pinned=run_id == ANNS))
        opened.append(store)
    yield opened
    for store in opened:
        store.close()


def answer(function, store, owner, run_id):
    """What a query answers, in a form that compares; an error is an answer too."""
    values = {}
    for name, parameter in inspect.signature(function).parameters.items():
        values[name] = (
            OwnerView(store, owner) if parameter.annotation == "OwnerView" else ARGUMENTS[name](run_id)
        )
    try:
        return plain(function(**values))
    except RouteSparseError as error:
        return type(error).__name__, str(error)


def plain(value):
    if isinstance(value, pd.DataFrame):
        return list(value.columns), value.astype(object).where(value.notna(), None).to_numpy().tolist()
    if isinstance(value, np.ndarray):
        return np.where(value == value, value, -1).tolist()  # NaN equals nothing
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def test_every_query_module_is_walked():
    assert {"queries", "audit_queries", "calibration_queries", "compare_queries"} <= {
        parameter.id.partition(".")[0] for parameter in FUNCTIONS
    }
    assert len(FUNCTIONS) > 30


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("run_id", [ANNS, BOBS, SAMPLE])
def test_no_query_answers_bob_otherwise_because_ann_is_there(stores, function, run_id):
    with_ann, without_ann = stores
    assert answer(function, with_ann, BOB, run_id) == answer(function, without_ann, BOB, run_id)


def test_no_query_names_the_schema_of_everybody_s_rows():
    """Only what makes the views may say main."""
    for module in MODULES:
        assert not re.search(r"\bmain\.", inspect.getsource(module)), module.__name__


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_query_does_tell_ann_of_her_run(stores, function):
    """So that the test above can't pass because a query answers nobody."""
    with_ann, without_ann = stores
    assert answer(function, with_ann, ANN, ANNS) != answer(function, without_ann, ANN, ANNS)


@pytest.mark.parametrize(
    ("owner", "seen"), [(ANN, {ANNS, SAMPLE}), (BOB, {BOBS, SAMPLE}), ("c" * 32, {SAMPLE}), (None, {SAMPLE})]
)
def test_an_owner_sees_their_runs_and_the_samples(stores, owner, seen):
    assert OwnerView(stores[0], owner).run_ids() == seen
    assert {name for name in stores[0].run_ids() if "-" not in name} == {ANNS, BOBS, SAMPLE}


def test_every_table_and_view_has_one_of_the_owner_s(stores):
    """A name without one would mean everybody's rows: DuckDB looks into schema main last."""
    named = stores[0].rows(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE NOT internal UNION ALL "
        "SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal"
    )
    tables = {name for schema, name in named if schema == "main"} - {"schema_migration"}
    assert tables <= {name for schema, name in named if schema == "visible"}
    assert len(tables) >= 9


def test_views_narrow_the_rows_of_every_table(stores):
    views = stores[0].rows("SELECT view_name FROM duckdb_views() WHERE schema_name = 'visible'")
    for (name,) in views:
        ann = OwnerView(stores[0], ANN).rows(f"SELECT count(*) FROM {name}")[0][0]
        nobody = OwnerView(stores[0], "c" * 32).rows(f"SELECT count(*) FROM {name}")[0][0]
        assert ann > nobody > 0 or (name in PRIVATE and ann > nobody == 0), name


def test_another_s_run_reads_like_one_that_does_not_exist(stores):
    texts = []
    for run_id in (ANNS, "deadbeefdeadbeef"):
        with pytest.raises(InputError) as refused:
            queries.resolve(OwnerView(stores[0], BOB), run_id)
        texts.append(str(refused.value).replace(run_id, "RUN"))
    assert texts[0] == texts[1]


def test_runs_are_deleted_and_brought_back_by_their_owner_alone(factory, tmp_path):
    store = Store(tmp_path / "routesparse.duckdb")
    bundle.write_bundle(make(factory, ANNS, ANN), tmp_path / "spool")
    bundle.write_bundle(make(factory, SAMPLE, None), tmp_path / "samples")
    spool.ingest_spool(store, tmp_path / "spool")
    spool.ingest_samples(store, tmp_path / "samples")
    ann, bob = OwnerView(store, ANN), OwnerView(store, BOB)
    with pytest.raises(StoreError, match="not in the store"):
        bob.delete_run(ANNS)
    with pytest.raises(StoreError, match="bundled sample"):
        bob.delete_run(SAMPLE)
    assert store.run_ids() == {ANNS, SAMPLE}
    ann.delete_run(ANNS)
    with pytest.raises(StoreError, match="no longer in the trash"):
        bob.restore_run(ANNS)
    assert store.run_ids() == {SAMPLE}
    ann.restore_run(ANNS)
    assert ann.run_ids() == {ANNS, SAMPLE}
    OwnerView(store, None).delete_run(SAMPLE)
    assert store.run_ids() == {ANNS}
    store.close()


def test_bundle_written_before_owners_belongs_to_the_local_person(stores):
    """The bundled samples, and what the command line writes."""
    assert bundle.owner_of(stores[0].bundles / SAMPLE) is None
    assert bundle.owner_of(stores[0].bundles / ANNS) == ANN
    assert OwnerView(stores[0], ANN).bundle(ANNS).is_dir() and OwnerView(stores[0], BOB).bundle(ANNS) is None
