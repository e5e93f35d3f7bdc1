"""LDAM: margins by hand, cosines, and that rarer targets ask for more."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from elbowroom.counts import TokenCounts
from elbowroom.rivals import ldam
from tests.rivals.cases import problem

COUNTS = TokenCounts(torch.tensor([10_000, 625, 81, 16, 1, 1, 0]))
MARGINS = torch.tensor([0.05, 0.1, 1 / 6, 0.25, 0.5, 0.5, 0.5], dtype=torch.float64)


def test_margins_and_cosines_against_the_equation():
    hidden, weight, _ = problem(7)
    target = torch.arange(7)
    cosine = F.normalize(hidden, dim=-1) @ F.normalize(weight, dim=-1).T
    expected = F.cross_entropy(30 * (cosine - MARGINS.diag()), target)
    loss = ldam(hidden, weight, target, counts=COUNTS)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)  # counts are float32
    ours = torch.autograd.grad(loss, (hidden, weight))
    theirs = torch.autograd.grad(expected, (hidden, weight))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_bare_logits():
    z = torch.tensor([[2.0, 1.0]])
    counts = TokenCounts(torch.tensor([16, 1]))
    for target, margin in ((0, 0.5), (1, 1.0)):
        loss = ldam(
            z, torch.eye(2), torch.tensor([target]), counts=counts, max_margin=1.0, s=2.0,
            normalize=False,
        )  # fmt: skip
        gap = z[0, target] - z[0, 1 - target] - margin
        torch.testing.assert_close(loss, F.softplus(-2 * gap))


def test_zero_vectors_have_finite_gradients():
    hidden, weight, target = problem()
    with torch.no_grad():
        hidden[0] = 0.0
        weight[target[0]] = 0.0
    loss = ldam(hidden, weight, target, counts=COUNTS)
    for gradient in torch.autograd.grad(loss, (hidden, weight)):
        assert gradient.abs().max() < 100
