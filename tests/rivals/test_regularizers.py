"""Penalties on the matrix: against sums over all pairs."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.rivals import cosreg, laplacian


def matrix(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def unit(weight):
    return weight / weight.norm(dim=-1, keepdim=True)


def test_cosreg_is_the_mean_cosine_of_all_pairs():
    weight = matrix(9, 4)
    u = unit(weight)
    cosines = u @ u.T
    expected = (cosines.sum() - 9) / 81
    torch.testing.assert_close(cosreg(weight), expected)
    torch.testing.assert_close(cosreg(weight, 0.3), 0.3 * expected)
    assert cosreg(weight, 0.0) == 0
    assert gradcheck(cosreg, (weight,))


def test_laplacian_by_hand():
    # cosines: 0-1 .6, 0-2 -1, 1-2 -.6; only 0-1 are joined
    weight = torch.tensor([[2.0, 0.0], [0.3, 0.4], [-1.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor(-2 * 0.6 * 0.4 / 9, dtype=torch.float64)
    torch.testing.assert_close(laplacian(weight), expected)


@pytest.mark.parametrize("chunk", [1, 4, 1024])
def test_laplacian_is_the_trace_with_a_constant_graph(chunk):
    weight = matrix(11, 5)
    u = unit(weight)
    s = (u @ u.T).clamp(min=0).fill_diagonal_(0).detach()
    graph = s.sum(-1).diag() - s
    expected = -0.7 / 121 * torch.trace(u.T @ graph @ u)
    value = laplacian(weight, 0.7, chunk=chunk)
    torch.testing.assert_close(value, expected)
    pairs = sum(s[i, j] * (u[i] - u[j]).square().sum() for i in range(11) for j in range(11))
    torch.testing.assert_close(value, -0.7 / 242 * pairs)
    (ours,) = torch.autograd.grad(value, weight)
    (theirs,) = torch.autograd.grad(expected, weight)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("penalty", [cosreg, laplacian])
def test_a_step_along_it_spreads_the_rows(penalty):
    weight = (torch.randn(20, 8) + 2.0).requires_grad_()
    before = cosreg(weight)
    (gradient,) = torch.autograd.grad(penalty(weight), weight)
    assert cosreg(weight - 10 * gradient) < before


@pytest.mark.parametrize("penalty", [cosreg, laplacian])
def test_runs_zero_rows_and_low_precision(penalty):
    weight = matrix(3, 7, 4)
    torch.testing.assert_close(penalty(weight), torch.stack([penalty(w) for w in weight]))
    (together,) = torch.autograd.grad(penalty(weight).sum(), weight)
    alone = [torch.autograd.grad(penalty(weight[r]), weight)[0][r] for r in range(3)]
    torch.testing.assert_close(together, torch.stack(alone))
    with torch.no_grad():
        weight[0, 0] = 0.0
    (gradient,) = torch.autograd.grad(penalty(weight).sum(), weight)
    assert gradient.isfinite().all()
    assert (gradient[0, 0] == 0).all()
    half = weight.detach().to(torch.bfloat16)
    assert penalty(half).dtype == torch.float32
    torch.testing.assert_close(penalty(half), penalty(half.double()).float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(penalty(half), penalty(half.double()).float())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("penalty", [cosreg, laplacian])
def test_bad_input(penalty):
    with pytest.raises(ArgumentTypeError, match="weight"):
        penalty(torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(ArgumentValueError, match="weight"):
        penalty(torch.ones(3))
    with pytest.raises(ArgumentValueError, match="weight"):
        penalty(torch.ones(0, 3))
    with pytest.raises(ArgumentValueError, match="gamma"):
        penalty(torch.ones(3, 2), gamma=float("nan"))
    with pytest.raises(ArgumentValueError, match="chunk"):
        laplacian(torch.ones(3, 2), chunk=0)
