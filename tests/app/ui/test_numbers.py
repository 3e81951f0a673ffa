"""How pages print numbers: digits enough to tell a pass from a fail."""

import pytest

from routesparse.app.ui import numbers


@pytest.mark.parametrize(
    ("tau", "shown"), [(0.9, "0.90"), (0.25, "0.25"), (0.895, "0.895"), (0.3, "0.30"), (1.0, "1.00")]
)
def test_a_tau_keeps_its_digits(tau, shown):
    assert numbers.threshold(tau) == shown


def test_a_hundred_percent_passed_means_all():
    assert [numbers.share_passed(v) for v in (1.0, 0.999, 0.57, None)] == [
        "100 %",
        "99 %",
        "57 %",
        "not measured",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.89996, "0.899"), (0.9, "0.900"), (0.57, "0.570"), (0.9004, "0.900"), (1.0, "1.000")],
)
def test_a_bound_below_tau_never_reads_as_tau(value, shown):
    assert numbers.bound(value) == shown and numbers.bound(None) == "not measured"


@pytest.mark.parametrize(("value", "shown"), [(1.84, "+1.8"), (-0.3, "-0.3"), (-0.04, "±0.0"), (0.0, "±0.0")])
def test_a_difference_that_rounds_to_nothing_has_no_side(value, shown):
    assert numbers.signed(value, 1) == shown
