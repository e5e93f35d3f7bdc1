"""Verdicts: what they say, and what they never say."""

from __future__ import annotations

import numpy as np
import pytest

from elbowroom.study import Interval, verdict, verdicts
from elbowroom.study.verdict import decimals_for

TIED = [10.6, 11.1, 10.6, 10.5, 10.0]
OURS = [8.9, 9.0, 8.8, 9.1, 8.7]


def test_better_says_how_much_and_how_sure() -> None:
    found = verdict(OURS, TIED)
    assert found.outcome == "better"
    assert found.text == (
        "better in 5 of 5 seeds: perplexity 8.9 instead of 10.6 "
        "(difference -1.7, 95% interval -2.1 to -1.3)"
    )
    assert found.difference is not None
    assert found.p == found.difference.p
    assert found.family == 1


def test_direction() -> None:
    worse = verdict(TIED, OURS)
    assert worse.outcome == "worse"
    assert worse.text.startswith("worse in 5 of 5 seeds: perplexity 10.6 instead of 8.9")
    found = verdict([0.53, 0.54, 0.55], [0.5, 0.52, 0.51], score="accuracy", lower_is_better=False)
    assert found.outcome == "better"
    assert "accuracy 0.540 instead of 0.510" in found.text


def test_undecided_where_the_interval_holds_0() -> None:
    found = verdict([1.0, 2.1, 3.0], [1.5, 2.0, 3.1])
    assert found.outcome == "undecided"
    assert "includes 0" in found.text
    assert "better in 2 of 3 seeds" in found.text
    same = verdict([1.0, 2.0], [1.0, 2.0])
    assert (same.outcome, same.p) == ("undecided", 1.0)
    assert "-0.0" not in same.text


def test_one_seed_decides_nothing() -> None:
    found = verdict([1.0], [100.0])
    assert (found.outcome, found.p) == ("undecided", None)
    assert found.text.startswith("undecided: one seed does not show the spread")


def test_no_seed_at_all() -> None:
    found = verdict([], [])
    assert found.text == "undecided: no seed finished with both methods"
    assert (found.ours, found.reference, found.difference) == (None, None, None)


def test_holms_correction_takes_claims_back() -> None:
    ours, tied = [1.0, 1.1, 1.3, 1.0], [1.2, 1.5, 1.4, 1.4]
    alone = verdict(ours, tied)
    assert alone.outcome == "better"
    noise = {i: ([1.0, 2.0, 1.5, 1.0], [1.5, 1.4, 1.6, 1.2]) for i in range(4)}
    family = verdicts({"it": (ours, tied), **noise})
    assert family["it"].outcome == "undecided"
    assert "excludes 0 alone, not among 5 comparisons" in family["it"].text
    assert family["it"].p == pytest.approx(5 * (alone.p or 0))


def test_single_seeds_do_not_count_in_the_family() -> None:
    found = verdicts({"a": (OURS, TIED), "b": ([1.0], [2.0]), "c": ([], [])})
    assert {v.family for v in found.values()} == {1}
    assert found["a"].outcome == "better"


def test_false_claims_are_as_rare_as_promised() -> None:
    random = np.random.default_rng(0)
    wrong = 0
    for _ in range(300):
        pairs = {i: (random.normal(size=4).tolist(), random.normal(size=4).tolist()) for i in "abc"}
        wrong += any(v.outcome != "undecided" for v in verdicts(pairs).values())
    assert wrong <= 27  # 15 expected; three standard deviations more


@pytest.mark.parametrize(
    ("estimate", "low", "high", "decimals"),
    [
        (-1.7, -2.0, -1.4, 1),
        (-2.12, -2.18, -2.06, 2),
        (0.0, 0.0, 0.0, 1),
        (120.0, 100.0, 140.0, 0),
        (1.0, 1.0, 1.0, 1),
        (1e-9, 1e-9, 1e-9, 6),
        (0.005, None, None, 4),
    ],
)
def test_decimals(estimate: float, low: float | None, high: float | None, decimals: int) -> None:
    interval = Interval(estimate=estimate, low=low, high=high, level=0.95, n=3)
    assert decimals_for(interval) == decimals
