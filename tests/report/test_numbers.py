"""Numbers as text."""

from __future__ import annotations

import math

import pytest

from elbowroom.report.numbers import between, fixed, short, typographic
from elbowroom.study import Interval


def test_fixed() -> None:
    assert fixed(-0.001, 2) == "0.00"
    assert fixed(-1.005, 1, sign=True) == "-1.0"
    assert fixed(math.inf, 1) == "–"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234.56, "1235"),
        (12500.0, "12.5k"),
        (3e9, "3G"),
        (1e-7, "1e-7"),
        (1e15, "1e15"),
    ],
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


def test_between() -> None:
    assert between(Interval(estimate=1, low=None, high=None, level=0.95, n=1), 2) == "–"
    found = Interval(estimate=1, low=-0.5, high=2, level=0.95, n=2)
    assert between(found, 1, sign=True) == "-0.5 to +2.0"


def test_typographic_changes_numbers_only() -> None:
    assert typographic("-1 to -2.5 (-3), ce-2 - x-") == "−1 to −2.5 (−3), ce-2 - x-"
