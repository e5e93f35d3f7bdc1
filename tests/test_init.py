from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.init import zero_rows_

unchecked = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize(
    "rows",
    [
        [1, 3],
        (3, 1, 1),
        range(1, 4, 2),
        np.array([1, 3]),
        torch.tensor([1, 3]),
        torch.tensor([1, 3], dtype=torch.int32),
        torch.tensor([False, True, False, True]),
    ],
    ids=lambda rows: f"{type(rows).__name__}",
)
def test_sets_the_rows_and_no_others(rows: object) -> None:
    weight = torch.arange(1.0, 9.0).view(4, 2)
    result = zero_rows_(weight, rows)  # type: ignore[arg-type]
    assert result is weight
    assert weight.tolist() == [[1.0, 2.0], [0.0, 0.0], [5.0, 6.0], [0.0, 0.0]]


def test_runs() -> None:
    weight = torch.ones(2, 3, 4)
    zero_rows_(weight, torch.tensor([[True, False, False], [False, True, True]]))
    assert weight.sum(-1).tolist() == [[0.0, 4.0, 4.0], [4.0, 0.0, 0.0]]
    assert zero_rows_(torch.ones(2, 3, 4), [0]).sum(-1).tolist() == [[0.0, 4.0, 4.0]] * 2
    mask = torch.tensor([True, False, False])
    assert zero_rows_(torch.ones(2, 3, 4), mask).sum(-1).tolist() == [[0.0, 4.0, 4.0]] * 2


def test_a_parameter_stays_a_leaf() -> None:
    head = nn.Linear(2, 3)
    zero_rows_(head.weight, [0])
    assert head.weight.is_leaf
    head(torch.ones(1, 2)).sum().backward()
    assert head.weight.grad is not None
    assert head.weight.grad.tolist() == [[1.0, 1.0]] * 3


def test_nan_rows_become_zero() -> None:
    assert zero_rows_(torch.full((2, 2), torch.nan), [1])[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("rows", [[], torch.zeros(3, dtype=torch.bool), torch.zeros(0).long()])
def test_no_rows(rows: object) -> None:
    assert zero_rows_(torch.ones(3, 2), rows).tolist() == [[1.0, 1.0]] * 3  # type: ignore[arg-type]


@unchecked
def test_bad_input() -> None:
    weight = torch.ones(3, 2)
    with pytest.raises(ArgumentTypeError, match="weight: expected a tensor"):
        zero_rows_([1.0], [0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="weight: expected a floating"):
        zero_rows_(weight.long(), [0])
    with pytest.raises(ArgumentValueError, match=r"weight: expected \[V, D\] or \[R, V, D\]"):
        zero_rows_(torch.ones(3), [0])
    for rows in ([3], [-1], torch.tensor([0, 3])):
        with pytest.raises(ArgumentValueError, match="rows: expected token ids from 0 to 2"):
            zero_rows_(weight, rows)
    with pytest.raises(ArgumentValueError, match=r"rows: expected a mask of shape \(3,\)"):
        zero_rows_(weight, torch.ones(2, dtype=torch.bool))
    with pytest.raises(ArgumentValueError, match=r"mask of shape \(3,\) or \(2, 3\)"):
        zero_rows_(torch.ones(2, 3, 4), torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(ArgumentTypeError, match="rows: expected a tensor of integers"):
        zero_rows_(weight, torch.tensor([0.0]))
    with pytest.raises(ArgumentValueError, match=r"rows: expected token ids of shape \[K\]"):
        zero_rows_(weight, torch.tensor([[0]]))
    for wrong in (["0"], [0.5], [True, False, False], [None]):
        with pytest.raises(ArgumentTypeError, match="rows: expected integers"):
            zero_rows_(weight, wrong)  # type: ignore[arg-type]
    for wrong in (5, "12", None):
        with pytest.raises(ArgumentTypeError, match="rows: expected a tensor or integers"):
            zero_rows_(weight, wrong)  # type: ignore[arg-type]
