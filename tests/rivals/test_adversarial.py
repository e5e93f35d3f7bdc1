"""Adversarial rows: the closed form is the worst of all perturbations."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from elbowroom.rivals import adversarial
from tests.rivals.cases import problem


def test_by_hand():
    hidden = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    weight = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    # target 0: 6 - .1 * 2 * 5 = 5, against 4
    loss = adversarial(hidden, weight, torch.tensor([0]), alpha=0.1)
    torch.testing.assert_close(loss, F.softplus(torch.tensor(-1.0, dtype=torch.float64)))


def test_it_is_the_worst_perturbation_within_the_radius():
    hidden, weight, target = (x.detach() for x in problem(1))
    worst = adversarial(hidden, weight, target, alpha=0.3, softcap=5.0, logit_scale=0.9)
    radius = 0.3 * weight[target[0]].norm()

    def perturbed(direction):
        moved = weight.clone()
        moved[target[0]] += radius * direction / direction.norm()
        z = 0.9 * 5 * torch.tanh(hidden @ moved.T / 5)
        return F.cross_entropy(z, target)

    torch.testing.assert_close(perturbed(-hidden[0]), worst)
    assert all(perturbed(torch.randn_like(hidden[0])) <= worst for _ in range(100))


def test_the_radius_is_a_constant_unless_asked():
    hidden, weight, target = problem()

    def oracle(detach):
        w = weight[target].norm(dim=-1)
        penalty = 0.2 * (w.detach() if detach else w) * hidden.norm(dim=-1)
        z = hidden @ weight.T
        return F.cross_entropy(z - F.one_hot(target, z.shape[1]) * penalty[:, None], target)

    for detach in (True, False):
        loss = adversarial(hidden, weight, target, alpha=0.2, detach_weight_norm=detach)
        ours = torch.autograd.grad(loss, (hidden, weight))
        torch.testing.assert_close(ours, torch.autograd.grad(oracle(detach), (hidden, weight)))


def test_zero_vectors_have_finite_gradients():
    hidden, weight = (torch.zeros(2, 3, requires_grad=True) for _ in range(2))
    loss = adversarial(hidden, weight, torch.tensor([0, 1]), alpha=0.1, detach_weight_norm=False)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, (hidden, weight)))
