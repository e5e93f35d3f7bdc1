from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.margins import Annealed, ByNorms, MarginRule

few = settings(max_examples=50, deadline=None)
unchecked = pytest.mark.usefixtures("unchecked")


# ByNorms


def test_by_norms_by_hand() -> None:
    hidden, rows = torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[0.0, 2.0], [6.0, 8.0]])
    assert ByNorms(0.5).of(hidden, rows).tolist() == [5.0, 5.0]
    assert ByNorms(0.5, "hidden").of(hidden, rows).tolist() == [2.5, 0.5]
    assert ByNorms(0.5, "target").of(hidden, rows).tolist() == [1.0, 5.0]
    assert ByNorms(0).of(hidden, rows).tolist() == [0.0, 0.0]


def test_by_norms_one_alpha_a_run() -> None:
    hidden, rows = torch.randn(3, 5, 4), torch.randn(3, 5, 4)
    alpha = torch.tensor([0.1, 0.2, 0.0])
    got = ByNorms(alpha).of(hidden, rows)
    for r in range(3):
        torch.testing.assert_close(got[r], ByNorms(float(alpha[r])).of(hidden[r], rows[r]))
    assert ByNorms(torch.tensor(0.5)).of(hidden, rows).shape == (3, 5)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_by_norms_counts_in_float32_or_better(dtype: torch.dtype, result: torch.dtype) -> None:
    hidden = torch.full((2, 300), 250.0, dtype=dtype)  # its square overflows float16
    got = ByNorms(torch.tensor(0.01, dtype=torch.float64)).of(hidden, hidden)
    assert got.dtype == result
    torch.testing.assert_close(got, torch.full((2,), 0.01 * 300 * 250.0**2, dtype=result))


def test_by_norms_is_detached_from_everything() -> None:
    hidden, rows = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    alpha = torch.tensor(0.5, requires_grad=True)
    assert not ByNorms(alpha).of(hidden, rows).requires_grad


def test_by_norms_odd_shapes() -> None:
    assert ByNorms(1.0).of(torch.ones(4), torch.ones(4)).shape == ()
    assert ByNorms(1.0).of(torch.ones(0, 4), torch.ones(0, 4)).shape == (0,)
    assert ByNorms(1.0).of(torch.ones(2, 3, 5, 4), torch.ones(2, 3, 5, 4)).shape == (2, 3, 5)


def test_by_norms_needs_no_progress() -> None:
    rule = ByNorms(0.5)
    assert rule.at(0.3) is rule
    assert isinstance(rule, MarginRule)


@pytest.mark.parametrize("alpha", [-0.1, math.nan, math.inf])
def test_by_norms_refuses_alpha(alpha: float) -> None:
    with pytest.raises(ArgumentValueError, match="alpha: expected"):
        ByNorms(alpha)
    with pytest.raises(ArgumentValueError, match="alpha: expected finite"):
        ByNorms(torch.tensor([0.5, alpha]))


@unchecked
def test_by_norms_refuses_what_it_cannot_use() -> None:
    with pytest.raises(ArgumentTypeError, match="alpha: expected a number"):
        ByNorms("0.5")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="alpha: expected a floating"):
        ByNorms(torch.tensor(1))
    with pytest.raises(ArgumentValueError, match=r"alpha: expected shape \[\] or \[R\]"):
        ByNorms(torch.ones(2, 2))
    with pytest.raises(ArgumentValueError, match="norms: expected 'both'"):
        ByNorms(0.5, "all")  # type: ignore[arg-type]
    rule = ByNorms(torch.ones(3))
    with pytest.raises(ArgumentValueError, match=r"hidden: expected .* R = 3"):
        rule.of(torch.ones(2, 5, 4), torch.ones(2, 5, 4))
    with pytest.raises(ArgumentValueError, match=r"hidden: expected .* R = 3"):
        rule.of(torch.ones(4), torch.ones(4))
    with pytest.raises(ArgumentValueError, match="target_rows: expected shape"):
        rule.of(torch.ones(3, 5, 4), torch.ones(3, 4, 4))
    with pytest.raises(ArgumentValueError, match="target_rows: expected a tensor on cpu"):
        rule.of(torch.ones(3, 4), torch.ones(3, 4, device="meta"))
    with pytest.raises(ArgumentTypeError, match="hidden: expected a floating"):
        rule.of(torch.ones(3, 4).long(), torch.ones(3, 4))
    with pytest.raises(ArgumentTypeError, match="target_rows: expected a tensor"):
        rule.of(torch.ones(3, 4), [1.0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match="hidden: expected"):
        rule.of(torch.tensor(1.0), torch.tensor(1.0))


# Annealed


def test_annealed_by_hand() -> None:
    rule = Annealed(2, 10, hold=0.2, release=0.6)
    assert [rule.at(p) for p in (0, 0.1, 0.2, 0.6, 0.8, 1)] == [2.0, 2.0, 2.0, 10.0, 10.0, 10.0]
    assert rule.at(0.3) == pytest.approx(4.0)
    assert rule.at(0.5) == pytest.approx(8.0)
    assert Annealed(1, 100, "geometric").at(0.25) == pytest.approx(10**0.5)


def test_annealed_may_shrink_and_start_at_zero() -> None:
    assert Annealed(4.0, 0.5).at(0.5) == pytest.approx(2.25)
    assert Annealed(0, 0).at(0.5) == 0.0


def test_annealed_as_a_step() -> None:
    rule = Annealed(1.0, 5.0, hold=0.5, release=0.5)
    assert [rule.at(p) for p in (0.0, 0.499, 0.5, 1.0)] == [1.0, 1.0, 5.0, 5.0]
    steps = [rule.at(torch.tensor(p)).item() for p in (0.0, 0.499, 0.5, 1.0)]  # type: ignore[union-attr]
    assert steps == [1.0, 1.0, 5.0, 5.0]
    assert Annealed(1.0, 5.0, "geometric", hold=0, release=0).at(torch.tensor(0.0)) == 5.0


margins = st.floats(1e-3, 1e3)
shapes = st.sampled_from(["linear", "geometric"])
unit = st.floats(0, 1)


@few
@given(margins, margins, shapes, unit, unit, unit)
def test_annealed_stays_between_and_agrees_with_its_tensors(
    start: float, end: float, shape: str, a: float, b: float, progress: float
) -> None:
    hold, release = sorted((a, b))
    rule = Annealed(start, end, shape, hold=hold, release=release)  # type: ignore[arg-type]
    value = rule.at(progress)
    assert isinstance(value, float)
    assert min(start, end) * (1 - 1e-12) <= value <= max(start, end) * (1 + 1e-12)
    tensor = rule.at(torch.tensor(progress, dtype=torch.float64))
    assert isinstance(tensor, torch.Tensor)
    assert tensor.dtype == torch.float64
    assert tensor.item() == pytest.approx(value, rel=1e-9)


@few
@given(margins, margins, shapes, unit, unit)
def test_annealed_is_exact_at_its_ends(
    start: float, end: float, shape: str, a: float, b: float
) -> None:
    hold, release = sorted((a, b))
    rule = Annealed(start, end, shape, hold=hold, release=release)  # type: ignore[arg-type]
    assert rule.at(release) == rule.at(1.0) == end
    assert hold == release or rule.at(hold) == rule.at(0.0) == start
    exact = [torch.tensor(x) for x in (start, end)]  # float32
    assert torch.equal(rule.at(torch.tensor(release)), exact[1])  # type: ignore[arg-type]
    if torch.tensor(hold) < torch.tensor(release):
        assert torch.equal(rule.at(torch.tensor(hold)), exact[0])  # type: ignore[arg-type]


def test_annealed_one_value_a_run() -> None:
    start = torch.tensor([1.0, 2.0, 0.5])
    rule = Annealed(start, 8.0)
    assert torch.equal(rule.at(0.0), start)  # type: ignore[arg-type]
    assert torch.equal(rule.at(1.0), torch.full((3,), 8.0))  # type: ignore[arg-type]
    got = rule.at(torch.tensor(0.25))
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got, start + 0.25 * (8 - start))
    geometric = Annealed(start, start.double() * 4, "geometric").at(0.5)
    assert isinstance(geometric, torch.Tensor)
    torch.testing.assert_close(geometric, start.double() * 2)


def test_annealed_alphas() -> None:
    rule = Annealed(ByNorms(0.5, "hidden"), ByNorms(2.5, "hidden"))
    assert rule.at(0.5) == ByNorms(1.5, "hidden")
    moved = rule.at(torch.tensor(0.5))
    assert isinstance(moved, ByNorms)
    assert isinstance(moved.alpha, torch.Tensor)
    assert moved.norms == "hidden"
    assert moved.of(torch.full((2, 1), 2.0), torch.ones(2, 1)).tolist() == [3.0, 3.0]
    runs = Annealed(ByNorms(torch.tensor([0.0, 1.0])), ByNorms(2.0)).at(0.5)
    assert isinstance(runs, ByNorms)
    assert runs.of(torch.ones(2, 3, 1), torch.ones(2, 3, 1)).tolist() == [[1.0] * 3, [1.5] * 3]


@pytest.mark.parametrize("shape", ["linear", "geometric"])
def test_annealed_is_recorded_as_tensor_operations(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded once, as in a CUDA graph, the operations serve all of training.

    The check of the range looks at values on a CPU; on a GPU it is asynchronous.
    """
    monkeypatch.setattr(checks, "all_true", lambda *_: None)
    rule = Annealed(1.0, 9.0, shape, hold=0.25, release=0.75)  # type: ignore[arg-type]
    record = make_fx(lambda progress: rule.at(progress))(torch.tensor(0.1))
    for p in (0.0, 0.25, 0.3, 0.5, 0.7, 0.75, 0.9, 1.0):
        assert record(torch.tensor(p)).item() == pytest.approx(rule.at(p), rel=1e-6)


@pytest.mark.slow
def test_annealed_compiles_to_one_graph() -> None:
    """In a fresh process, where no checker wraps the functions."""
    code = """
import torch, elbowroom.margins as margins
rule = margins.Annealed(1.0, 9.0, hold=0.25, release=0.75)
graph = torch.compile(rule.at, backend="eager", fullgraph=True)
progress = torch.tensor(0.0)
for p, expected in ((0.0, 1.0), (0.5, 5.0), (0.9, 9.0)):
    progress.fill_(p)
    assert graph(progress).item() == expected
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_annealed_needs_no_values_of_its_tensor() -> None:
    """On a meta device there are no values to look at, so .item() would fail."""
    for shape in ("linear", "geometric"):
        got = Annealed(1.0, 9.0, shape).at(torch.empty((), device="meta"))  # type: ignore[arg-type]
        assert isinstance(got, torch.Tensor)
        assert got.shape == ()


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_annealed_refuses_margins(value: float) -> None:
    with pytest.raises(ArgumentValueError, match="start: expected"):
        Annealed(value, 1.0)
    with pytest.raises(ArgumentValueError, match="end: expected"):
        Annealed(1.0, torch.tensor(value))


@pytest.mark.parametrize("zero", [0.0, torch.tensor([1.0, 0.0])])
def test_geometric_needs_numbers_above_zero(zero: float | torch.Tensor) -> None:
    with pytest.raises(ArgumentValueError, match=r"start: .*geometric"):
        Annealed(zero, 1.0, "geometric")
    with pytest.raises(ArgumentValueError, match=r"end: .*geometric"):
        Annealed(1.0, zero, "geometric")
    with pytest.raises(ArgumentValueError, match=r"start: .*geometric"):
        Annealed(ByNorms(zero), ByNorms(1.0), "geometric")


@unchecked
def test_annealed_refuses_what_does_not_fit() -> None:
    with pytest.raises(ArgumentTypeError, match="end: expected a ByNorms, like start"):
        Annealed(ByNorms(1.0), 1.0)
    with pytest.raises(ArgumentTypeError, match="end: expected a number or a tensor, like start"):
        Annealed(1.0, ByNorms(1.0))
    with pytest.raises(ArgumentValueError, match="end: expected norms='both', like start"):
        Annealed(ByNorms(1.0), ByNorms(1.0, "target"))
    with pytest.raises(ArgumentTypeError, match="start: expected a number"):
        Annealed(Annealed(1, 2), 1.0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match="shape: expected 'linear' or 'geometric'"):
        Annealed(1, 2, "cosine")  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match=r"release: expected .* at least 0\.5"):
        Annealed(1, 2, hold=0.5, release=0.4)
    with pytest.raises(ArgumentValueError, match="hold: expected"):
        Annealed(1, 2, hold=-0.1)
    with pytest.raises(ArgumentValueError, match="release: expected"):
        Annealed(1, 2, release=1.1)
    with pytest.raises(ArgumentValueError, match="end: expected shape"):
        Annealed(torch.ones(2), torch.ones(3))
    with pytest.raises(ArgumentValueError, match="end: expected a tensor on cpu"):
        Annealed(torch.ones(2), torch.ones(2, device="meta"))


@unchecked
def test_annealed_refuses_progress() -> None:
    rule = Annealed(1, 2)
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(ArgumentValueError, match="progress: expected"):
            rule.at(p)
        with pytest.raises(ArgumentValueError, match="progress: expected"):
            rule.at(torch.tensor(p))
    with pytest.raises(ArgumentValueError, match="progress: expected shape"):
        rule.at(torch.zeros(2))
    with pytest.raises(ArgumentTypeError, match="progress: expected a floating"):
        rule.at(torch.tensor(1))
    with pytest.raises(ArgumentTypeError, match="progress: expected a number"):
        rule.at(None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match="progress: expected a tensor on"):
        Annealed(torch.ones(2), 3.0).at(torch.empty((), device="meta"))
