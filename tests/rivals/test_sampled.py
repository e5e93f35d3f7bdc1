"""Sampled softmax: its limit, its estimate, and what it draws."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from elbowroom.counts import TokenCounts
from elbowroom.losses.problem import prepare_linear
from elbowroom.rivals import sampled_softmax
from elbowroom.rivals.sampled import _log_proposal, _loss
from tests.rivals.cases import V, problem


def test_given_draws_by_hand():
    z = torch.tensor([[1.0, 2.0, 3.0]])
    head, tokens = prepare_linear(z, torch.eye(3), torch.tensor([1]))
    ids = torch.tensor([[0, 0, 1, 2]])  # the 1 is an accidental hit
    q = torch.tensor([[0.5, 0.5, 0.3, 0.2]])
    e = math.e
    expected = math.log(e**2 + 2 * e / (4 * 0.5) + e**3 / (4 * 0.2)) - 2
    assert _loss(head, tokens, ids, q.log().double()).item() == pytest.approx(expected)


@pytest.mark.parametrize("proposal", ["uniform", "log_uniform", "frequency"])
def test_many_samples_are_cross_entropy(proposal):
    hidden, weight, target = problem(5)
    bias = torch.randn(V, dtype=torch.float64)
    counts = TokenCounts(torch.arange(V)) if proposal == "frequency" else None
    loss = sampled_softmax(
        hidden, weight, target, samples=400_000, proposal=proposal, counts=counts, bias=bias
    )
    expected = F.cross_entropy(hidden @ weight.T + bias, target)
    torch.testing.assert_close(loss, expected, atol=0.01, rtol=0)


def test_the_partition_sum_is_unbiased():
    hidden, weight, _ = (x.detach() for x in problem(1))
    target = torch.tensor([2])
    own = (hidden[0] @ weight[2]).exp()
    many = [x.expand(4000, *x.shape) for x in (hidden, weight, target)]  # 4000 runs, a seed each
    loss = sampled_softmax(*many, samples=3, proposal="uniform", seed=torch.arange(4000))
    estimates = loss.exp() * own
    expected = (hidden @ weight.T).exp().sum()
    error = estimates.std() / math.sqrt(4000)
    assert abs(estimates.mean() - expected) < 4 * error
    assert error < 0.05 * expected


@pytest.mark.parametrize("proposal", ["uniform", "log_uniform", "frequency"])
def test_the_proposal_is_as_documented(proposal):
    hidden, weight, target = problem()
    head, _ = prepare_linear(hidden, weight, target)
    counts = TokenCounts(torch.tensor([9, 3, 2, 2, 1, 1, 0])) if proposal == "frequency" else None
    q = _log_proposal(head, proposal, counts, 0.5).exp()[0]
    expected = {
        "uniform": torch.ones(V),
        "log_uniform": torch.tensor([math.log((i + 2) / (i + 1)) for i in range(V)]),
        "frequency": torch.tensor([9.5, 3.5, 2.5, 2.5, 1.5, 1.5, 0.5]),
    }[proposal]
    torch.testing.assert_close(q, (expected / expected.sum()).double(), atol=1e-6, rtol=1e-6)


def test_draws_follow_the_proposal_and_only_drawn_rows_move():
    V = 50
    hidden = torch.ones(1, 1)
    weight = torch.zeros(V, 1, requires_grad=True)
    counts = TokenCounts(torch.arange(V))
    drawn = torch.zeros(V)
    for step in range(30):
        loss = sampled_softmax(
            hidden, weight, torch.tensor([0]), samples=100, proposal="frequency",
            counts=counts, smoothing=1e-6, seed=4, step=step,
        )  # fmt: skip
        drawn += (torch.autograd.grad(loss, weight)[0][:, 0] > 0).float()
    share = counts.frequency()
    expected = 30 * (1 - (1 - share) ** 100)
    spread = (30 * (1 - share) ** 100 * (1 - (1 - share) ** 100)).sqrt()
    assert ((drawn - expected).abs() <= 4.5 * spread + 1e-3).all()


def test_seeds_and_steps_decide_the_draw():
    hidden, weight, target = problem()
    one = sampled_softmax(hidden, weight, target, samples=4, seed=1, step=2)
    assert torch.equal(one, sampled_softmax(hidden, weight, target, samples=4, seed=1, step=2))
    assert one != sampled_softmax(hidden, weight, target, samples=4, seed=2, step=2)
    assert one != sampled_softmax(hidden, weight, target, samples=4, seed=1, step=3)
