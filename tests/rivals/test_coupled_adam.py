from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import Parameter

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.rivals.coupled_adam import CoupledAdamW

OPTIONS = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.3}
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def run(optimizer, weight, grads):
    for grad in grads:
        weight.grad = grad.clone()
        optimizer.step()
    return weight.detach()


def naive(start, grads, lr, betas, eps, weight_decay):
    """The equation, row by row."""
    p = [row.clone() for row in start]
    m = [torch.zeros_like(row) for row in start]
    v = [torch.zeros_like(row) for row in start]
    for t, grad in enumerate(grads, 1):
        for i, g in enumerate(grad):
            m[i] = betas[0] * m[i] + (1 - betas[0]) * g
            v[i] = betas[1] * v[i] + (1 - betas[1]) * g**2
        mean = sum(v) / len(v) / (1 - betas[1] ** t)
        for i in range(len(p)):
            p[i] = p[i] * (1 - lr * weight_decay)
            p[i] = p[i] - lr * m[i] / (1 - betas[0] ** t) / (mean.sqrt() + eps)
    return torch.stack(p)


@pytest.mark.parametrize("capturable", [False, True])
def test_equals_the_equation(capturable):
    start = torch.randn(7, 3, dtype=torch.float64)
    grads = [torch.randn_like(start) for _ in range(6)]
    weight = Parameter(start.clone())
    optimizer = CoupledAdamW([weight], coupled=[weight], capturable=capturable, **OPTIONS)
    # the count on the device is float32, and so are the corrections made of it
    close = {"rtol": 1e-5, "atol": 1e-6} if capturable else CLOSE
    expected = naive(start, grads, **OPTIONS)
    torch.testing.assert_close(run(optimizer, weight, grads), expected, **close)


def test_updates_sum_to_zero_where_gradients_do():
    weight = Parameter(torch.zeros(50, 4, dtype=torch.float64))
    optimizer = CoupledAdamW([weight], weight_decay=0.0, coupled=[weight])
    grads = [torch.randn(50, 4, dtype=torch.float64) for _ in range(5)]
    got = run(optimizer, weight, [grad - grad.mean(0) for grad in grads])
    torch.testing.assert_close(got.mean(0), torch.zeros(4, dtype=torch.float64), **CLOSE)
    assert got.abs().amax() > 1e-4


def test_one_row_is_adamw():
    start = torch.randn(1, 5, dtype=torch.float64)
    grads = [torch.randn_like(start) for _ in range(4)]
    mine, theirs = Parameter(start.clone()), Parameter(start.clone())
    got = run(CoupledAdamW([mine], coupled=[mine], maximize=True, **OPTIONS), mine, grads)
    expected = run(torch.optim.AdamW([theirs], maximize=True, **OPTIONS), theirs, grads)
    torch.testing.assert_close(got, expected, **CLOSE)


def test_parameters_not_coupled_are_adamw_to_the_bit():
    start = torch.randn(6, 5)
    grads = [torch.randn_like(start) for _ in range(4)]
    mine, theirs = Parameter(start.clone()), Parameter(start.clone())
    got = run(CoupledAdamW([mine], **OPTIONS), mine, grads)
    assert torch.equal(got, run(torch.optim.AdamW([theirs], **OPTIONS), theirs, grads))


def test_each_run_has_its_mean_and_its_numbers():
    start = torch.randn(2, 6, 3, dtype=torch.float64)
    grads = [torch.randn_like(start) for _ in range(4)]
    rates = torch.tensor([0.1, 0.01], dtype=torch.float64)
    both = Parameter(start.clone())
    got = run(CoupledAdamW([both], lr=rates, coupled=[both]), both, grads)
    for r in range(2):
        alone = Parameter(start[r].clone())
        optimizer = CoupledAdamW([alone], lr=float(rates[r]), coupled=[alone])
        expected = run(optimizer, alone, [grad[r] for grad in grads])
        torch.testing.assert_close(got[r], expected, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_computes_in_float32(dtype):
    start = torch.randn(9, 4).to(dtype)
    grad = torch.randn(9, 4).to(dtype)
    weight, exact = Parameter(start.clone()), Parameter(start.float())
    got = run(CoupledAdamW([weight], coupled=[weight]), weight, [grad])
    expected = run(CoupledAdamW([exact], coupled=[exact]), exact, [grad.float()])
    assert torch.equal(got, expected.to(dtype))


def test_states_go_to_and_from_adamw():
    weight = Parameter(torch.randn(6, 3))
    optimizer = CoupledAdamW([weight], coupled=[weight], **OPTIONS)
    run(optimizer, weight, [torch.randn(6, 3) for _ in range(3)])
    other = torch.optim.AdamW([Parameter(torch.zeros(6, 3))])
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    again = Parameter(weight.detach().clone())
    back = CoupledAdamW([again], coupled=[again])
    back.load_state_dict(other.state_dict())
    grad = torch.randn(6, 3)
    assert torch.equal(run(optimizer, weight, [grad]), run(back, again, [grad]))


def test_bad_input():
    with pytest.raises(ArgumentValueError, match=r"^coupled: .*not copies or views"):
        CoupledAdamW([Parameter(torch.ones(2, 2))], coupled=[torch.ones(2, 2)])
    vector = Parameter(torch.ones(2))
    with pytest.raises(ArgumentValueError, match=r"^coupled: expected parameters"):
        CoupledAdamW([vector], coupled=[vector])
    with pytest.raises(ArgumentValueError, match=r"^lr: "):
        CoupledAdamW([vector], lr=-1.0)
    amsgrad = torch.optim.AdamW([Parameter(torch.ones(2))], amsgrad=True)
    with pytest.raises(ArgumentValueError, match=r"^state_dict: "):
        CoupledAdamW([vector]).load_state_dict(amsgrad.state_dict())


@pytest.mark.usefixtures("unchecked")
def test_coupled_is_a_list():
    weight = Parameter(torch.ones(2, 2))
    with pytest.raises(ArgumentTypeError, match=r"^coupled: expected an iterable"):
        CoupledAdamW([weight], coupled=weight)
