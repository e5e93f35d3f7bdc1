from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom import margins
from elbowroom.errors import ArgumentTypeError, ArgumentValueError

few = settings(max_examples=60, deadline=None)


def test_the_papers_example() -> None:
    assert margins.top_p(100_000, 0.99, 0.9) == pytest.approx(14.50, abs=0.005)


def test_by_hand() -> None:
    assert margins.top_p(3, 0.5) == pytest.approx(math.log(2))
    assert margins.top_p(2, 0.75, temperature=2) == pytest.approx(2 * math.log(3))
    assert margins.min_p(0.25) == pytest.approx(math.log(4))
    assert margins.min_p(0.25, temperature=0.5) == pytest.approx(math.log(2))


def test_min_p_of_one_is_plus_zero() -> None:
    assert math.copysign(1.0, margins.min_p(1)) == 1.0


def test_top_p_next_to_one_keeps_its_digits() -> None:
    p = 1 - 2.0**-40  # 1 - p is exact, so the logarithm of it is known
    assert margins.top_p(2, p) == pytest.approx(math.log(p) + 40 * math.log(2), rel=1e-15)


def test_default_is_the_recipe() -> None:
    rule = margins.default(8192)
    assert (rule.start, rule.end) == (1.0, margins.top_p(8192, 0.999))
    assert (rule.shape, rule.hold, rule.release) == ("linear", 0.0, 1.0)


logits = st.lists(st.floats(-12, 12), min_size=2, max_size=12)


def probabilities(z: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    p = np.exp((z - z.max()) / temperature)
    return p / p.sum()


def in_nucleus(p: np.ndarray, i: int, top_p: float) -> bool:
    """Whether the tokens before ``i`` in the order of probability fall short of top_p."""
    return p[p > p[i]].sum() < top_p


def below(z: np.ndarray, target: int, margin: float) -> np.ndarray:
    """Return the thresholded tokens, except those at the threshold up to rounding."""
    return np.flatnonzero(z < z[target] - margin - 1e-9)


@few
@given(logits, st.floats(0.01, 0.999), st.data())
def test_lemma_1(z: list[float], top_p: float, data: st.DataObject) -> None:
    p = probabilities(np.array(z))
    for i in np.flatnonzero((p < (1 - top_p) / (len(z) - 1) * (1 - 1e-9)) & (p < p.max())):
        assert not in_nucleus(p, i, top_p * (1 - 1e-12))


@few
@given(logits, st.floats(0, 8), st.floats(0.2, 3), st.data())
def test_lemma_2(z: list[float], margin: float, temperature: float, data: st.DataObject) -> None:
    x = np.array(z)
    target = data.draw(st.integers(0, len(z) - 1))
    p = probabilities(x, temperature)
    for i in below(x, target, margin):
        assert p[i] < p[target] * math.exp(-margin / temperature)


@few
@given(logits, st.floats(0.55, 0.999), st.floats(0.2, 3), st.data())
def test_lemma_3(z: list[float], top_p: float, temperature: float, data: st.DataObject) -> None:
    x = np.array(z)
    target = data.draw(st.integers(0, len(z) - 1))
    p = probabilities(x, temperature)
    for i in below(x, target, margins.top_p(len(z), top_p, temperature)):
        assert not in_nucleus(p, i, top_p * (1 - 1e-12))


@few
@given(st.integers(2, 1000), st.floats(0.55, 0.999), st.floats(0.2, 3))
def test_lemma_3_is_sharp(vocab_size: int, top_p: float, temperature: float) -> None:
    """A margin smaller by a thousandth lets a token of the nucleus go unmarginalised."""
    margin = margins.top_p(vocab_size, top_p, temperature) - 1e-3 * temperature
    x = np.full(vocab_size, -margin - 1e-6 * temperature)
    x[0] = 0.0
    assert in_nucleus(probabilities(x, temperature), 1, top_p)
    assert 1 in below(x, 0, margin)


@few
@given(logits, st.floats(0.001, 1), st.floats(0.2, 3), st.data())
def test_lemma_3_for_min_p(
    z: list[float], p_base: float, temperature: float, data: st.DataObject
) -> None:
    x = np.array(z)
    target = data.draw(st.integers(0, len(z) - 1))
    p = probabilities(x, temperature)
    for i in below(x, target, margins.min_p(p_base, temperature)):
        assert p[i] < p_base * p.max()


@pytest.mark.parametrize("p", [0.1, 0.05, 0.0, -1.0, 1.0, 2.0, math.nan])
def test_top_p_refuses_what_is_no_nucleus(p: float) -> None:
    with pytest.raises(ArgumentValueError, match="top_p: expected"):
        margins.top_p(10, p)


@pytest.mark.parametrize("vocab_size", [1, 0, -3])
def test_top_p_refuses_small_vocabularies(vocab_size: int) -> None:
    with pytest.raises(ArgumentValueError, match="vocab_size: expected"):
        margins.top_p(vocab_size, 0.9)


@pytest.mark.parametrize("p_base", [0.0, -0.1, 1.1, math.nan])
def test_min_p_refuses_what_is_no_share(p_base: float) -> None:
    with pytest.raises(ArgumentValueError, match="p_base: expected"):
        margins.min_p(p_base)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_temperature_is_above_zero(temperature: float) -> None:
    with pytest.raises(ArgumentValueError, match="temperature: expected"):
        margins.top_p(10, 0.9, temperature)
    with pytest.raises(ArgumentValueError, match="temperature: expected"):
        margins.min_p(0.1, temperature)


@pytest.mark.usefixtures("unchecked")
def test_wrong_types() -> None:
    with pytest.raises(ArgumentTypeError, match="vocab_size: expected an integer"):
        margins.top_p(10.0, 0.9)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="top_p: expected a number"):
        margins.top_p(10, "0.9")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="p_base: expected a number"):
        margins.min_p(None)  # type: ignore[arg-type]
