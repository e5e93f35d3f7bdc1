"""The exact distributions against scipy's and against counting by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from elbowroom.study.distributions import (
    sign_test,
    student_t_cdf,
    student_t_quantile,
    wilcoxon_test,
)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 10, 11, 100, 101])
def test_student_t_is_scipys(freedom: int) -> None:
    for t in (-50.0, -3.0, -0.1, 0.0, 0.5, 2.0, 10.0):
        assert student_t_cdf(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=1e-14)
    for p in (0.001, 0.3, 0.5, 0.975, 0.9999):
        expected = stats.t.ppf(p, freedom)
        assert student_t_quantile(p, freedom) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_sign_test_counts_outcomes() -> None:
    for positive, negative in ((5, 0), (4, 1), (3, 3), (0, 0), (2, 7)):
        n = positive + negative
        expected = stats.binomtest(positive, n).pvalue if n else 1.0
        assert sign_test(positive, negative) == pytest.approx(expected)


def brute_wilcoxon(differences: list[float]) -> float:
    """All choices of signs, one by one."""
    d = np.array([x for x in differences if x])
    ranks = stats.rankdata(np.abs(d))
    sums = [(ranks * np.array(s)).sum() for s in product((0, 1), repeat=len(d))]
    positive = ranks[d > 0].sum()
    least = min(positive, ranks.sum() - positive)
    return float(min(1.0, 2 * np.mean(np.array(sums) <= least + 1e-9)))


@pytest.mark.parametrize(
    "differences", [[1.0], [-1.0, 2.0, 2.0, 0.0, -3.0], [1, 2, 3, 4, 5.0], [-0.5] * 4, [0.0], []]
)
def test_wilcoxon_counts_all_signs_also_with_ties(differences: list[float]) -> None:
    expected = brute_wilcoxon(differences) if any(differences) else 1.0
    assert wilcoxon_test(differences) == pytest.approx(expected)


def test_wilcoxon_is_scipys_without_ties() -> None:
    values = np.random.default_rng(0).normal(size=14) + 0.3
    expected = stats.wilcoxon(values, mode="exact").pvalue
    assert wilcoxon_test(values.tolist()) == pytest.approx(expected)
