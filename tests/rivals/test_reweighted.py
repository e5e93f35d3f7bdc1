"""Reweighted losses: weights by hand and written out."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from elbowroom.counts import TokenCounts
from elbowroom.rivals import class_balanced, focal, mile
from tests.rivals.cases import problem


def test_focal_by_hand():
    p = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    each = focal(p.log(), torch.eye(2), torch.tensor([0, 0]), gamma=3.0, reduction="none")
    torch.testing.assert_close(each, -((1 - p[:, 0]) ** 3) * p[:, 0].log())


def test_focal_is_precise_and_finite_where_the_model_is_sure():
    z = torch.tensor([[20.0, 0.0], [2000.0, 0.0]], dtype=torch.float64, requires_grad=True)
    eye = torch.eye(2, dtype=torch.float64)
    each = focal(z, eye, torch.tensor([0, 0]), gamma=0.5, reduction="none")
    small = torch.tensor(-20.0, dtype=torch.float64).exp()  # both 1 - p and -log p
    torch.testing.assert_close(each[0], small**1.5, rtol=1e-6, atol=0)
    assert torch.autograd.grad(each.sum(), z)[0].isfinite().all()


def test_class_balanced_by_hand():
    hidden, weight, _ = problem(3)
    target = torch.tensor([0, 3, 6])
    n = [40, 30, 20, 6, 3, 1, 0]
    raw = [(1 - 0.9) / (1 - 0.9 ** max(1, k)) for k in n]
    balance = torch.tensor([r * 7 / sum(raw) for r in raw], dtype=torch.float64)
    each = F.cross_entropy(hidden @ weight.T, target, reduction="none")
    counts = TokenCounts(torch.tensor(n))
    loss = class_balanced(hidden, weight, target, counts=counts, beta=0.9)
    torch.testing.assert_close(loss, (balance[target] * each).mean())


def test_class_balanced_tends_to_inverse_counts():
    hidden, weight = torch.zeros(2, 1), torch.zeros(2, 1)
    counts = TokenCounts(torch.tensor([10**6, 10**5]))
    each = class_balanced(
        hidden, weight, torch.tensor([0, 1]), counts=counts, beta=1 - 1e-12, reduction="none"
    )
    torch.testing.assert_close(each[1] / each[0], torch.tensor(10.0), rtol=1e-4, atol=0)


def test_mile_weights_are_constants():
    hidden, weight, target = problem(9)
    target[4] = -100
    z = hidden @ weight.T
    entropy = torch.distributions.Categorical(logits=z.detach()).entropy()
    nll = F.cross_entropy(z, target, reduction="none")
    for normalize in (False, True):
        difficulty = (1 + entropy) ** 1.7
        if normalize:
            difficulty = difficulty / difficulty[target >= 0].mean()
        expected = (difficulty * nll).sum() / 8
        loss = mile(hidden, weight, target, gamma=1.7, normalize=normalize)
        torch.testing.assert_close(loss, expected)
        ours = torch.autograd.grad(loss, (hidden, weight))
        theirs = torch.autograd.grad(expected, (hidden, weight), retain_graph=True)
        torch.testing.assert_close(ours, theirs)


def test_mile_entropy_is_finite_where_probabilities_vanish():
    z = torch.tensor([[1000.0, 0.0, -1000.0]])
    loss = mile(z, torch.eye(3), torch.tensor([1]), normalize=False)
    torch.testing.assert_close(loss, torch.tensor(1000.0))
