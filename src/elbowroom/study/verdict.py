"""The verdict in words: better, worse or undecided, and how sure.

A verdict says "better" or "worse" only if Student's paired test over the same seeds says so after
Holm's correction for the number of verdicts given together. One seed decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from elbowroom import checks
from elbowroom.study.statistics import Interval, PairedDifference, holm, paired_difference

Outcome = Literal["better", "worse", "undecided"]
OUTCOMES = ("better", "worse", "undecided")
Key = TypeVar("Key")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How one method compares with another on one score, in words and in numbers."""

    outcome: Outcome
    """ "better", "worse" or "undecided"."""
    text: str
    """One sentence, with the numbers it rests on."""
    ours: float | None
    """The mean over the seeds that both have; None where there is none."""
    reference: float | None
    """The other method's mean over the same seeds."""
    difference: PairedDifference | None
    """Ours minus the reference, seed by seed; None where no seed has both."""
    p: float | None
    """Two-sided, corrected for the number of verdicts given together."""
    family: int
    """How many verdicts were given together."""


def verdict(
    ours: Sequence[float],
    reference: Sequence[float],
    *,
    score: str = "perplexity",
    lower_is_better: bool = True,
    level: float = 0.95,
) -> Verdict:
    """Return the verdict on one comparison over the same seeds.

    Args:
        ours: one value a seed; may be empty.
        reference: the other method's values for the same seeds, in the same order.
        score: its name in the sentence.
        lower_is_better: whether a smaller value is the better one.
        level: of the interval; ``1 - level`` is the risk of a false "better" or "worse".

    Example:
        >>> found = verdict([8.9, 9.0, 8.8, 9.1], [10.6, 11.1, 10.6, 10.5])
        >>> found.text.partition(" (")[0]
        'better in 4 of 4 seeds: perplexity 8.9 instead of 10.7'
        >>> verdict([8.9], [10.6]).outcome
        'undecided'
    """
    one = {"": (ours, reference)}
    return verdicts(one, score=score, lower_is_better=lower_is_better, level=level)[""]


def verdicts(
    comparisons: Mapping[Key, tuple[Sequence[float], Sequence[float]]],
    *,
    score: str = "perplexity",
    lower_is_better: bool = True,
    level: float = 0.95,
) -> dict[Key, Verdict]:
    """Return a verdict on each of several comparisons, corrected for their number.

    Args:
        comparisons: for each, such as a language and a method, our values and the reference's.
        score: its name in the sentences.
        lower_is_better: whether a smaller value is the better one.
        level: of the intervals, each on its own; ``1 - level`` is the risk of any false "better"
            or "worse" among all.

    Example:
        >>> found = verdicts({"hr": ([4.9, 4.9, 4.8], [4.9, 5.0, 4.8]), "lr": ([8.9], [10.6])})
        >>> found["hr"].outcome, found["hr"].family
        ('undecided', 1)
    """
    checks.flag("lower_is_better", lower_is_better)
    pairs = {
        key: paired_difference(*both, level=level) if len(both[0]) or len(both[1]) else None
        for key, both in comparisons.items()
    }
    p = {key: pair.p for key, pair in pairs.items() if pair is not None and pair.p is not None}
    corrected = dict(zip(p, holm(list(p.values())), strict=True))
    found = {}
    for key, pair in pairs.items():
        case = _Case(pair, corrected.get(key), len(p), score, lower_is_better, level)
        found[key] = case.verdict(*comparisons[key])
    return found


def decimals_for(interval: Interval) -> int:
    """Return how many decimals show a difference and how far its interval reaches.

    Two digits of the largest of them, and at least the first of the half width.

    Example:
        >>> decimals_for(Interval(estimate=-1.66, low=-1.98, high=-1.35, level=0.95, n=5))
        1
    """
    ends = (interval.estimate, interval.low or 0.0, interval.high or 0.0)
    size = max(map(abs, ends))
    if size == 0:
        return 1
    digits = 1 - math.floor(math.log10(size))
    if interval.half_width:
        digits = max(digits, min(digits + 1, -math.floor(math.log10(interval.half_width))))
    return min(6, max(0, digits))


@dataclass(frozen=True)
class _Case:
    """One comparison on its way to words."""

    pair: PairedDifference | None
    p: float | None
    family: int
    score: str
    lower_is_better: bool
    level: float

    def verdict(self, ours: Sequence[float], reference: Sequence[float]) -> Verdict:
        first, second = (sum(x) / len(x) if len(x) else None for x in (ours, reference))
        outcome = self._outcome()
        if self.pair is None or first is None or second is None:
            text = "undecided: no seed finished with both methods"
        else:
            text = self._words(outcome, self.pair, first, second)
        return Verdict(
            outcome=outcome,
            text=text,
            ours=first,
            reference=second,
            difference=self.pair,
            p=self.p,
            family=self.family,
        )

    def _outcome(self) -> Outcome:
        if self.pair is None or self.p is None or self.p >= 1 - self.level:
            return "undecided"
        lower = self.pair.interval.estimate < 0
        return "better" if lower == self.lower_is_better else "worse"

    def _words(self, outcome: Outcome, pair: PairedDifference, a: float, b: float) -> str:
        interval, n = pair.interval, pair.n
        digits = decimals_for(interval)
        better, worse = pair.negative, pair.positive
        if not self.lower_is_better:
            better, worse = worse, better
        values = f"{self.score} {a:.{digits}f} instead of {b:.{digits}f}"
        difference = f"difference {_signed(interval.estimate, digits)}"
        if interval.low is None or interval.high is None:
            return f"undecided: one seed does not show the spread; {values} ({difference})"
        ends = f"{_signed(interval.low, digits)} to {_signed(interval.high, digits)}"
        ends = f"{100 * self.level:.4g}% interval {ends}"
        if outcome != "undecided":
            count = better if outcome == "better" else worse
            return f"{outcome} in {count} of {n} seeds: {values} ({difference}, {ends})"
        why = f"the {ends} includes 0"
        if 0 not in interval:
            why = f"the {ends} excludes 0 alone, not among {self.family} comparisons"
        return f"undecided: {why}; {values} ({difference}), better in {better} of {n} seeds"


def _signed(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text[1:] if float(text) == 0 and text.startswith("-") else text
