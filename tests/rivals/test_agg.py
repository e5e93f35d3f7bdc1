"""Adaptive gradient gating: gates by hand, and the published form with two losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from elbowroom.counts import TokenCounts
from elbowroom.rivals import agg

# Ten steps: rates 2, 1, .5, .1 and 0 a step. With alpha .8 the last three are rare, with a mean
# count of (5 + 1 + 0) / 3 = 2.
COUNTS = (20, 10, 5, 1, 0)
OF_COMMON = (1.0, 1.0, 0.5, 0.1, 0.0)
OF_RARE = (1.0, 1.0, 1.0, 0.5, 0.0)


def make_counts():
    counts = TokenCounts.running(5, steps=10)
    for step in range(12):  # the first two leave the window
        ids = [i for i, n in enumerate(COUNTS) if step >= 2 for _ in range(n // 10)]
        ids += [2] * (step % 2) if step >= 2 else [4, 4, 4]
        ids += [3] if step == 5 else []
        counts.update(torch.tensor(ids))
    assert counts.counts.tolist() == list(COUNTS)
    return counts


def expected_gradients(hidden, weight, target):
    """Sum the gradient of each token by hand, entry by entry."""
    p = (hidden @ weight.T).softmax(-1)
    by_hidden, by_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
    for n, y in enumerate(target.tolist()):
        for i in range(weight.shape[0]):
            error = p[n, i] - float(i == y)
            by_hidden[n] += error * weight[i]
            gate = 1.0 if i == y else (OF_RARE if y >= 2 else OF_COMMON)[i]
            by_weight[i] += gate * error * hidden[n]
    return by_hidden / len(target), by_weight / len(target)


def test_gradients_by_hand():
    hidden = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 1, 2, 3, 4, 0])
    loss = agg(hidden, weight, target, counts=make_counts(), alpha=0.8)
    torch.testing.assert_close(loss, F.cross_entropy(hidden @ weight.T, target))
    gradients = torch.autograd.grad(loss, (hidden, weight))
    expected = expected_gradients(hidden.detach(), weight.detach(), target)
    torch.testing.assert_close(gradients[0], expected[0])
    torch.testing.assert_close(gradients[1], expected[1], atol=1e-6, rtol=1e-6)  # 1e-7 in the mean


def test_the_bias_is_gated_as_its_row_is():
    hidden, weight = torch.zeros(1, 2), torch.zeros(5, 2)
    bias = torch.zeros(5, requires_grad=True)
    agg(hidden, weight, torch.tensor([1]), counts=make_counts(), alpha=0.8, bias=bias).backward()
    torch.testing.assert_close(bias.grad, torch.tensor([0.2, -0.8, 0.1, 0.02, 0.0]))


def test_gates_never_exceed_one_and_no_counts_gate_everything():
    counts = TokenCounts.running(3, steps=4)
    weight = torch.zeros(3, 1, requires_grad=True)
    agg(torch.ones(1, 1), weight, torch.tensor([0]), counts=counts).backward()
    torch.testing.assert_close(weight.grad[:, 0], torch.tensor([-2 / 3, 0.0, 0.0]))
    counts.update(torch.tensor([0, 1, 1, 1, 2, 2]))
    weight.grad = None
    agg(torch.ones(1, 1), weight, torch.tensor([0]), counts=counts, alpha=10.0).backward()
    # all are rare, with a mean count of 2: row 1 has more than that and row 2 as much
    torch.testing.assert_close(weight.grad[:, 0], torch.tensor([-2 / 3, 1 / 3, 1 / 3]))


def test_the_bound_itself_is_not_rare():
    weight = torch.zeros(5, 1, requires_grad=True)
    agg(torch.ones(1, 1), weight, torch.tensor([0]), counts=make_counts(), alpha=0.5).backward()
    torch.testing.assert_close(weight.grad[:, 0], torch.tensor([-0.8, 0.2, 0.2, 0.02, 0.0]))
