"""The fused step without a GPU: interpreted, compiled, and what its launchers hand over."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch.nn import Parameter

from elbowroom.optim import RowAdamW, fused
from tests.kernels import Recorder, run_tests


def test_interpreted():
    run_tests("tests/optim/fused_interpreted.py", TRITON_INTERPRET="1")


def test_compiled_for_gpus_that_are_not_here(tmp_path):
    run_tests("tests/optim/fused_compiled.py", TRITON_CACHE_DIR=str(tmp_path))


@pytest.fixture
def recorder(monkeypatch) -> Recorder:
    kernel = Recorder()
    module = types.ModuleType("kernels")
    module.rows_kernel = module.runs_kernel = kernel
    monkeypatch.setattr(fused, "kernels", lambda: module)
    monkeypatch.setattr(fused, "DEVICES", ("cpu",))
    return kernel


def step(weight: Parameter, **options) -> RowAdamW:
    optimizer = RowAdamW([weight], **options)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("shape", "grid", "tile"),
    [
        ((33, 2048), 33, {"ROWS": 1, "WIDTH": 2048, "TILES": 1, "WHOLE": True}),
        ((40000, 2048), 5000, {"ROWS": 1, "WIDTH": 2048, "TILES": 8, "WHOLE": True}),
        ((5, 4097), 5, {"ROWS": 1, "WIDTH": 2048, "TILES": 1, "WHOLE": False}),
        ((3, 100, 60), 10, {"ROWS": 32, "WIDTH": 64, "TILES": 1, "WHOLE": True}),
        ((129, 1), 2, {"ROWS": 128, "WIDTH": 16, "TILES": 1, "WHOLE": True}),
    ],
)
def test_tiles_cover_the_rows(shape, grid, tile, recorder):
    weight = Parameter(torch.empty(1).expand(shape).clone())
    step(weight, rows=[weight])
    ((got, _, options),) = recorder.launches
    assert got == (grid,)
    assert {name: options[name] for name in tile} == tile


@pytest.mark.parametrize("catch_up", [False, True])
def test_what_rows_hand_over(catch_up, recorder):
    weight = Parameter(torch.ones(2, 3, 4))
    optimizer = RowAdamW([weight], rows=[weight], lr=torch.tensor([0.1, 0.2]), catch_up=catch_up)
    optimizer.touch(weight, torch.tensor([[[0]], [[2]]]))
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    ((_, args, options),) = recorder.launches
    row_step, marks, row_decay, missed, kept, lrs, decays, lr, weight_decay = args[4:13]
    assert row_step.shape == (6,)
    assert marks.tolist() == [1, 0, 0, 0, 0, 1]
    assert marks.dtype == torch.uint8
    if catch_up:
        assert (row_decay.shape, missed.tolist(), kept.tolist()) == (
            (6,),
            [0.0] * 6,
            [[1.0] * 6] * 2,
        )
    else:
        assert row_decay is missed is kept is None
    torch.testing.assert_close(lrs, torch.tensor([0.1] * 3 + [0.2] * 3))
    assert (decays, lr, weight_decay) == (None, 0.0, 0.01)
    assert args[13:] == (6, 4, 1, 0)
    assert options["rest_second"] == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("shape", "grid", "size", "block"),
    [((2, 5, 3), 2, 15, 256), ((2, 4097), 6, 4097, 2048), ((2,), 2, 1, 256)],
)
def test_what_runs_hand_over(shape, grid, size, block, recorder):
    weight = Parameter(torch.ones(shape))
    step(weight, lr=torch.tensor([0.1, 0.2]), weight_decay=0.5)
    ((got, args, options),) = recorder.launches
    steps, lrs, decays, count, lr, weight_decay = args[4:10]
    assert got == (grid,)
    torch.testing.assert_close(lrs, torch.tensor([0.1, 0.2]))
    assert (steps, decays, count, lr, weight_decay) == (None, None, 1.0, 0.0, 0.5)
    assert args[10:] == (size, grid // 2, 1, 0)
    assert options["BLOCK"] == block


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_nothing_is_launched_for_nothing(shape, recorder):
    weight = Parameter(torch.empty(shape))
    step(weight, rows=[weight])
    step(weight, weight_decay=torch.tensor(0.1))
    assert not recorder.launches


def test_kernels_are_found_or_not(monkeypatch):
    pytest.importorskip("triton")
    assert fused.kernels() is not None
    monkeypatch.setitem(sys.modules, "elbowroom.optim.kernels", None)
    monkeypatch.delattr("elbowroom.optim.kernels")
    assert fused.kernels.__wrapped__() is None


def test_without_triton_there_is_nothing_to_launch(monkeypatch):
    monkeypatch.setattr(fused, "DEVICES", ("cpu",))
    monkeypatch.setattr(fused, "kernels", lambda: None)
    weight = Parameter(torch.ones(3, 2))
    assert not fused.takes(weight)
    step(weight, rows=[weight])
    assert (weight != 1).all()
    with pytest.raises(RuntimeError, match="Triton"):
        fused.step_runs(
            weight, weight, (weight, weight), 1.0, (0.1, 0.0),
            betas=(0.9, 0.9), eps=1.0, maximize=False,
        )  # fmt: skip


def test_a_cpu_keeps_its_own_way():
    assert not fused.takes(torch.ones(2))
