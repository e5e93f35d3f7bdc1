"""Adaptive class suppression: which negatives are kept, in both forms."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from elbowroom.rivals import acsl
from tests.rivals.cases import problem


def test_sigmoid_form_by_hand():
    z = torch.tensor([[0.2, 2.0, 0.5, -1.0]], requires_grad=True)
    target = torch.tensor([0])  # sigmoids .55, .88, .62, .27
    sigma = z.sigmoid()[0]
    loss = acsl(z, torch.eye(4), target)
    torch.testing.assert_close(loss, -sigma[0].log() - (1 - sigma[1]).log())
    loss = acsl(z, torch.eye(4), target, xi=0.6)
    torch.testing.assert_close(loss, -sigma[0].log() - (1 - sigma[1]).log() - (1 - sigma[2]).log())
    (gradient,) = torch.autograd.grad(loss, z)
    expected = torch.stack([sigma[0] - 1, sigma[1], sigma[2], torch.tensor(0.0)])
    torch.testing.assert_close(gradient[0], expected)


def test_sigmoid_form_that_keeps_all_is_binary_cross_entropy():
    hidden, weight, target = problem()
    expected = F.binary_cross_entropy_with_logits(
        hidden @ weight.T, F.one_hot(target, 7).double(), reduction="sum"
    )
    loss = acsl(hidden, weight, target, xi=0.0, reduction="sum")
    torch.testing.assert_close(loss, expected)
    alone = acsl(hidden, weight, target, xi=1.0, reduction="sum")
    own = (hidden * weight[target]).sum(-1)
    torch.testing.assert_close(alone, F.softplus(-own).sum())


def test_softmax_form_by_hand():
    p = torch.tensor([[0.1, 0.5, 0.3, 0.1]])
    z = p.log().requires_grad_()
    loss = acsl(z, torch.eye(4), torch.tensor([0]), xi=0.3 - 1e-6, form="softmax")
    torch.testing.assert_close(loss.exp(), torch.tensor(9.0))  # (.1 + .5 + .3) / .1
    (gradient,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(gradient, torch.tensor([[1 / 9 - 1, 5 / 9, 3 / 9, 0.0]]))


def test_a_probability_of_seven_tenths_leaves_at_most_one_negative():
    hidden, weight, target = problem(200)
    z = 4 * hidden @ weight.T
    each = acsl(hidden, weight, target, form="softmax", logit_scale=4.0, reduction="none")
    top = z.softmax(-1).max(-1)
    alone = (top.values < 0.7) | (top.indices == target)
    assert (each[alone] == 0).all()
    gap = z.gather(1, target[:, None])[:, 0] - z.max(-1).values
    torch.testing.assert_close(each[~alone], F.softplus(-gap[~alone]))
    assert 0 < alone.sum() < 200
    assert not math.isnan(each.sum().item())
