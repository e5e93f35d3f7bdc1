"""Sparse losses: by hand, against the entmax package, and as projections."""

from __future__ import annotations

import entmax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.rivals import entmax15, entmax15_probs, sparsemax, sparsemax_probs
from tests.rivals.cases import problem

PAIRS = [
    (entmax15, entmax15_probs, entmax.entmax15, entmax.entmax15_loss, 1.5),
    (sparsemax, sparsemax_probs, entmax.sparsemax, entmax.sparsemax_loss, 2.0),
]
pairs = pytest.mark.parametrize("pair", PAIRS, ids=["entmax15", "sparsemax"])


def test_two_tokens_by_hand():
    z = torch.tensor([0.6, 0.0], dtype=torch.float64)
    torch.testing.assert_close(sparsemax_probs(z), torch.tensor([0.8, 0.2], dtype=torch.float64))
    # sqrt(p) = z / 2 - tau: roots differ by .3 and their squares sum to 1
    roots = entmax15_probs(z).sqrt()
    torch.testing.assert_close(roots[0] - roots[1], torch.tensor(0.3, dtype=torch.float64))
    torch.testing.assert_close(entmax15_probs(z).sum(), torch.tensor(1.0, dtype=torch.float64))


@pairs
def test_values_and_gradients_are_those_of_the_entmax_package(pair):
    loss, _, _, oracle, _ = pair
    for scale in (0.3, 1.0, 4.0):
        hidden, weight, target = problem(30)
        ours = loss(hidden, weight, target, reduction="none", logit_scale=scale)
        theirs = oracle(scale * hidden @ weight.T, target)
        torch.testing.assert_close(ours, theirs)
        gradients = torch.autograd.grad(ours.sum(), (hidden, weight))
        expected = torch.autograd.grad(theirs.sum(), (hidden, weight))
        torch.testing.assert_close(gradients, expected)


@pairs
@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=9))
def test_probabilities_are_a_distribution_and_those_of_the_package(pair, values):
    _, probs, oracle, _, _ = pair
    z = torch.tensor(values, dtype=torch.float64)
    p = probs(z)
    assert (p >= 0).all()
    torch.testing.assert_close(p.sum(), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(p, oracle(z, dim=-1), atol=1e-7, rtol=1e-7)


@pairs
def test_float32_probabilities_sum_to_one_over_a_large_vocabulary(pair):
    _, probs, oracle, _, _ = pair
    z = 5 * torch.randn(4, 50_000)
    p = probs(z)
    torch.testing.assert_close(p.sum(-1), torch.ones(4), atol=1e-4, rtol=0)
    exact = oracle(z.double(), dim=-1)
    torch.testing.assert_close(p.double(), exact, atol=1e-5, rtol=0)
    flat = probs(torch.zeros(1, 50_000))
    torch.testing.assert_close(flat, torch.full((1, 50_000), 2e-5), atol=1e-6, rtol=0)


@pairs
def test_p_maximises_what_the_loss_is_built_on(pair):
    _, probs, _, _, alpha = pair
    z = torch.randn(6, dtype=torch.float64)

    def objective(p):
        return p @ z + (1 - (p**alpha).sum()) / (alpha * (alpha - 1))

    best = objective(probs(z))
    others = torch.distributions.Dirichlet(torch.ones(6, dtype=torch.float64)).sample((200,))
    assert all(objective(p) <= best for p in others)


@pairs
def test_the_margin_beyond_which_nothing_moves(pair):
    loss, _, _, _, alpha = pair
    margin = 1 / (alpha - 1)  # 2 and 1
    z = torch.tensor([[margin, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    value = loss(z, torch.eye(3, dtype=torch.float64), torch.tensor([0]))
    assert value == 0
    assert (torch.autograd.grad(value, z)[0] == 0).all()
    nearly = loss(0.99 * z, torch.eye(3, dtype=torch.float64), torch.tensor([0]))
    assert nearly > 0


@pairs
def test_gradients_of_far_tokens_are_exactly_zero(pair):
    loss = pair[0]
    hidden, weight, target = problem(40)
    value = loss(hidden, weight, target, logit_scale=3.0, reduction="sum")
    z = (hidden.detach() * 3 @ weight.detach().T).requires_grad_()
    (by_logits,) = torch.autograd.grad(
        loss(z, torch.eye(7, dtype=torch.float64), target, reduction="sum"), z
    )
    assert (by_logits == 0).double().mean() > 0.3
    torch.testing.assert_close(
        torch.autograd.grad(value, weight)[0], 3 * by_logits.T @ hidden.detach()
    )


@pytest.mark.usefixtures("unchecked")
@pairs
def test_bad_logits(pair):
    for bad in ([1.0, 2.0], torch.tensor([1, 2])):
        with pytest.raises(ArgumentTypeError, match=r"^logits: expected"):
            pair[1](bad)
    for bad in (torch.tensor(1.0), torch.ones(2, 0)):
        with pytest.raises(ArgumentValueError, match=r"^logits: expected"):
            pair[1](bad)
