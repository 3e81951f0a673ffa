"""Bounds as text claim no more than was shown. CPU."""

import math
import random

import pytest

from routesparse.engine.rounding import all_digits, at_least, at_most

VALUES = [random.Random(seed).random() ** 4 for seed in range(500)]


def number(text):
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


@pytest.mark.parametrize("percent", [False, True])
def test_a_bound_is_never_rounded_to_a_stronger_claim(percent):
    for value in (*VALUES, 0.0, 1.0):
        upper, lower = at_most(value, percent=percent), at_least(1 - value, percent=percent)
        assert number(upper) >= value * (1 - 1e-15) and number(lower) <= (1 - value) * (1 + 1e-15)
        # Two digits of what is left out: within a tenth of it.
        assert number(upper) <= 1.1 * value and 1 - number(lower) <= 1.1 * value + 1e-12


def test_as_a_reader_sees_them():
    assert at_most(0.0000467, percent=True) == "0.0047%"
    assert at_most(0.07, percent=True) == "7.0%" and at_most(0.0, percent=True) == "0%"
    assert at_most(0.1231, 3) == "0.124" and at_most(123.4, 2) == "130" and at_most(math.inf) == "inf"
    assert at_most(2.31e-7) == "2.4e-7"
    assert at_least(0.99999, percent=True) == "99.9990%" and at_least(1.0, percent=True) == "100%"
    assert at_least(0.7654) == "0.76" and at_least(0.0) == "0.0"
    assert all_digits(0.995, percent=True) == "99.5%" and all_digits(0.0125, percent=True) == "1.25%"
    assert all_digits(0.9, percent=True) == "90%"
