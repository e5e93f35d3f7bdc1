from __future__ import annotations

import math

import pytest
import torch
from torch.nn import Parameter

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.optim import RowAdamW
from elbowroom.rivals.centering import center_rows, centering_penalty


@pytest.mark.parametrize("shape", [(6, 3), (2, 6, 3), (1, 4)])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, RowAdamW])
def test_after_each_step_the_mean_is_zero_and_differences_are_kept(shape, make):
    start = torch.randn(shape, dtype=torch.float64)
    centered, plain = Parameter(start.clone()), Parameter(start.clone())
    optimizers = [make([w], lr=0.1, weight_decay=0.0) for w in (centered, plain)]
    center_rows(optimizers[0], centered)
    for _ in range(3):
        grad = torch.randn(shape, dtype=torch.float64)
        for weight, optimizer in zip((centered, plain), optimizers, strict=True):
            weight.grad = grad.clone()
            optimizer.step()
        mean = centered.detach().mean(-2)
        torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-15)
        expected = plain.detach() - plain.detach().mean(-2, keepdim=True)
        torch.testing.assert_close(centered.detach(), expected)


def test_a_removed_handle_centers_no_more():
    weight = Parameter(torch.tensor([[1.0], [3.0]]))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    handle = center_rows(optimizer, weight)
    optimizer.step()
    assert weight.flatten().tolist() == [-1.0, 1.0]
    handle.remove()
    with torch.no_grad():
        weight += 1.0
    optimizer.step()
    assert weight.flatten().tolist() == [0.0, 2.0]


def test_bfloat16_takes_the_mean_in_float32():
    weight = Parameter(torch.full((3000, 2), 1.0, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    center_rows(optimizer, weight)
    optimizer.step()
    assert (weight == 0).all()
    assert centering_penalty(torch.ones(3000, 2).bfloat16(), 1.0).item() == 2.0


def test_penalty_by_hand():
    weight = torch.tensor([[[3.0, 0.0], [3.0, 8.0]], [[1.0, 0.0], [-1.0, 0.0]]])
    assert centering_penalty(weight[0], 0.5).item() == 12.5
    assert centering_penalty(weight, torch.tensor([0.5, 3.0])).tolist() == [12.5, 0.0]
    assert centering_penalty(weight, torch.tensor(2.0)).tolist() == [50.0, 0.0]
    assert centering_penalty(weight, 0.0).tolist() == [0.0, 0.0]


def test_penalty_gradients():
    weight = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: centering_penalty(w, 0.7), (weight,))
    centering_penalty(weight, 0.7).sum().backward()
    expected = 2 * 0.7 * weight.detach().mean(-2, keepdim=True) / 5
    torch.testing.assert_close(weight.grad, expected.expand(2, 5, 3))


@pytest.mark.usefixtures("unchecked")
def test_bad_input():
    weight = Parameter(torch.ones(2, 2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with pytest.raises(ArgumentTypeError, match=r"^optimizer: "):
        center_rows(weight, optimizer)
    with pytest.raises(ArgumentTypeError, match=r"^weight: "):
        center_rows(optimizer, None)
    for bad in (torch.ones(2), torch.ones(0, 2)):
        with pytest.raises(ArgumentValueError, match=r"^weight: expected \[V, D\]"):
            centering_penalty(bad, 1.0)
    for strength in (-1.0, math.nan, torch.tensor(-1.0)):
        with pytest.raises(ArgumentValueError, match=r"^strength: "):
            centering_penalty(weight, strength)
    with pytest.raises(ArgumentValueError, match=r"^strength: expected shape"):
        centering_penalty(weight, torch.ones(3))
    with pytest.raises(ArgumentTypeError, match=r"^strength: "):
        centering_penalty(weight, "much")
