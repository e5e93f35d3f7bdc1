"""Intervals against scipy, against their promise, and at their edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from elbowroom import study
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.study import Interval

VALUES = [10.6, 11.1, 10.6, 10.5, 10.0]


def test_the_mean_has_students_interval() -> None:
    found = study.mean_interval(VALUES, level=0.9)
    expected = stats.t.interval(0.9, 4, np.mean(VALUES), stats.sem(VALUES))
    assert found.estimate == pytest.approx(np.mean(VALUES))
    assert (found.low, found.high) == pytest.approx(expected)
    assert (found.n, found.level) == (5, 0.9)
    assert found.half_width == pytest.approx((expected[1] - expected[0]) / 2)
    assert 10.5 in found
    assert 12 not in found


def test_one_value_has_no_interval_and_two_a_wide_one() -> None:
    for function in (study.mean_interval, study.prediction_interval):
        one = function([3.0])
        assert (one.estimate, one.low, one.high, one.half_width) == (3.0, None, None, None)
        assert 1e9 in one
    two = study.mean_interval([1.0, 2.0])
    assert two.half_width == pytest.approx(12.706 * 0.5, rel=1e-4)


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_the_bootstrap_is_near_scipys_and_repeats_itself(method: str) -> None:
    x = np.random.default_rng(1).gamma(2, size=20)
    found = study.mean_interval(x.tolist(), method=method)  # type: ignore[arg-type]
    theirs = stats.bootstrap((x,), np.mean, method=method.replace("bca", "BCa"), rng=0)
    assert (found.low, found.high) == pytest.approx(theirs.confidence_interval, abs=0.02)
    assert found == study.mean_interval(x.tolist(), method=method)  # type: ignore[arg-type]
    other = study.mean_interval(x.tolist(), method=method, seed=1)  # type: ignore[arg-type]
    assert other != found


def test_the_bootstrap_of_equal_values_is_a_point() -> None:
    for method in ("percentile", "bca"):
        found = study.mean_interval([2.0, 2.0, 2.0], method=method, resamples=10)  # type: ignore[arg-type]
        assert (found.low, found.high) == (2.0, 2.0)


def test_paired_differences() -> None:
    first, second = [1.0, 2.0, 3.5, 3.0], [2.0, 2.5, 3.0, 3.0]
    found = study.paired_difference(first, second)
    assert found.differences == (-1.0, -0.5, 0.5, 0.0)
    assert (found.n, found.positive, found.negative) == (4, 1, 2)
    assert found.p == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert found.sign_p == pytest.approx(stats.binomtest(1, 3).pvalue)
    assert found.interval == study.mean_interval(found.differences)


def test_equal_differences_are_certain_and_no_difference_is_none() -> None:
    assert study.paired_difference([1.0, 2.0], [0.0, 1.0]).p == 0.0
    assert study.paired_difference([1.0, 2.0], [1.0, 2.0]).p == 1.0
    assert study.paired_difference([1.0], [2.0]).p is None


def test_a_new_seed_lies_in_the_prediction_interval_as_often_as_promised() -> None:
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        *seen, new = random.normal(size=5).tolist()
        inside += new in study.prediction_interval(seen, level=0.8)
    assert study.wilson_interval(inside, 400, level=0.999).__contains__(0.8)


def test_wilson_is_scipys() -> None:
    for k, n in ((0, 10), (5, 40), (10, 10)):
        found = study.wilson_interval(k, n)
        expected = stats.binomtest(k, n).proportion_ci(method="wilson")
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    nothing = study.wilson_interval(0, 0)
    assert (nothing.low, nothing.high) == (0, 1)


def test_holm_steps_down() -> None:
    assert study.holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx((0.04, 0.09, 0.09, 0.5))
    assert study.holm([0.9, 0.8]) == (1.0, 1.0)
    assert study.holm([]) == ()


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([], ArgumentValueError),
        ([1.0, math.nan], ArgumentValueError),
        (["a"], ArgumentTypeError),
        ([[1.0]], ArgumentValueError),
    ],
)
def test_bad_values(values: list[float], error: type, unchecked: None) -> None:
    with pytest.raises(error, match="values: expected"):
        study.mean_interval(values)


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentValueError, match="as many as first"):
        study.paired_difference([1.0], [1.0, 2.0])
    with pytest.raises(ArgumentValueError, match="successes: expected at most trials"):
        study.wilson_interval(2, 1)
    with pytest.raises(ArgumentValueError, match="level"):
        study.mean_interval(VALUES, level=1.0)
    with pytest.raises(ArgumentValueError, match="method: expected 't'"):
        study.mean_interval(VALUES, method="z")  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match="p: expected"):
        study.holm([2.0])


def test_an_interval_without_ends_rules_out_nothing() -> None:
    assert 5 in Interval(estimate=0, low=None, high=None, level=0.95, n=1)
