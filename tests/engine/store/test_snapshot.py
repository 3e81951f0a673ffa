"""The stored rows beside a dashboard that holds the database: read from bundles alone. No GPU."""

import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.store import bundle
from routesparse.engine.store.snapshot import snapshot


def test_a_table_of_all_stored_bundles(factory, tmp_path):
    run = factory.make_record(layers=2, heads=2, segments=1, tokens=2048, probe=False)
    for record in (run, factory.rename(run, "3f9a1c20d4e5b679"), factory.make_certificate()):
        bundle.write_bundle(record, tmp_path / "bundles")
    assert snapshot(home=tmp_path)["tokens"].tolist() == [2048, 2048]
    assert snapshot("head_choice", home=tmp_path)["run_id"].nunique() == 2
    assert len(snapshot("certificate", home=tmp_path)) == 1
    assert snapshot("loss", home=tmp_path / "empty").empty


def test_an_unknown_table_is_refused_with_those_that_there_are(tmp_path):
    with pytest.raises(InputError, match="no table 'runs' is stored; choose one of run, layer_run"):
        snapshot("runs", home=tmp_path)
