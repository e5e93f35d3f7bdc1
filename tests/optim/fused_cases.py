"""What the fused step must do, on any device: interpreted on a CPU, and compiled on a GPU.

Modules that import these tests bring the fixture ``device``.
"""

from __future__ import annotations

import math
import types

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from elbowroom.optim import RowAdamW, fused
from tests.optim.oracle import some_rows

OPTIONS = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.3}
CLOSE = {"rtol": 2e-5, "atol": 2e-6}
ROUNDING = {torch.float32: CLOSE, torch.float16: {"rtol": 2e-3, "atol": 2e-3}}
SHAPES = [(40, 12), (3, 9, 33), (70, 1), (3, 4096), (2, 2, 5000), (0, 4), (4, 0)]


def spied(monkeypatch) -> list[str]:
    """Note which of the two launchers is called."""
    calls: list[str] = []

    def spy_on(name, launch):
        def spy(*args, **options):
            calls.append(name)
            launch(*args, **options)

        monkeypatch.setattr(fused, name, spy)

    spy_on("step_rows", fused.step_rows)
    spy_on("step_runs", fused.step_runs)
    return calls


def walk(start: Tensor, grads: list[Tensor], *, marks=False, selected=True, **options):
    """Make a step for each gradient; return the weight and its state."""
    weight = Parameter(start.clone())
    rows = [weight] if selected else []
    optimizer = RowAdamW([weight], rows=rows, **{**OPTIONS, **options})
    for grad in grads:
        weight.grad = grad.clone()
        if marks:
            optimizer.touch(weight, (grad != 0).any(-1))
        optimizer.step()
    return weight.data, optimizer.state[weight]


def assert_same(got, expected, dtype=torch.float32) -> None:
    assert got[1].keys() == expected[1].keys()
    for name, value in {"param": expected[0], **expected[1]}.items():
        mine = got[0] if name == "param" else got[1][name]
        limits = ROUNDING[dtype] if name in ("param", "exp_avg", "exp_avg_sq") else {}
        torch.testing.assert_close(mine, value.to(mine.dtype), **limits)


def some_grads(shape, count, dtype, device, share=0.4):
    return [some_rows(shape, share, torch.float32).to(device, dtype) for _ in range(count)]


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("catch_up", [False, True])
@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_equal_the_masked_step(shape, marks, catch_up, capturable, device, monkeypatch):
    calls = spied(monkeypatch)
    start, grads = torch.randn(shape, device=device), some_grads(shape, 4, torch.float32, device)
    options = {"marks": marks, "catch_up": catch_up, "capturable": capturable}
    got = walk(start, grads, **options)
    assert calls == ["step_rows"] * 4
    assert_same(got, walk(start, grads, fused=False, **options))


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("shape", [(33, 17), (4, 4500)])
def test_rows_equal_float64(shape, share, maximize, device):
    start = torch.randn(shape, device=device)
    grads = some_grads(shape, 6, torch.float32, device, share)
    got = walk(start, grads, maximize=maximize)
    wide = walk(start.double(), [grad.double() for grad in grads], maximize=maximize)
    assert_same(got, wide)


def test_float16_computes_in_float32(device):
    start = torch.randn(20, 8, device=device).half()
    grads = some_grads((20, 8), 1, torch.float16, device)
    got, expected = walk(start, grads), walk(start.float(), [grads[0].float()])
    assert_same(got, expected, torch.float16)
    assert got[1]["exp_avg"].dtype == torch.float16
    assert got[1]["row_step"].dtype == torch.float32


@pytest.mark.parametrize("selected", [True, False])
def test_bfloat16_computes_in_float32(selected, device, monkeypatch):
    calls = spied(monkeypatch)
    start, grad = (torch.randn(20, 8, device=device).bfloat16() for _ in range(2))
    rates = {"lr": torch.full((20,), 0.1, device=device)}
    got = walk(start, [grad], selected=selected, **rates)[0]
    expected = walk(start.float(), [grad.float()], selected=selected, **rates)[0]
    # Interpreted, the last bit is cut off; on a GPU it is rounded.
    limit = 2**-7 if device == "cpu" else 2**-8
    torch.testing.assert_close(got.float(), expected, rtol=limit, atol=1e-30)
    assert len(calls) == 2


def test_counts_small_and_large_are_corrected_alike(device):
    start, grad = torch.randn(6, 8, device=device), torch.randn(6, 8, device=device)
    counts = torch.tensor([0.0, 1.0, 10.0, 499.0, 3e3, 1e6], device=device)
    results = []
    for dtype in (torch.float32, torch.float64):
        weight = Parameter(start.to(dtype, copy=True))
        optimizer = RowAdamW([weight], rows=[weight], lr=1.0, weight_decay=0.0)
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
        optimizer.state[weight]["row_step"].copy_(counts)
        weight.grad = grad.to(dtype)
        optimizer.step()
        results.append((weight.data - start.to(dtype)).double())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("betas", [(0.0, 0.9), (0.9, 0.0), (0.0, 0.0)])
def test_no_memory_of_the_past(betas, device):
    start, grads = torch.randn(9, 8, device=device), some_grads((9, 8), 4, torch.float32, device)
    for catch_up in (False, True):
        options = {"betas": betas, "catch_up": catch_up, "eps": 1e-3}
        assert_same(walk(start, grads, **options), walk(start, grads, fused=False, **options))


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("width", [3, 2048, 4200])
def test_untouched_rows_keep_their_bits_whatever_they_hold(width, marks, device):
    weight = Parameter(torch.randn(5, width, device=device))
    optimizer = RowAdamW([weight], rows=[weight])
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    state = optimizer.state[weight]
    state["exp_avg"][1], state["exp_avg_sq"][1] = math.inf, math.nan
    with torch.no_grad():
        weight[1] = math.nan
    before = [x.clone() for x in (weight.data, state["exp_avg"], state["exp_avg_sq"])]
    weight.grad[[1, 3]] = 0.0
    weight.grad[1, 0] = -0.0
    weight.grad[4] = 0.0
    weight.grad[4, -1] = math.nan
    if marks:
        optimizer.touch(weight, torch.tensor([0, 1, 2, 4], device=device))
    optimizer.step()
    for old, new in zip(before, (weight.data, state["exp_avg"], state["exp_avg_sq"]), strict=True):
        assert torch.equal(old[[1, 3]].view(torch.int32), new[[1, 3]].view(torch.int32))
        assert (old[[0, 2]] != new[[0, 2]]).any(-1).all()
    assert weight[4, -1].isnan()
    assert state["row_step"].tolist() == [2, 1, 2, 1, 2]


@pytest.mark.parametrize("width", [6, 4200])
def test_rows_without_a_mark_are_not_looked_at(width, device):
    weight = Parameter(torch.ones(7, width, device=device))
    optimizer = RowAdamW([weight], rows=[weight])
    weight.grad = torch.full_like(weight, math.nan)
    weight.grad[2] = 1.0
    optimizer.touch(weight, torch.tensor([2], device=device))
    optimizer.step()
    assert optimizer.state[weight]["row_step"].nonzero().flatten().tolist() == [2]
    assert weight.isfinite().all()


@pytest.mark.parametrize("shape", [(700, 6), (7, 4200)])
def test_programs_that_take_several_tiles_in_turn(shape, device, monkeypatch):
    start, grads = torch.randn(shape, device=device), some_grads(shape, 2, torch.float32, device)
    whole = walk(start, grads)
    for name, value in (("FULL", 0), ("TURNS", 3), ("TILE", 512)):
        monkeypatch.setattr(fused, name, value)
    torch.testing.assert_close(walk(start, grads)[0], whole[0], rtol=0, atol=0)


@pytest.mark.parametrize("catch_up", [False, True])
@pytest.mark.parametrize("marks", [False, True])
def test_rows_with_numbers_a_run(marks, catch_up, device):
    start, grads = torch.randn(3, 9, 4), some_grads((3, 9, 4), 4, torch.float32, device)
    options = {
        "lr": torch.tensor([0.1, 0.01, 0.0], device=device),
        "weight_decay": torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64, device=device),
        "marks": marks,
        "catch_up": catch_up,
    }
    start = start.to(device)
    assert_same(walk(start, grads, **options), walk(start, grads, fused=False, **options))


RATES = {
    "lr": {"lr": torch.tensor([0.1, 0.02, 0.0])},
    "both": {"lr": torch.tensor([0.1, 0.02, 0.0]), "weight_decay": torch.tensor([0.0, 0.5, 1.0])},
    "one lr": {"lr": torch.tensor(0.1), "weight_decay": torch.tensor([0.0, 0.5, 1.0])},
    "one each": {"lr": torch.tensor(0.1), "weight_decay": torch.tensor(0.5)},
}


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("rates", list(RATES))
@pytest.mark.parametrize("shape", [(3,), (3, 4, 5), (3, 5000), (3, 0)])
def test_ordinary_parameters_with_numbers_a_run(shape, rates, capturable, device, monkeypatch):
    calls = spied(monkeypatch)
    start = torch.randn(shape, device=device)
    grads = [torch.randn(shape, device=device) for _ in range(4)]
    rates = {name: x.to(device) for name, x in RATES[rates].items()}
    options = {"selected": False, "capturable": capturable, "maximize": capturable, **rates}
    got = walk(start, grads, **options)
    assert calls == ["step_runs"] * 4
    assert_same(got, walk(start, grads, fused=False, **options))
    wide = walk(start.double(), [grad.double() for grad in grads], **options)
    assert_same(got, wide)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_count_on_the_device_is_read_there(dtype, device):
    start, grad = torch.randn(3, 70, device=device), torch.randn(3, 70, device=device)
    results = []
    for step in (5.0, torch.tensor(5.0, dtype=dtype, device=device)):
        tensors = [start.clone(), grad, (start.sign(), start.square())]
        rates = (0.1, torch.tensor([0.5], device=device))
        rule = {"betas": (0.8, 0.9), "eps": 1e-6, "maximize": False}
        fused.step_runs(*tensors, step, rates, **rule)
        results.append(tensors[0])
    torch.testing.assert_close(*results)
    assert not torch.equal(results[0], start)


@pytest.mark.parametrize("selected", [True, False])
def test_autograd_notices_that_a_weight_changed(selected, device):
    weight = Parameter(torch.ones(3, 2, device=device))
    rates = {"lr": torch.full((3,), 0.1, device=device)}
    optimizer = RowAdamW([weight], rows=[weight] if selected else [], **rates)
    loss = weight.square().sum()
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


def test_the_same_bits_twice(device):
    start, grads = (
        torch.randn(30, 70, device=device),
        some_grads((30, 70), 3, torch.float32, device),
    )
    assert torch.equal(walk(start, grads)[0], walk(start, grads)[0])


# Where the kernels stay out


@pytest.mark.parametrize("selected", [True, False])
@pytest.mark.parametrize("way", ["fused=False", "float64", "strided", "no triton"])
def test_the_other_path_serves_what_kernels_do_not(way, selected, device, monkeypatch):
    calls = spied(monkeypatch)
    dtype = torch.float64 if way == "float64" else torch.float32
    start, grads = torch.randn(6, 6, device=device).to(dtype), some_grads((6, 6), 2, dtype, device)
    options = {"lr": torch.full((6,), 0.1, device=device), "selected": selected}
    expected = walk(start, grads, **options)
    calls.clear()
    if way == "no triton":
        monkeypatch.setattr(fused, "kernels", lambda: None)
    if way == "strided":
        start = start.T.contiguous().T
    got = walk(start, grads, fused=False if way == "fused=False" else None, **options)
    assert not calls
    assert_same(got, expected)


def test_foreach_is_honoured_for_ordinary_parameters(device, monkeypatch):
    calls = spied(monkeypatch)
    start = torch.randn(3, 4, device=device)
    rates = torch.full((3,), 0.1, device=device)
    walk(start, [start], selected=False, foreach=True, lr=rates)
    assert not calls


def test_kernels_are_there():
    assert isinstance(fused.kernels(), types.ModuleType)
