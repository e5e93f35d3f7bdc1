"""Priors: adjusted logits are a bias in disguise."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from elbowroom.counts import TokenCounts
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.rivals import logit_adjusted, unigram_bias
from tests.rivals.cases import problem

COUNTS = TokenCounts(torch.tensor([40, 30, 20, 6, 3, 1, 0], dtype=torch.float64))


def test_by_hand():
    hidden, weight = torch.zeros(2, 3), torch.ones(2, 3)
    counts = TokenCounts(torch.tensor([3, 1]))
    target = torch.tensor([0, 1])
    each = logit_adjusted(
        hidden, weight, target, counts=counts, tau=2.0, smoothing=0.0, reduction="none"
    )
    torch.testing.assert_close(each.exp(), torch.tensor([10 / 9, 10.0]))  # squares 9 and 1


def test_it_is_cross_entropy_with_the_bias_of_the_frequencies():
    hidden, weight, target = problem()
    adjusted = logit_adjusted(hidden, weight, target, counts=COUNTS)
    expected = F.cross_entropy(hidden @ weight.T + unigram_bias(COUNTS), target)
    torch.testing.assert_close(adjusted, expected)


def test_an_unseen_token_without_smoothing_is_no_negative():
    hidden, weight, _ = problem(3)
    target = torch.tensor([0, 1, 2])
    loss = logit_adjusted(hidden, weight, target, counts=COUNTS, smoothing=0.0)
    gradients = torch.autograd.grad(loss, (hidden, weight))
    assert loss.isfinite()
    assert gradients[1].isfinite().all()
    assert (gradients[1][6] == 0).all()


def test_a_head_that_is_only_its_bias_predicts_the_frequencies():
    bias = unigram_bias(COUNTS, smoothing=0.5)
    expected = (COUNTS.counts + 0.5) / (100 + 7 * 0.5)
    torch.testing.assert_close(bias.softmax(-1), expected)
    assert unigram_bias(TokenCounts(torch.ones(2, 3))).shape == (2, 3)


@pytest.mark.usefixtures("unchecked")
def test_bad_input():
    with pytest.raises(ArgumentTypeError, match="counts: expected TokenCounts"):
        unigram_bias(torch.ones(3))
    with pytest.raises(ArgumentValueError, match="smoothing"):
        unigram_bias(COUNTS, smoothing=0.0)
