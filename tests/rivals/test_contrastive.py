"""Contrastive weight tying: against the batch-by-batch matrix it is published as."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from elbowroom.rivals import contrastive_weight_tying
from tests.rivals.cases import V, problem


def test_it_is_the_in_batch_softmax_as_published():
    hidden, weight, _ = problem(6)
    target = torch.tensor([2, 0, 2, 5, 2, 0])
    bias = torch.randn(V, dtype=torch.float64)
    rows = weight[target]
    expected = F.cross_entropy(hidden @ rows.T + bias[target], torch.arange(6))
    loss = contrastive_weight_tying(hidden, weight, target, bias=bias)
    torch.testing.assert_close(loss, expected)
    ours = torch.autograd.grad(loss, (hidden, weight))
    torch.testing.assert_close(ours, torch.autograd.grad(expected, (hidden, weight)))
    assert (ours[1][[1, 3, 4, 6]] == 0).all()  # absent tokens are left alone


def test_without_duplicates_it_is_a_softmax_over_the_tokens_present():
    hidden, weight, _ = problem(6)
    target = torch.tensor([2, 0, 2, 5, 2, 0])
    present = torch.tensor([0, 2, 5])
    position = torch.tensor([1, 0, 1, 2, 1, 0])
    expected = F.cross_entropy(hidden @ weight[present].T, position)
    loss = contrastive_weight_tying(hidden, weight, target, deduplicate=True)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("deduplicate", [False, True])
def test_ignored_targets_are_no_negatives(deduplicate):
    hidden, weight, _ = problem(3)
    target = torch.tensor([-100, 4, 4])
    loss = contrastive_weight_tying(hidden, weight, target, deduplicate=deduplicate)
    expected = 0.0 if deduplicate else torch.tensor(2.0).log().item()
    assert loss.item() == pytest.approx(expected)
