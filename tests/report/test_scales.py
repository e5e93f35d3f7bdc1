"""Scales and their ticks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.report.scales import log_ticks, nice_ticks, scale, tick_labels


def test_linear_and_logarithmic_places() -> None:
    assert scale([2, 4], 100, 0)(3) == 50
    assert scale([1, 100], 0, 10, log=True)(10) == pytest.approx(5)
    padded = scale([0, 1], 0, 1, pad=0.5)
    assert (padded.low, padded.high) == (-0.5, 1.5)


@pytest.mark.parametrize("log", [False, True])
def test_degenerate_values_still_make_a_scale(log: bool) -> None:
    for values in ([], [3.0], [3.0, 3.0], [None, math.nan, math.inf, 3.0], [0.0, -0.0, 1.0]):
        found = scale(values, 0, 100, log=log)
        assert found.low < found.high
        assert all(math.isfinite(found(tick)) for tick in found.ticks())


@given(
    low=st.floats(-1e6, 1e6), width=st.floats(1e-3, 1e6), count=st.integers(1, 8), log=st.booleans()
)
def test_ticks_lie_inside_and_are_few(low: float, width: float, count: int, log: bool) -> None:
    low = abs(low) + 1e-3 if log else low
    found = scale([low, low + width], 0, 100, log=log)
    ticks = found.ticks(count)
    assert all(-1e-3 <= found(tick) <= 100.001 for tick in ticks)
    assert len(ticks) <= 2 * count + 3
    assert ticks == sorted(set(ticks))
    assert len(tick_labels(ticks)) == len(ticks)


def test_a_narrow_logarithmic_scale_has_linear_ticks() -> None:
    assert log_ticks(4.1, 4.9) == []
    assert scale([4.1, 4.9], 0, 1, log=True).ticks(4) == nice_ticks(4.1, 4.9, 4)
    assert log_ticks(1e-9, 1e9, 3) == [1e-9, 1e-4, 10.0, 1e6]


def test_labels_share_decimals_and_units() -> None:
    assert tick_labels([0.0, 5000.0, 10000.0]) == ["0", "5k", "10k"]
    assert tick_labels([-0.5, 0.0, 0.25]) == ["−0.50", "0", "0.25"]
    assert tick_labels([1e6, 2e6]) == ["1M", "2M"]
    assert tick_labels([1e-5]) == ["1e-5"]
    assert tick_labels([]) == []
