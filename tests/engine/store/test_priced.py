"""Runs of the policy "priced" in the store: a layer's certificate, its climbs."""

from dataclasses import replace

import pandas as pd
import pytest

from routesparse.engine.store import audit_queries, bundle, fallback_queries, queries


@pytest.fixture(scope="module")
def made(factory):
    """A priced run of four layers, whose second layer climbed."""
    return factory.priced(
        factory.make_record(layers=4, heads=4, segments=2, tokens=4096, probe_columns=16, hardness=0.9)
    )


@pytest.fixture
def view(take_in, made):
    """The store with that run in it."""
    return take_in(made)


def test_a_priced_run_comes_back_as_it_was_written(made, view, tmp_path):
    assert bundle.read_bundle(bundle.write_bundle(made, tmp_path)).run == made.run
    found = queries.run(view, made.run.run_id)
    assert found == made.run
    assert (found.gate_threshold, found.price, found.tau_layer, found.tau) == (None, 0.3, 0.7, 0.4)


def test_layers_carry_their_certificate_and_how_far_they_climbed(made, view):
    rows = queries.layers(view, made.run.run_id)
    assert rows["raised"].tolist() == [row.raised for row in made.layers]
    assert rows["raised"][1] == 1 and (rows["lower_mass"] >= 0.7).all()
    assert not rows["layer_uncertified"].any() and made.uncertified_layers == ()
    run = queries.runs(view).iloc[0]
    assert (run["uncertified_layers"], run["least_layer_mass"]) == (0, rows["lower_mass"].min())


@pytest.mark.parametrize("mass", [None, 0.69])
def test_a_layer_below_its_tau_is_counted_everywhere(made, take_in, mass):
    layers = (made.layers[0], replace(made.layers[1], lower_mass=mass), *made.layers[2:])
    record = replace(made, layers=layers)
    view, run_id = take_in(record), made.run.run_id
    assert record.uncertified_layers == (1,)
    assert queries.layers(view, run_id)["layer_uncertified"].tolist() == [False, True, False, False]
    assert queries.runs(view)["uncertified_layers"].tolist() == [1]
    assert fallback_queries.layer_certificates(view, [run_id])["uncertified"].sum() == 1
    assert audit_queries.layer_claims(view, [run_id])["uncertified"].sum() == 1


def test_a_layer_is_audited_by_the_mean_over_its_heads(made, view):
    rows = audit_queries.layer_claims(view, [made.run.run_id])
    dense = {(c.layer, c.head, c.segment) for c in made.choices if c.pattern == "dense"}
    for row in rows.itertuples():
        means = []
        for segment in range(2):
            masses = [
                1.0 if (a.layer, a.head, a.segment) in dense else a.mass
                for a in made.audits
                if (a.layer, a.segment) == (row.layer, segment)
            ]
            means.append(sum(masses) / len(masses))
        assert row.audited_mass == pytest.approx(min(means))


def audited(made, masses):
    """The run with these audited masses by segment, in the layers that ran sparse in both."""
    return replace(made, audits=tuple(replace(a, mass=masses[a.segment]) for a in made.audits))


@pytest.mark.parametrize(
    ("masses", "covered"), [((0.99, 0.99), None), ((0.99, 0.0), False), ((0.0, 0.99), False)]
)
def test_the_least_of_two_segments_claims_tells_what_broke_but_not_that_both_held(
    made, take_in, masses, covered
):
    """The other segment's claim was larger, perhaps larger than its truth."""
    rows = audit_queries.layer_claims(take_in(audited(made, masses)), [made.run.run_id])
    both = rows[rows["claims"] == 2]
    assert len(both)
    told = [None if pd.isna(value) else bool(value) for value in both["covered"]]
    assert told == [covered] * len(both)


def test_a_layer_with_one_claim_is_covered_where_its_truth_reaches_it(made, factory, take_in):
    """Two segments, of which the second ran dense in layer 0."""
    choices = tuple(
        replace(c, pattern="dense", lower_mass=None) if (c.layer, c.segment) == (0, 1) else c
        for c in made.choices
    )
    for name, mass, covered in (("aa", 0.99, True), ("bb", 0.0, False)):
        record = factory.rename(replace(audited(made, (mass, 0.99)), choices=choices), name)
        row = audit_queries.layer_claims(take_in(record), [record.run.run_id]).iloc[0]
        assert (row["claims"], bool(row["covered"])) == (1, covered)


def test_a_layer_with_a_sparse_head_that_was_not_audited_has_no_truth(made, take_in):
    unit = next(c for c in made.choices if c.pattern != "dense" and c.layer == 2)
    key = (unit.layer, unit.head, unit.segment)
    audits = tuple(a for a in made.audits if (a.layer, a.head, a.segment) != key)
    rows = audit_queries.layer_claims(take_in(replace(made, audits=audits)), [made.run.run_id])
    assert rows["audited_mass"].isna().tolist() == [False, False, True, False]


def test_events_say_whose_certificate_failed(made, view):
    found = fallback_queries.events(view, [made.run.run_id], 1000)
    assert set(found["scope"]) <= {"head", "layer"} and "layer" in set(found["scope"])
    assert set(found.loc[found["scope"] == "layer", "tau"]) == {0.7}
    paid = fallback_queries.paid_by_layer(view, [made.run.run_id])
    assert paid["layer_events"].sum() == (found["scope"] == "layer").sum() > 0


def test_a_candidate_does_not_carry_its_layer_s_bound_as_its_own(made, view):
    event = next(event for event in made.fallbacks if event.scope == "layer")
    unit = queries.Unit(made.run.run_id, event.layer, event.head, event.segment)
    rows = queries.candidates(view, unit).set_index("candidate")
    assert rows["lower_mass"].isna()[event.from_candidate]


def test_other_policies_certify_no_layer(small, take_in):
    view = take_in(small)
    assert queries.runs(view)["uncertified_layers"].isna().all()
    assert not queries.layers(view, small.run.run_id)["layer_uncertified"].any()
    assert fallback_queries.layer_certificates(view, [small.run.run_id]).empty
    assert audit_queries.layer_claims(view, [small.run.run_id]).empty
