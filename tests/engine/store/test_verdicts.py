"""The verdict on a stored run is the one on its record: all facts survive bundle and store. No GPU."""

from dataclasses import replace

import pytest

from routesparse.engine.store import queries, verdicts
from routesparse.engine.verdict import of_record


def uncertified(made):
    return replace(made, choices=tuple(replace(c, lower_mass=None) for c in made.choices))


def wrong_kernel(made):
    return replace(made, audits=(replace(made.audits[0], executed_error=0.5), *made.audits[1:]))


CHANGES = {
    "as made": lambda made: made,
    "uncertified": uncertified,
    "drift": lambda made: replace(made, run=replace(made.run, drift_alarm=True)),
    "another token": lambda made: replace(made, run=replace(made.run, top1_agreement=0.0, kl_nats=1.5)),
    "not compared": lambda made: replace(made, run=replace(made.run, top1_agreement=None, kl_nats=None)),
    "text parts early": lambda made: replace(
        made, continuations=tuple(replace(row, tokens=24) for row in made.continuations)
    ),
    "loss not predicted": lambda made: replace(
        made, run=replace(made.run, loss_nats=None, loss_bound=None, loss_fit=None, loss_alarm=None)
    ),
    "loss not fitted": lambda made: replace(made, run=replace(made.run, loss_fit=None, loss_alarm=None)),
    "loss unlike the fit": lambda made: replace(made, run=replace(made.run, loss_alarm=True)),
    "loss above its target": lambda made: replace(made, run=replace(made.run, loss_target=0.005)),
    "violated": lambda made: replace(made, audits=(replace(made.audits[0], violations=3), *made.audits[1:])),
    "kernel": wrong_kernel,
    "not audited": lambda made: replace(
        made, audits=(), run=replace(made.run, coverage=None, mean_error=None)
    ),
    "not routed": lambda made: replace(
        made,
        choices=(),
        candidates=(),
        fallbacks=(),
        audits=(),
        layers=(),
        run=replace(made.run, routed=False, units=0, sparse_units=0, density=None),
    ),
}


@pytest.mark.parametrize("kind", ["certified", "priced"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_stored_run_has_the_verdict_of_its_record(take_in, factory, small, change, kind):
    made = change(small if kind == "certified" else factory.priced(small))
    view = take_in(made, factory.rename(small, "00other00"))
    assert verdicts.of_run(view, made.run.run_id) == of_record(made)
    listed = queries.runs(view)
    assert dict(zip(listed["run_id"], verdicts.of_rows(listed), strict=True))[made.run.run_id] == of_record(
        made
    )
