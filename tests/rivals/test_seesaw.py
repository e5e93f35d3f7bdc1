"""Seesaw loss: factors by hand, and against the softmax with weights written out."""

from __future__ import annotations

import torch

from elbowroom.counts import TokenCounts
from elbowroom.rivals import seesaw
from tests.rivals.cases import problem

COUNTS = TokenCounts(torch.tensor([100, 50, 50, 9, 3, 1, 0]))


def factors(z, target, p, q, floor):
    n = COUNTS.counts.clamp(min=1).double()
    sigma = z.detach().softmax(-1)
    s = torch.ones_like(z)
    for row, y in enumerate(target.tolist()):
        for j in range(z.shape[1]):
            if j != y:
                own = max(sigma[row, y].item(), floor)
                s[row, j] = min(1.0, n[j] / n[y]) ** p * max(1.0, sigma[row, j].item() / own) ** q
    return s


def test_values_and_gradients_against_the_equation():
    hidden, weight, target = problem(12)
    for p, q, floor in [(0.8, 2.0, 0.01), (0.5, 0.0, 0.0), (0.0, 1.5, 0.3)]:
        z = 3 * hidden @ weight.T
        s = factors(z, target, p, q, floor)
        own = z.gather(1, target[:, None]).exp()[:, 0]
        expected = ((s * z.exp()).sum(-1) / own).log().mean()
        loss = seesaw(hidden, weight, target, counts=COUNTS, p=p, q=q, floor=floor, logit_scale=3.0)
        torch.testing.assert_close(loss, expected)
        ours = torch.autograd.grad(loss, (hidden, weight))
        torch.testing.assert_close(ours, torch.autograd.grad(expected, (hidden, weight)))


def test_mitigation_spares_tokens_rarer_than_the_target_only():
    hidden, weight = torch.ones(1, 1), torch.zeros(7, 1, requires_grad=True)
    loss = seesaw(hidden, weight, torch.tensor([1]), counts=COUNTS, p=1.0)
    # 1 (more frequent), 1 (target), 1 (as frequent), 9/50, 3/50, 1/50, 1/50
    torch.testing.assert_close(loss.exp(), torch.tensor(3 + 14 / 50))
    (gradient,) = torch.autograd.grad(loss, weight)
    assert gradient[0] == gradient[2]
    torch.testing.assert_close(gradient[3] / gradient[0], torch.tensor([9 / 50]))


def test_compensation_punishes_the_more_probable():
    z = torch.tensor([[0.0, 1.0]])
    flat = TokenCounts(torch.ones(2))
    loss = seesaw(z, torch.eye(2), torch.tensor([0]), counts=flat, q=2.0)
    torch.testing.assert_close(loss, (1 + torch.tensor(3.0).exp()).log())  # z_1 + 2 * 1
    floored = seesaw(10 * z, torch.eye(2), torch.tensor([0]), counts=flat, q=2.0)
    expected = 10 + 2 * torch.tensor(100.0).log()  # sigma_1 is almost 1, sigma_0 below .01
    torch.testing.assert_close(floored, expected, rtol=1e-4, atol=0)
