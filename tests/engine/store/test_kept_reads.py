"""What is read once as long as the store does not change. No GPU."""

from __future__ import annotations

from routesparse.engine.store import bundle, queries, spool
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.kept_reads import KeptReads
from routesparse.engine.store.labels import Label
from routesparse.engine.store.owner_view import OwnerView


def test_a_result_is_kept_until_the_generation_grows():
    kept, asked = KeptReads(4), []

    def read(value):
        return lambda: asked.append(value) or value

    assert kept.of(1, "runs", read("old")) == kept.of(1, "runs", read("never read")) == "old"
    assert kept.of(2, "runs", read("new")) == "new" and asked == ["old", "new"]


def test_a_read_that_a_change_overtook_is_not_kept():
    kept = KeptReads(4)

    def slow():
        kept.of(2, "runs", lambda: "after the change")
        return "before the change"

    assert kept.of(1, "runs", slow) == "before the change", "whoever asked before the change may see what was"
    assert kept.of(2, "runs", lambda: "read again") == "after the change"
    assert kept.of(1, "runs", lambda: "of an old page") == "of an old page"
    assert kept.of(2, "runs", lambda: "read again") == "after the change"


def test_no_more_results_are_kept_than_said():
    kept = KeptReads(2)
    for key in ("a", "b", "a", "c"):
        kept.of(1, key, lambda: "first")
    assert [kept.of(1, key, lambda: "again") for key in ("a", "c", "b")] == ["first", "first", "again"]


def test_runs_are_as_stored_after_every_change_and_belong_to_whoever_asked(tmp_path, factory):
    store = Store(tmp_path / "store.duckdb")
    view = OwnerView(store, None)
    small = {"layers": 2, "heads": 2, "segments": 1, "tokens": 2048, "probe": False}
    bundle.write_bundle(factory.make_record("aaaa1111bbbb2222", **small), tmp_path / "spool")
    spool.ingest_spool(store, tmp_path / "spool")
    first = queries.runs(view)
    first.loc[0, "model"] = "what a page writes into its own copy"
    assert queries.runs(view)["model"].tolist() == ["demo"]
    view.set_label("aaaa1111bbbb2222", Label(name="ledger"))
    assert queries.runs(view)["name"].tolist() == ["ledger"]
    assert queries.runs(OwnerView(store, "a" * 32)).empty
    bundle.write_bundle(factory.make_record("cccc1111bbbb2222", **small), tmp_path / "spool")
    spool.ingest_spool(store, tmp_path / "spool")
    assert len(queries.runs(view)) == 2 and queries.short_id(view, "aaaa1111bbbb2222") == "aaaa1111bbbb2222"
    view.delete_run("cccc1111bbbb2222")
    assert len(queries.runs(view)) == 1 and queries.short_id(view, "aaaa1111bbbb2222") == "bbbb2222"
    store.close()
