"""Exact distributions behind the intervals and tests: Student's t, signs, signed ranks.

Everything here is exact to rounding and needs nothing but numpy; the tests compare with scipy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def student_t_cdf(t: float, freedom: int) -> float:
    r"""Return :math:`P(T \le t)` of Student's t with a whole number of degrees of freedom.

    With :math:`\theta = \arctan(t / \sqrt\nu)` the distribution is a finite series in
    :math:`\cos\theta`, one for odd and one for even :math:`\nu`.

    Example:
        >>> round(student_t_cdf(1.0, 1), 6)
        0.75
    """
    theta = math.atan2(abs(t), math.sqrt(freedom))
    cosine, sine = math.cos(theta), math.sin(theta)
    odd = freedom % 2
    term = total = (cosine if odd else 1.0) if freedom > 1 else 0.0
    for i in range(3 if odd else 2, freedom, 2):
        term *= cosine * cosine * (i - 1) / i
        total += term
    inside = 2 / math.pi * (theta + sine * total) if odd else sine * total
    return 0.5 + math.copysign(inside / 2, t)


def student_t_quantile(p: float, freedom: int) -> float:
    """Return the t below which lies the share ``p``, found by bisection to rounding.

    Example:
        >>> round(student_t_quantile(0.975, 4), 3)
        2.776
    """
    if p < 0.5:
        return -student_t_quantile(1 - p, freedom)
    low, high = 0.0, 1.0
    while student_t_cdf(high, freedom) < p:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def sign_test(positive: int, negative: int) -> float:
    """Return the exact two-sided p of as uneven a split of signs, ties left out.

    Example:
        >>> sign_test(5, 0)
        0.0625
    """
    n, extreme = positive + negative, max(positive, negative)
    tail = sum(math.comb(n, k) for k in range(extreme, n + 1))
    return float(min(1.0, 2 * tail / 2**n))


def wilcoxon_test(differences: Sequence[float]) -> float:
    """Return the exact two-sided p of Wilcoxon's signed-rank test; zeros are left out.

    Equal sizes share their mean rank, and the distribution is that of these very ranks.

    Example:
        >>> wilcoxon_test([-1.7, -1.2, -2.1, -0.4, -1.1])
        0.0625
    """
    d = np.asarray([x for x in differences if x != 0], dtype=np.float64)
    size = np.abs(d)
    below = (size[:, None] > size).sum(1)
    equal = (size[:, None] == size).sum(1)
    doubled = 2 * below + equal + 1  # twice the mean rank, a whole number
    probability = np.ones(1)
    for rank in doubled.tolist():  # sums of the ranks whose sign is positive
        longer = np.zeros(probability.size + rank)
        longer[: probability.size] += probability / 2
        longer[rank:] += probability / 2
        probability = longer
    positive = int(doubled[d > 0].sum())
    least = min(positive, int(doubled.sum()) - positive)
    return float(min(1.0, 2 * probability[: least + 1].sum()))
