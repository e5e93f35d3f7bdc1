"""What several seeds say: means, paired differences, new seeds and proportions, with intervals.

Seeds decide much here, and there are few of them. So every number comes with how many runs it
rests on, and where they are too few for an interval there is none, rather than a narrow one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.study.distributions import (
    sign_test,
    student_t_cdf,
    student_t_quantile,
    wilcoxon_test,
)

IntervalMethod = Literal["t", "percentile", "bca"]
INTERVAL_METHODS = ("t", "percentile", "bca")
RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and the interval around it, if there are enough values for one."""

    estimate: float
    """The mean, or the proportion."""
    low: float | None
    """The lower end; None where the values are too few for an interval."""
    high: float | None
    """The upper end; None where the values are too few for an interval."""
    level: float
    """How often such an interval holds the truth, such as .95."""
    n: int
    """How many values it rests on."""

    @property
    def half_width(self) -> float | None:
        """Half the distance between the ends; None without ends."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def __contains__(self, value: float) -> bool:
        """Whether the interval does not rule the value out; one without ends rules out nothing."""
        return self.low is None or self.high is None or self.low <= value <= self.high


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """Differences between two methods over the same seeds: first minus second, seed by seed."""

    differences: tuple[float, ...]
    """One a seed."""
    interval: Interval
    """Their mean and its interval."""
    p: float | None
    """Two-sided p of Student's paired test; None for a single seed."""
    sign_p: float
    """Exact two-sided p of the signs alone: at least ``2 / 2**n``, whatever the sizes."""
    wilcoxon_p: float
    """Exact two-sided p of Wilcoxon's signed ranks."""

    @property
    def n(self) -> int:
        """How many seeds were compared."""
        return len(self.differences)

    @property
    def positive(self) -> int:
        """In how many seeds the first method's value is the greater."""
        return sum(d > 0 for d in self.differences)

    @property
    def negative(self) -> int:
        """In how many seeds the first method's value is the smaller."""
        return sum(d < 0 for d in self.differences)


def mean_interval(
    values: Sequence[float],
    *,
    level: float = 0.95,
    method: IntervalMethod = "t",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Return the mean of some values with its interval.

    Args:
        values: one a seed, at least one.
        level: of the interval.
        method: "t" is Student's, right for values near a normal distribution and honestly wide
            for two or three. "percentile" and "bca" (Efron, 1987) resample the values; they follow
            lopsided values and are too narrow below some ten.
        resamples: of the bootstrap.
        seed: of the bootstrap: the same values give the same interval.

    Example:
        >>> found = mean_interval([10.6, 11.1, 10.6, 10.5, 10.0])
        >>> round(found.estimate, 2), round(found.low, 2), round(found.high, 2)
        (10.56, 10.07, 11.05)
        >>> mean_interval([10.6]).low is None
        True
    """
    x = _values("values", values)
    level = _level(level)
    checks.choice("method", method, INTERVAL_METHODS)
    mean = float(x.mean())
    if len(x) < 2:
        low, high = None, None
    elif method == "t":
        reach = student_t_quantile((1 + level) / 2, len(x) - 1) * _standard_error(x)
        low, high = mean - reach, mean + reach
    else:
        checks.integer("resamples", resamples, at_least=1)
        low, high = _bootstrap(x, level, bca=method == "bca", resamples=resamples, seed=seed)
    return Interval(estimate=mean, low=low, high=high, level=level, n=len(x))


def paired_difference(
    first: Sequence[float],
    second: Sequence[float],
    *,
    level: float = 0.95,
    method: IntervalMethod = "t",
) -> PairedDifference:
    """Compare two methods over the same seeds.

    Pairing takes out what the seeds share (the start, the order of the data), which is most of the
    spread. The p of Student's test belongs to the interval of method "t"; the exact ones assume
    less and need more seeds: with five, neither can be below 1/16.

    Args:
        first: one value a seed.
        second: the values of the other method for the same seeds, in the same order.
        level: of the interval.
        method: of the interval, see `mean_interval`.

    Example:
        >>> found = paired_difference([8.9, 9.0, 8.8], [10.6, 11.1, 10.5])
        >>> round(found.interval.estimate, 2), found.negative, found.sign_p
        (-1.83, 3, 0.25)
    """
    a, b = _values("first", first), _values("second", second)
    if len(a) != len(b):
        fix = "leave out the seeds that one of them lacks"
        raise ArgumentValueError("second", f"{len(a)} values, as many as first", len(b), fix)
    difference = a - b
    signs = int((difference > 0).sum()), int((difference < 0).sum())
    return PairedDifference(
        differences=tuple(difference.tolist()),
        interval=mean_interval(difference.tolist(), level=level, method=method),
        p=_student_p(difference),
        sign_p=sign_test(*signs),
        wilcoxon_p=wilcoxon_test(difference.tolist()),
    )


def prediction_interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    r"""Return the interval in which one more seed's value lies, if values are normal.

    :math:`\bar x \pm t_{n-1} \, s \sqrt{1 + 1/n}`: wider than the mean's, and it does not shrink
    to nothing with more seeds.

    Example:
        >>> found = prediction_interval([10.6, 11.1, 10.6, 10.5, 10.0])
        >>> round(found.low, 2), round(found.high, 2)
        (9.37, 11.75)
    """
    x = _values("values", values)
    level = _level(level)
    mean, low, high = float(x.mean()), None, None
    if len(x) > 1:
        spread = float(x.std(ddof=1)) * math.sqrt(1 + 1 / len(x))
        reach = student_t_quantile((1 + level) / 2, len(x) - 1) * spread
        low, high = mean - reach, mean + reach
    return Interval(estimate=mean, low=low, high=high, level=level, n=len(x))


def wilson_interval(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    """Return a proportion with Wilson's interval, which stays in [0, 1] and holds at 0 of n.

    Args:
        successes: how many of the trials succeeded.
        trials: how many there were; with none, the interval is all of [0, 1].
        level: of the interval.

    Example:
        >>> found = wilson_interval(5, 40)
        >>> round(found.estimate, 3), round(found.low, 3), round(found.high, 3)
        (0.125, 0.055, 0.261)
    """
    checks.integer("trials", trials, at_least=0)
    if checks.integer("successes", successes, at_least=0) > trials:
        raise ArgumentValueError("successes", f"at most trials = {trials}", successes)
    z = NormalDist().inv_cdf((1 + _level(level)) / 2)
    share = successes / trials if trials else 0.5
    n = trials + z * z
    centre = (successes + z * z / 2) / n
    reach = z / n * math.sqrt(trials * share * (1 - share) + z * z / 4)
    low = 0.0 if successes == 0 else centre - reach  # exactly, whatever the rounding
    high = 1.0 if successes == trials else centre + reach
    return Interval(estimate=share, low=low, high=high, level=level, n=trials)


def holm(p: Sequence[float]) -> tuple[float, ...]:
    """Return p-values corrected for their number, by Holm's step-down method (1979).

    Whoever calls significant what stays below .05 is wrong anywhere in the family in at most 5% of
    studies, however the comparisons depend on each other.

    Example:
        >>> [round(value, 6) for value in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    for value in p:
        checks.number("p", value, at_least=0, at_most=1)
    corrected, least = [0.0] * len(p), 0.0
    for place, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        least = min(1.0, max(least, (len(p) - place) * p[i]))
        corrected[i] = least
    return tuple(corrected)


def _values(name: str, values: Sequence[float]) -> NDArray[np.float64]:
    try:
        x = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ArgumentTypeError(name, "numbers", checks.describe(values)) from None
    if x.ndim != 1 or not x.size:
        raise ArgumentValueError(name, "a list of at least one number", checks.describe(values))
    if not np.isfinite(x).all():
        fix = "leave out runs without a result, and report them"
        raise ArgumentValueError(name, "finite numbers", checks.describe(values), fix)
    return x


def _level(level: float) -> float:
    return checks.number("level", level, above=0, below=1)


def _standard_error(x: NDArray[np.float64]) -> float:
    return float(x.std(ddof=1)) / math.sqrt(len(x))


def _student_p(difference: NDArray[np.float64]) -> float | None:
    if len(difference) < 2:
        return None
    mean, error = float(difference.mean()), _standard_error(difference)
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return 2 * student_t_cdf(-abs(mean / error), len(difference) - 1)


def _bootstrap(
    x: NDArray[np.float64], level: float, *, bca: bool, resamples: int, seed: int
) -> tuple[float, float]:
    """Return percentiles of the means of resampled values, shifted for bias and skew if asked."""
    mean = x.mean()
    generator = np.random.Generator(np.random.PCG64(seed))
    means = np.sort([generator.choice(x, len(x)).mean() for _ in range(resamples)])
    shares = np.array([(1 - level) / 2, (1 + level) / 2])
    if bca and x.std() > 0:
        normal = NormalDist()
        below = ((means < mean).sum() + (means == mean).sum() / 2) / resamples
        bias = normal.inv_cdf(min(max(float(below), 0.5 / resamples), 1 - 0.5 / resamples))
        influence = x - mean  # the jackknife's, up to a factor that cancels
        skew = (influence**3).sum() / (6 * (influence**2).sum() ** 1.5)
        z = np.array([bias + normal.inv_cdf(float(share)) for share in shares])
        shares = np.array([normal.cdf(float(v)) for v in bias + z / (1 - skew * z)])
    low, high = np.quantile(means, shares)
    return float(low), float(high)
