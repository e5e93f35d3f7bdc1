"""The fused step on a GPU: the cases of the interpreter, graphs, and more than 2^31 elements."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from elbowroom.optim import RowAdamW
from tests.optim.fused_cases import *  # noqa: F403
from tests.optim.fused_cases import OPTIONS, assert_same, some_grads, spied, walk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def device() -> str:
    pytest.importorskip("triton")
    return "cuda"


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("catch_up", [False, True])
def test_a_step_waits_for_nothing(marks, catch_up, device):
    weight = Parameter(torch.randn(30, 12, device=device))
    optimizer = RowAdamW([weight], rows=[weight], catch_up=catch_up)
    weight.grad = torch.randn_like(weight)
    mask = torch.ones(30, dtype=torch.bool, device=device)
    optimizer.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            if marks:
                optimizer.touch(weight, mask)
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (optimizer.state[weight]["row_step"] == 3).all()


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("catch_up", [False, True])
def test_a_captured_step_of_rows(marks, catch_up, device, monkeypatch):
    calls = spied(monkeypatch)
    start = torch.randn(50, 40, device=device)
    grads = some_grads(start.shape, 6, torch.float32, device)
    options = {"capturable": True, "catch_up": catch_up}
    weight = Parameter(start.clone())
    optimizer = RowAdamW([weight], rows=[weight], **{**OPTIONS, **options})
    grad, mask = torch.zeros_like(start), torch.zeros(50, dtype=torch.bool, device=device)
    weight.grad = grad

    def step() -> None:
        if marks:
            optimizer.touch(weight, mask)
        optimizer.step()

    replay = captured(step, grad, mask, grads[0])
    for value in grads[2:]:
        grad.copy_(value)
        mask.copy_((value != 0).any(-1))
        replay()
    assert len(calls) == 3  # two to warm up, one to capture
    turns = [grads[0], grads[0], *grads[2:]]
    expected = walk(start, turns, marks=marks, fused=False, **options)
    assert_same((weight.data, optimizer.state[weight]), expected)


def captured(step, grad, mask, first):
    """Warm up on a side stream with two steps, capture the next, and return its replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            grad.copy_(first)
            mask.copy_((first != 0).any(-1))
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def test_a_captured_step_of_runs_follows_its_rates(device, monkeypatch):
    calls = spied(monkeypatch)
    start = torch.randn(3, 40, device=device)
    grads = [torch.randn_like(start) for _ in range(5)]
    rates = torch.tensor([0.1, 0.02, 0.0], device=device)
    results = []
    for fused in (None, False):
        weight, lr = Parameter(start.clone()), rates.clone()
        optimizer = RowAdamW([weight], lr=lr, capturable=True, fused=fused)
        weight.grad = grad = grads[0].clone()
        mask = torch.zeros(3, dtype=torch.bool, device=device)
        replay = captured(optimizer.step, grad, mask, grads[0])
        for value in grads:
            grad.copy_(value)
            lr.mul_(0.5)
            replay()
        results.append((weight.data, optimizer.state[weight]))
    assert calls == ["step_runs"] * 3
    assert_same(*results)
    assert torch.equal(results[0][0][2], start[2])


@pytest.mark.parametrize("kind", ["rows", "runs"])
def test_more_than_two_to_the_31_elements(kind, device):
    shape = (2**20 + 5, 2048)
    need = 5 * 2 * shape[0] * shape[1]
    if torch.cuda.mem_get_info()[0] < need:
        pytest.skip(f"needs {need / 2**30:.0f} GiB of device memory")
    weight = Parameter(torch.ones(shape, dtype=torch.bfloat16, device=device))
    weight.grad = torch.zeros_like(weight)
    weight.grad[[0, 7, -3, -1]] = 1.0
    if kind == "rows":
        optimizer = RowAdamW([weight], lr=0.5, weight_decay=0.0, rows=[weight])
    else:
        none = torch.tensor(0.0, device=device)
        optimizer = RowAdamW([weight], lr=0.5, weight_decay=none)
    optimizer.step()
    moved = (weight.data[:, 0] != 1).nonzero().flatten().tolist()
    assert moved == [0, 7, shape[0] - 3, shape[0] - 1]
    assert (weight.data[moved] == 0.5).all()
