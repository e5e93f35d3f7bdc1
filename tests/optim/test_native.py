"""The loop in C, beside an optimizer a row and beside PyTorch's operations."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from elbowroom.optim import RowAdamW, native
from tests.optim.oracle import OneOptimizerPerRow, some_rows

OPTIONS = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.3}
CLOSE = {"rtol": 2e-5, "atol": 2e-6}  # float32, a few steps
needs_compiler = pytest.mark.skipif(native.library() is None, reason="no C compiler")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LEAST", 1)
    monkeypatch.setattr(native, "SHARE", 20)  # several threads


@pytest.fixture
def fresh() -> Iterator[None]:
    """Let the loop be compiled, or not, during the test, and again after it."""
    native.library.cache_clear()
    yield
    native.library.cache_clear()


def steps(weight: Parameter, grads: list[Tensor], marks: bool = False, **options) -> RowAdamW:
    optimizer = RowAdamW([weight], rows=[weight], **{**OPTIONS, **options})
    for grad in grads:
        weight.grad = grad.clone()
        if marks:
            optimizer.touch(weight, (grad != 0).any(-1) | (torch.rand(grad.shape[:-1]) < 0.1))
        optimizer.step()
    return optimizer


def compared(grads: list[Tensor], monkeypatch: pytest.MonkeyPatch, **options) -> None:
    """Check a weight and its whole state against PyTorch's operations."""
    start, found = torch.randn_like(grads[0]), []
    for code in (native.library(), None):
        with monkeypatch.context() as patched:
            patched.setattr(native, "library", lambda code=code: code)
            weight = Parameter(start.clone())
            found.append({**steps(weight, grads, **options).state[weight], "weight": weight.data})
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], **CLOSE, equal_nan=True, msg=name)


@needs_compiler
@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("width", [1, 7, 16, 33, 130])
@pytest.mark.parametrize("share", [0.1, 0.7, 1.0])
def test_equals_one_optimizer_per_row(share: float, width: int, marks: bool) -> None:
    start = torch.randn(23, width)
    grads = [some_rows((23, width), share, torch.float32) for _ in range(6)]
    weight = Parameter(start.clone())
    optimizer = steps(weight, grads, marks)
    oracle = OneOptimizerPerRow(start.double(), **OPTIONS)
    for grad in grads:
        oracle.step(grad.double())
    torch.testing.assert_close(weight.data.double(), oracle.weight(), **CLOSE)
    assert torch.equal(optimizer.state[weight]["row_step"], oracle.counts())


@needs_compiler
@pytest.mark.parametrize("catch_up", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("marks", [False, True])
def test_equals_operations(
    marks: bool, maximize: bool, catch_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    grads = [some_rows((3, 17, 9), share, torch.float32) for share in (0.3, 0.6, 1.0, 0.1)]
    compared(grads, monkeypatch, marks=marks, maximize=maximize, catch_up=catch_up)


@needs_compiler
@pytest.mark.parametrize(
    "options",
    [{"betas": (0.0, 0.9), "catch_up": True}, {"lr": 0.0}, {"weight_decay": 0.0}, {"eps": 0.0}],
)
def test_numbers_at_their_ends(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    grads = [some_rows((12, 5), 0.5, torch.float32) for _ in range(4)]
    compared(grads, monkeypatch, **options)


@needs_compiler
def test_untouched_rows_keep_their_bits_and_nan_counts_as_touched() -> None:
    weight = Parameter(torch.tensor([[1.0, float("nan")], [-0.0, 3.0], [5.0, 5.0], [7.0, 7.0]]))
    before = weight.data.clone()
    grad = torch.tensor([[0.0, -0.0], [0.0, 0.0], [float("nan"), 0.0], [0.0, 1e-45]])
    optimizer = steps(weight, [grad])
    same = weight.data.view(torch.int32) == before.view(torch.int32)
    assert same.all(-1).tolist() == [True, True, False, False]
    assert weight[2].isnan().tolist() == [True, False]
    assert optimizer.state[weight]["row_step"].tolist() == [0, 0, 1, 1]


@needs_compiler
def test_what_the_loop_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = native.step_rows
    monkeypatch.setattr(native, "step_rows", lambda *a: (calls.append(a), real(*a)))
    grad = torch.randn(6, 4)
    steps(Parameter(torch.randn(6, 4)), [grad])
    assert len(calls) == 1
    steps(Parameter(torch.randn(6, 4)), [grad], fused=False)
    steps(Parameter(torch.randn(6, 4)), [grad], capturable=True)
    steps(Parameter(torch.randn(6, 4).double()), [grad.double()])
    steps(Parameter(torch.randn(6, 4).bfloat16()), [grad.bfloat16()])
    steps(Parameter(torch.randn(4, 6).T), [grad])
    steps(Parameter(torch.randn(2, 6, 4)), [torch.randn(2, 6, 4)], lr=torch.tensor([0.1, 0.2]))
    monkeypatch.setattr(native, "LEAST", 25)
    steps(Parameter(torch.randn(6, 4)), [grad])
    assert len(calls) == 1


@pytest.mark.parametrize("how", ["no compiler", "one that fails", "one that cannot run"])
@pytest.mark.usefixtures("fresh")
def test_without_a_compiler_operations_do_it(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*words: object, **options: object) -> None:
        error = subprocess.CalledProcessError(1, "cc") if how == "one that fails" else OSError()
        raise error

    if how == "no compiler":
        monkeypatch.setattr(native.shutil, "which", lambda name: None)
    else:
        monkeypatch.setattr(native.shutil, "which", lambda name: name)
        monkeypatch.setattr(native.subprocess, "run", refuses)
    assert native.library() is None
    weight = Parameter(torch.zeros(3, 2))
    steps(weight, [torch.ones(3, 2)], weight_decay=0.0)
    torch.testing.assert_close(weight.data, torch.full((3, 2), -0.03))


@pytest.mark.usefixtures("fresh")
def test_the_compiler_that_is_asked_for_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setenv("CC", "mine -m64")
    monkeypatch.setattr(native.shutil, "which", lambda name: asked.append(name))
    assert native.library() is None
    assert asked == ["mine", "cc", "gcc", "clang"]
