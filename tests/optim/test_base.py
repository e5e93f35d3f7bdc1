"""What RowAdamW shares with other optimizers: ordinary parameters, groups, checks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.optim import RowAdamW

NUMBERS = {"lr": 0.02, "betas": (0.7, 0.9), "eps": 1e-6, "weight_decay": 0.2}


def model(dtype=torch.float32):
    torch.manual_seed(3)
    return nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 4), nn.LayerNorm(4)).to(dtype)


def train(net, optimizer, steps=6):
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        optimizer.zero_grad()
        ids = torch.randint(11, (8,), generator=generator)
        net(ids).square().sum().backward()
        optimizer.step()
    return list(net.parameters())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"foreach": True},
        {"foreach": False},
        {"fused": True},
        {"maximize": True},
        {"lr": torch.tensor(0.02)},
        {"lr": torch.tensor([0.02]), "fused": True},
        {"weight_decay": 0.0},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_parameters_not_in_rows_are_adamw_to_the_bit(options, dtype):
    options = {**NUMBERS, **options}
    mine, theirs = model(dtype), model(dtype)
    got = train(mine, RowAdamW(mine.parameters(), **options))
    expected = train(theirs, torch.optim.AdamW(theirs.parameters(), **options))
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


def test_complex_parameters_and_float64_defaults_are_adamw_too():
    torch.set_default_dtype(torch.float64)
    try:
        results = []
        for make in (RowAdamW, torch.optim.AdamW):
            weight = Parameter(torch.arange(4.0).to(torch.complex64))
            optimizer = make([weight], **NUMBERS)
            weight.grad = torch.full_like(weight, 1 - 2j)
            optimizer.step()
            results.append((weight.data, optimizer.state[weight]["step"]))
        for a, b in zip(*results, strict=True):
            assert torch.equal(a, b)
            assert a.dtype == b.dtype
    finally:
        torch.set_default_dtype(torch.float32)


def test_groups_with_numbers_and_rows_of_their_own():
    table, bias = Parameter(torch.ones(3, 2)), Parameter(torch.ones(2))
    group = {"params": [table], "lr": 0.5, "rows": [table]}
    optimizer = RowAdamW([{"params": [bias], "weight_decay": 0.0}, group], lr=0.1)
    assert "lr" in group
    assert "betas" not in group  # the caller's dict is left alone
    table.grad, bias.grad = torch.ones(3, 2), torch.ones(2)
    table.grad[1] = 0.0
    optimizer.step()
    torch.testing.assert_close(bias.data, torch.full((2,), 0.9))
    torch.testing.assert_close(table[:, 0].data, torch.tensor([0.495, 1.0, 0.495]))


def test_named_parameters_and_a_group_added_later():
    net, late = model(), Parameter(torch.ones(4, 2))
    optimizer = RowAdamW(net.named_parameters(), rows=[net[0].weight])
    optimizer.add_param_group({"params": [("late", late)], "rows": [late]})
    late.grad = torch.eye(4)[:, :2]
    optimizer.step()
    assert (late != 1).any(-1).tolist() == [True, True, False, False]


def test_closure_and_parameters_without_gradient():
    used, unused = Parameter(torch.ones(2)), Parameter(torch.ones(2))
    optimizer = RowAdamW([used, unused], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = used.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 2.0
    assert optimizer.step() is None
    assert not optimizer.state[unused]
    assert (unused == 1).all()


def test_a_scheduler_sets_the_rate():
    weight = Parameter(torch.zeros(2, 2))
    optimizer = RowAdamW([weight], lr=1.0, weight_decay=0.0, rows=[weight])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    for _ in range(2):
        weight.grad = torch.ones(2, 2)
        optimizer.step()
        scheduler.step()
    torch.testing.assert_close(weight.data, torch.full((2, 2), -1.5))


# Numbers a run


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("per_run", ["lr", "weight_decay", "both"])
def test_ordinary_parameters_with_numbers_a_run_equal_runs_alone(per_run, maximize):
    rates = torch.tensor([0.1, 0.02, 0.0]) if per_run != "weight_decay" else 0.1
    decays = torch.tensor([0.0, 0.5, 1.0]) if per_run != "lr" else 0.5
    starts = [torch.randn(3, 4, 5), torch.randn(3, 2), torch.randn(3)]
    grads = [[torch.randn_like(start) for start in starts] for _ in range(5)]
    shared = {"betas": (0.7, 0.9), "maximize": maximize}
    together = [Parameter(start.clone()) for start in starts]
    optimizer = RowAdamW(together, lr=rates, weight_decay=decays, **shared)
    for turn in grads:
        for param, grad in zip(together, turn, strict=True):
            param.grad = grad
        optimizer.step()
    for r in range(3):
        alone = [Parameter(start[r].clone()) for start in starts]
        rate, decay = (float(x[r]) if torch.is_tensor(x) else x for x in (rates, decays))
        optimizer = torch.optim.AdamW(alone, lr=rate, weight_decay=decay, **shared)
        for turn in grads:
            for param, grad in zip(alone, turn, strict=True):
                param.grad = grad[r]
            optimizer.step()
        for both, one in zip(together, alone, strict=True):
            torch.testing.assert_close(both[r].data, one.data)


def test_counts_on_the_device_serve_numbers_a_run():
    results = []
    for capturable in (False, True):
        weight = Parameter(torch.ones(2, 3))
        rates = torch.tensor([0.1, 0.2])
        optimizer = RowAdamW([weight], lr=rates, capturable=capturable)
        for _ in range(3):
            weight.grad = torch.full((2, 3), 2.0)
            optimizer.step()
        results.append(weight.data)
    torch.testing.assert_close(*results)


def test_a_tensor_of_one_is_a_number_for_any_parameter():
    for capturable in (False, True):
        weight = Parameter(torch.zeros(3, 2))
        options = {"weight_decay": torch.tensor([0.0]), "lr": torch.tensor([0.5])}
        optimizer = RowAdamW([weight], rows=[weight], capturable=capturable, **options)
        weight.grad = torch.ones(3, 2)
        optimizer.step()
        torch.testing.assert_close(weight.data, torch.full((3, 2), -0.5))


# Bad input


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("error", "match", "options"),
    [
        (ArgumentValueError, r"^lr: expected a finite number, at least 0", {"lr": -1.0}),
        (ArgumentValueError, r"^lr: ", {"lr": math.nan}),
        (ArgumentTypeError, r"^lr: expected a number", {"lr": "fast"}),
        (ArgumentValueError, r"^lr: expected numbers", {"lr": torch.tensor([0.1, -0.1])}),
        (ArgumentTypeError, r"^lr: expected a floating", {"lr": torch.tensor(1)}),
        (ArgumentValueError, r"^lr: expected a number, a tensor", {"lr": torch.ones(2, 2)}),
        (ArgumentValueError, r"^lr: expected a number, a tensor", {"lr": torch.ones(0)}),
        (ArgumentValueError, r"^lr: expected a number a run", {"lr": torch.ones(5)}),
        (ArgumentValueError, r"^lr: .*foreach", {"lr": torch.tensor(0.1), "foreach": True}),
        (ArgumentValueError, r"^weight_decay: ", {"weight_decay": -0.1}),
        (ArgumentValueError, r"^weight_decay: .*a run", {"weight_decay": torch.ones(7)}),
        (ArgumentValueError, r"^betas\[0\]: ", {"betas": (1.0, 0.9)}),
        (ArgumentValueError, r"^betas\[1\]: ", {"betas": (0.9, -0.1)}),
        (ArgumentTypeError, r"^betas: expected a pair", {"betas": 0.9}),
        (ArgumentTypeError, r"^betas: expected a pair", {"betas": (0.9,)}),
        (ArgumentValueError, r"^eps: ", {"eps": -1e-8}),
        (ArgumentTypeError, r"^maximize: ", {"maximize": None}),
        (ArgumentTypeError, r"^capturable: ", {"capturable": 1.5}),
        (ArgumentTypeError, r"^foreach: ", {"foreach": "yes"}),
        (ArgumentValueError, r"^fused: .*choose one", {"foreach": True, "fused": True}),
        (ArgumentTypeError, r"^rows: expected an iterable", {"rows": 3}),
        (ArgumentTypeError, r"^rows: expected an iterable", {"rows": torch.ones(3, 2)}),
        (ArgumentTypeError, r"^rows: expected a tensor", {"rows": ["weight"]}),
        (ArgumentValueError, r"^rows: .*not copies or views", {"rows": [torch.ones(3, 2)]}),
    ],
)
def test_bad_options(error, match, options):
    with pytest.raises(error, match=match):
        RowAdamW([Parameter(torch.ones(3, 2))], **options)


@pytest.mark.parametrize("shape", [(), (4,)])
def test_rows_need_a_matrix(shape):
    weight = Parameter(torch.ones(shape))
    with pytest.raises(ArgumentValueError, match=r"^rows: expected parameters \[..., V, D\]"):
        RowAdamW([weight], rows=[weight])


def test_a_group_that_is_refused_leaves_no_trace():
    first, second = Parameter(torch.ones(3, 2)), Parameter(torch.ones(4, 2))
    optimizer = RowAdamW([first])
    with pytest.raises(ArgumentValueError, match=r"^lr: "):
        optimizer.add_param_group({"params": [second], "lr": torch.ones(3)})
    with pytest.raises(ArgumentValueError, match=r"^params: .*amsgrad"):
        optimizer.add_param_group({"params": [second], "amsgrad": True})
    assert len(optimizer.param_groups) == 1


@pytest.mark.usefixtures("unchecked")
def test_a_group_is_a_dict():
    with pytest.raises(ArgumentTypeError, match=r"^param_group: expected a dict"):
        RowAdamW([Parameter(torch.ones(2))]).add_param_group([1])


def test_sparse_gradients_are_refused():
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = RowAdamW(embedding.parameters(), rows=[embedding.weight])
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ArgumentTypeError, match=r"^params: expected dense gradients.*sparse=False"):
        optimizer.step()
