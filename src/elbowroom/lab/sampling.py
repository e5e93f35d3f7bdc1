r"""How often each language is drawn: pure functions of how much text there is.

With n_l tokens of language l and p_l = n_l / sum n:

- natural: q = p; in the same proportion as the text.
- temperature: q proportional to p^(1 / tau); tau = 1 is natural, large tau nearly uniform.
- UniMax (Chung et al., 2023): as uniform as possible, but no text is read more than so many times
  within the budget of training.
- fixed: as given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from elbowroom import checks
from elbowroom.errors import ArgumentValueError

Sampling = Literal["natural", "temperature", "unimax", "fixed"]
SAMPLINGS = ("natural", "temperature", "unimax", "fixed")


def shares(
    lengths: Sequence[float],
    rule: Sampling = "natural",
    *,
    tau: float = 3.0,
    epochs: float = 4.0,
    budget: float | None = None,
    fixed: Sequence[float] = (),
) -> tuple[float, ...]:
    """Return the share of each language in what is drawn; they add up to 1.

    Args:
        lengths: tokens of each language. For "natural" and "temperature" any weights will do, such
            as ``corpus.default_shares``.
        rule: one of the four above.
        tau: the temperature of "temperature".
        epochs: how often "unimax" lets a text be read.
        budget: tokens that training draws in all; "unimax" needs it.
        fixed: the shares of "fixed"; they need not add up to 1.

    Example:
        >>> shares((900, 100))
        (0.9, 0.1)
        >>> [round(q, 4) for q in shares((900, 100), "temperature", tau=2.0)]
        [0.75, 0.25]
        >>> shares((900, 100), "unimax", epochs=4, budget=2000)
        (0.8, 0.2)
    """
    checks.choice("rule", rule, SAMPLINGS)
    if rule == "fixed":
        return _fixed(fixed, len(lengths))
    _check_weights("lengths", lengths, above=0.0)
    if rule == "unimax":
        if budget is None:
            raise ArgumentValueError("budget", "the tokens that training draws, for unimax", None)
        return unimax(lengths, budget=budget, epochs=epochs)
    return temperature(lengths, tau) if rule == "temperature" else _normal(lengths)


def temperature(lengths: Sequence[float], tau: float) -> tuple[float, ...]:
    """Return shares in proportion to ``lengths ** (1 / tau)``.

    Example:
        >>> temperature((1, 1, 2), tau=float("inf"))
        (0.3333333333333333, 0.3333333333333333, 0.3333333333333333)
    """
    checks.number("tau", tau, above=0.0, finite=False)
    _check_weights("lengths", lengths, above=0.0)
    largest = max(lengths)
    return _normal([(length / largest) ** (1 / tau) for length in lengths])


def unimax(lengths: Sequence[float], *, budget: float, epochs: float) -> tuple[float, ...]:
    """Return UniMax's shares: the budget divided evenly, each text read at most ``epochs`` times.

    Languages are served from the least text to the most; what one cannot use is divided among
    those that follow. Chung et al., "UniMax: Fairer and More Effective Language Sampling for
    Large-Scale Multilingual Pretraining", ICLR 2023, algorithm 1.

    Example:
        >>> unimax((10, 1000, 1000), budget=100, epochs=1)
        (0.1, 0.45, 0.45)
    """
    _check_weights("lengths", lengths, above=0.0)
    checks.number("epochs", epochs, above=0.0)
    left = checks.number("budget", budget, above=0.0)
    granted = [0.0] * len(lengths)
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    for served, i in enumerate(order):
        granted[i] = min(left / (len(order) - served), lengths[i] * epochs)
        left -= granted[i]
    return _normal(granted)


def _fixed(fixed: Sequence[float], languages: int) -> tuple[float, ...]:
    if len(fixed) != languages:
        raise ArgumentValueError("fixed", f"a share for each of {languages} languages", len(fixed))
    _check_weights("fixed", fixed, above=None)
    if sum(fixed) == 0:
        raise ArgumentValueError("fixed", "at least one share above 0", tuple(fixed))
    return _normal(fixed)


def _check_weights(name: str, weights: Sequence[float], above: float | None) -> None:
    if not weights:
        raise ArgumentValueError(name, "at least one number", "none")
    for weight in weights:
        checks.number(name, weight, at_least=0.0, above=above)


def _normal(weights: Sequence[float]) -> tuple[float, ...]:
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)
