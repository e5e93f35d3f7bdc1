"""Margins in closed form: wide enough to leave a way of sampling as it is."""

from __future__ import annotations

import math

from elbowroom import checks
from elbowroom.errors import ArgumentValueError
from elbowroom.margins.rules import Annealed


def top_p(vocab_size: int, top_p: float, temperature: float = 1.0) -> float:
    r"""Return the margin beyond which no token can be part of nucleus sampling.

    .. math:: m = T \ln \frac{(V - 1)\, p}{1 - p}

    Whatever the logits, a token that lies more than ``m`` below the target is outside the ``top_p``
    nucleus at this temperature, so a thresholded loss still trains every token that nucleus
    sampling can draw. It is an upper bound: smaller margins may serve rare tokens better.

    Paper, section 3.2 and appendix A (lemma 3).

    Args:
        vocab_size: V, at least 2.
        top_p: p, above ``1 / vocab_size`` (where the margin is 0) and below 1.
        temperature: T, what sampling divides the logits by.

    Example:
        >>> round(top_p(100_000, 0.99, temperature=0.9), 2)  # the paper's example
        14.5
    """
    vocab_size = checks.integer("vocab_size", vocab_size, at_least=2)
    p = checks.number("top_p", top_p, below=1.0)
    if p * vocab_size <= 1.0:
        raise ArgumentValueError(
            "top_p",
            f"a number above 1 / vocab_size = {1 / vocab_size:.3g}",
            p,
            "a smaller nucleus holds the most likely token alone",
        )
    temperature = checks.number("temperature", temperature, above=0.0)
    return temperature * (math.log(vocab_size - 1) + math.log(p) - math.log1p(-p))


def min_p(p_base: float, temperature: float = 1.0) -> float:
    r"""Return the margin beyond which no token can be part of min-p sampling.

    .. math:: m = T \ln \frac{1}{p_{base}}

    Min-p sampling draws among tokens with at least ``p_base`` times the largest probability. A
    token more than ``m`` below the target has less than ``p_base`` times the target's probability,
    so less than ``p_base`` times the largest. The vocabulary's size plays no part.

    Paper, section 3.2, where the formula lacks the sign: ``T ln(p_base)`` is negative.

    Args:
        p_base: above 0, at most 1.
        temperature: T, what sampling divides the logits by.

    Example:
        >>> round(min_p(0.05), 3)
        2.996
    """
    p_base = checks.number("p_base", p_base, above=0.0, at_most=1.0)
    temperature = checks.number("temperature", temperature, above=0.0)
    return temperature * abs(math.log(p_base))  # of at most 1: the logarithm's sign is known


def default(vocab_size: int) -> Annealed:
    """Return the recipe to start with: ``Annealed(1, top_p(vocab_size, 0.999))``.

    The narrow start shields rare rows while they are placed; the end lies beyond the tail of the
    vocabulary, so that probabilities are calibrated at temperature 1. Goes beyond the paper, whose
    margins are constant.

    Args:
        vocab_size: V, at least 2.

    Example:
        >>> default(50257)
        Annealed(start=1.0, end=17.73..., shape='linear', hold=0.0, release=1.0)
    """
    return Annealed(1.0, top_p(vocab_size, 0.999))
