"""`prepare_linear`, `prepare_logits` and `Tokens`: one shape for every caller, one denominator."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from elbowroom.errors import ArgumentValueError
from elbowroom.losses.problem import (
    Head,
    Tokens,
    compute_dtype,
    prepare_linear,
    prepare_logits,
    prepare_tokens,
)


def test_sums_are_kept_in_float32_or_better():
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert compute_dtype(dtype) == torch.float32
    assert compute_dtype(torch.float64) == torch.float64


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3)])
def test_leading_dimensions_become_one(lead):
    hidden, weight = torch.randn(*lead, 4), torch.randn(7, 4)
    target = torch.randint(7, lead)
    head, tokens = prepare_linear(hidden, weight, target, bias=torch.randn(7))
    n = target.numel()
    assert head.hidden.shape == (1, n, 4)
    assert head.weight.shape == (1, 7, 4)
    assert head.bias.shape == (1, 7)
    assert tokens.target.shape == (1, n)
    assert tokens.shape == lead
    assert not tokens.runs
    assert head.vocab_size == 7


def test_a_run_dimension_stays():
    head, tokens = prepare_linear(
        torch.randn(3, 2, 5, 4), torch.randn(3, 7, 4), torch.zeros(3, 2, 5).long(), shift=1
    )
    assert head.hidden.shape == (3, 8, 4)
    assert tokens.target.shape == (3, 8)
    assert tokens.shape == (3, 2, 4)
    assert tokens.runs


def test_head_makes_the_logits_of_an_ordinary_head_to_the_bit():
    hidden, weight, bias = torch.randn(1, 5, 4), torch.randn(1, 7, 4), torch.randn(1, 7)
    head = Head(hidden=hidden, weight=weight, bias=bias)
    assert torch.equal(head.logits()[0], F.linear(hidden[0], weight[0], bias[0]))
    capped = Head(hidden=hidden, weight=weight, bias=bias, softcap=2.0, logit_scale=3.0)
    expected = 3 * 2 * torch.tanh(F.linear(hidden[0], weight[0], bias[0]) / 2)
    torch.testing.assert_close(capped.logits()[0], expected)


@pytest.mark.parametrize("with_bias", [False, True])
def test_head_makes_the_logits_of_every_run(with_bias):
    hidden, weight, bias = torch.randn(2, 5, 4), torch.randn(2, 7, 4), torch.randn(2, 7)
    head = Head(hidden=hidden, weight=weight, bias=bias if with_bias else None)
    for i in range(2):
        expected = F.linear(hidden[i], weight[i], bias[i] if with_bias else None)
        torch.testing.assert_close(head.logits()[i], expected)


def test_logits_are_float32_under_autocast_and_for_sixteen_bits():
    head = Head(hidden=torch.randn(1, 5, 4).bfloat16(), weight=torch.randn(1, 7, 4).bfloat16())
    expected = F.linear(head.hidden[0].float(), head.weight[0].float())
    with torch.autocast("cpu", torch.bfloat16):
        z = head.logits()
    assert z.dtype == torch.float32
    assert torch.equal(z[0], expected)


def test_ignored_targets_become_zero():
    tokens = prepare_tokens(torch.tensor([3, -7, 0]), 5, ignore_index=-7)
    assert tokens.target.tolist() == [[3, 0, 0]]
    assert tokens.counted.tolist() == [[True, False, True]]


def test_an_ignore_index_inside_the_vocabulary_is_ignored():
    tokens = prepare_tokens(torch.tensor([3, 0, 1]), 5, ignore_index=0)
    assert tokens.counted.tolist() == [[True, False, True]]


@pytest.mark.parametrize("runs", [None, 2])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("normalizer", [None, 5.0])
def test_coefficients_are_the_derivative_of_the_reduction(runs, reduction, weighted, normalizer):
    target = torch.tensor([[1, -100, 2, 0], [-100, -100, 3, 1]])
    tokens = prepare_tokens(
        target,
        5,
        runs=runs,
        reduction=reduction,
        normalizer=normalizer if reduction == "mean" else None,
        token_weights=torch.rand(2, 4) if weighted else None,
    )
    losses = torch.randn(tokens.target.shape, requires_grad=True)
    tokens.reduce(losses).sum().backward()
    torch.testing.assert_close(losses.grad, tokens.coefficients(torch.float32))


def test_a_reduced_loss_has_the_callers_shape():
    losses = torch.randn(2, 6)
    for runs, flat in ((2, losses), (None, losses.view(1, 12))):
        for reduction, shape in (("none", (2, 3, 2)), ("mean", (2,)), ("sum", (2,))):
            tokens = prepare_tokens(torch.zeros(2, 3, 2).long(), 5, runs=runs, reduction=reduction)
            expected = shape if runs or reduction == "none" else ()
            assert tokens.reduce(flat).shape == expected


def test_what_is_not_counted_may_be_anything():
    tokens = prepare_tokens(torch.tensor([1, -100]), 5)
    losses = torch.tensor([[2.0, float("nan")]], requires_grad=True)
    loss = tokens.reduce(losses)
    loss.backward()
    assert loss.item() == 2.0
    assert losses.grad.tolist() == [[1.0, 0.0]]


def test_token_weights_carry_no_gradient():
    weights = torch.rand(3, requires_grad=True)
    _, tokens = prepare_logits(torch.randn(3, 5), torch.arange(3), token_weights=weights)
    assert not tokens.weights.requires_grad


def test_scaled_logits():
    z = torch.randn(2, 3, 5)
    scaled, tokens = prepare_logits(z, torch.zeros(2, 3).long(), logit_scale=2.0)
    assert torch.equal(scaled, 2 * z.view(1, 6, 5))
    assert isinstance(tokens, Tokens)


def test_targets_may_lie_anywhere_in_the_vocabulary_and_no_further():
    assert prepare_tokens(torch.tensor([0, 4]), 5).target.tolist() == [[0, 4]]
    with pytest.raises(ArgumentValueError, match="target: expected values from 0 to 4"):
        prepare_tokens(torch.tensor([0, 5]), 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_all_but_float64(dtype):
    inputs = torch.randn(3, 4), torch.randn(7, 4), torch.zeros(3).long()
    with torch.autocast("cpu", dtype):
        head, _ = prepare_linear(*inputs, bias=torch.randn(7))
        wide, _ = prepare_linear(inputs[0].double(), inputs[1].double(), inputs[2])
    assert head.hidden.dtype == head.weight.dtype == head.bias.dtype == dtype
    assert wide.hidden.dtype == wide.weight.dtype == torch.float64
