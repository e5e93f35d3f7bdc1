"""Shares of languages: by hand, and what each rule promises."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.lab.sampling import shares, temperature, unimax

lengths = st.lists(st.integers(1, 10**9), min_size=1, max_size=12)


def test_natural_is_in_proportion():
    assert shares((1, 3)) == (0.25, 0.75)
    assert shares(np.array([1, 3]).tolist(), "natural") == (0.25, 0.75)
    assert shares((0.98, 0.02)) == pytest.approx((0.98, 0.02), abs=1e-15)


def test_temperature_by_hand():
    assert temperature((1, 8), tau=3.0) == pytest.approx((1 / 3, 2 / 3))
    assert shares((1, 8), "temperature", tau=1.0) == pytest.approx((1 / 9, 8 / 9))
    assert temperature((1, 10**300), tau=0.001) == (0.0, 1.0)  # no overflow


def test_unimax_by_hand():
    assert unimax((100, 1000), budget=500, epochs=1) == (0.2, 0.8)
    assert unimax((1000, 100), budget=500, epochs=1) == (0.8, 0.2)
    assert unimax((1000, 100), budget=100, epochs=1) == (0.5, 0.5)
    # A budget that is more than all text allows: as often as each may be read, so in proportion.
    assert unimax((1000, 100), budget=10**9, epochs=4) == pytest.approx((10 / 11, 1 / 11))


@given(lengths, st.floats(0.1, 20), st.floats(1, 1e12))
def test_unimax_keeps_its_promise(n, epochs, budget):
    q = unimax(n, budget=budget, epochs=epochs)
    assert math.isclose(sum(q), 1)
    spent = min(budget, epochs * sum(n))
    read = [share * spent / length for share, length in zip(q, n, strict=True)]
    assert max(read) <= epochs * (1 + 1e-9)
    free = [share for share, times in zip(q, read, strict=True) if times < epochs * (1 - 1e-6)]
    assert all(math.isclose(share, max(q), rel_tol=1e-6) for share in free)


@given(lengths, st.floats(1, 100))
def test_temperature_keeps_the_order_and_flattens(n, tau):
    q, p = temperature(n, tau), shares(n)
    assert math.isclose(sum(q), 1)
    assert max(q) <= max(p) * (1 + 1e-12)
    order = sorted(range(len(n)), key=lambda i: n[i])
    assert all(q[i] <= q[j] * (1 + 1e-12) for i, j in pairwise(order))


def test_fixed_is_made_to_add_up():
    assert shares((5, 5), "fixed", fixed=(3, 1)) == (0.75, 0.25)
    assert shares((5, 5), "fixed", fixed=(1, 0)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (((1, 2), "most"), {}, "rule: expected 'natural'"),
        (((),), {}, "lengths: expected at least one"),
        (((1, 0),), {}, "lengths: expected a finite number"),
        (((1, 2), "unimax"), {}, "budget: expected the tokens"),
        (((1, 2), "unimax"), {"budget": 0}, "budget"),
        (((1, 2), "unimax"), {"budget": 1, "epochs": 0}, "epochs"),
        (((1, 2), "temperature"), {"tau": 0}, "tau"),
        (((1, 2), "fixed"), {"fixed": (1,)}, "fixed: expected a share for each of 2"),
        (((1, 2), "fixed"), {"fixed": (0, 0)}, "fixed: expected at least one share"),
        (((1, 2), "fixed"), {"fixed": (1, -1)}, "fixed"),
    ],
)
def test_bad_input_is_named(arguments, options, message):
    with pytest.raises(ArgumentValueError, match=message):
        shares(*arguments, **options)


def test_text_is_no_number():
    with pytest.raises(ArgumentTypeError, match="lengths"):
        shares(["many", 2])  # type: ignore[list-item]
