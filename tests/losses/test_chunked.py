"""The chunked backend against the reference: at most the error of the same dtype, computed eagerly.

``ours`` is the chunked backend in a dtype, ``eager`` the reference in it, ``exact`` the reference
in float64 on the same inputs, which are exact in every dtype. Four roundings are allowed on top of
eager's error, which by chance is often 0.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elbowroom.losses import chunked, products
from tests.losses.cases import Case, all_cases, broken

DIFFERENTIABLE = ("loss", "d_hidden", "d_weight", "d_bias")


def error(x: Tensor, exact: Tensor) -> float:
    """Return the error relative to the norm of the exact value (or to 1e-3 where that is 0)."""
    return float((x.double() - exact.double()).norm() / exact.double().norm().clamp(min=1e-3))


def compare(case: Case, dtype: torch.dtype) -> tuple[bool, list[str]]:
    """Return whether an entry crossed its threshold, and a line for each figure not good enough."""
    exact = case.call(torch.float64, "reference")
    ours, eager = case.call(dtype, "chunked"), case.call(dtype, "reference")
    for x in (ours, eager):
        if not all(torch.equal(x[name], exact[name]) for name in ("kept", "touched")):
            return True, []  # rounding moved it: such cases are counted apart
    bad = []
    for name in (name for name in DIFFERENTIABLE if name in exact):
        e, bound = error(ours[name], exact[name]), error(eager[name], exact[name])
        if e > bound + 4 * torch.finfo(dtype).eps:
            bad.append(f"seed {case.seed}, {name}: {e:.2e} against {bound:.2e}")
    bad += [
        f"seed {case.seed}, {name} differs"
        for name in ("argmax", "rank")
        if not torch.equal(ours[name].double(), eager[name].double())
    ]
    return False, bad


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks, tiles and lists so small that every case has several of each."""
    monkeypatch.setattr(chunked, "BLOCK", 3000)
    monkeypatch.setattr(chunked, "STRIP", 1000)
    monkeypatch.setattr(chunked, "FEW", 2)
    monkeypatch.setattr(products, "TILE", 500)
    monkeypatch.setattr(products, "LIST_LENGTH", 64)
    monkeypatch.setattr(products, "LIST_ROWS", 37)


@pytest.mark.usefixtures("small_blocks")
def test_float64_equals_the_reference() -> None:
    for case in all_cases(280):
        exact, ours = case.call(torch.float64, "reference"), case.call(torch.float64, "chunked")
        for name, x in exact.items():
            if x.is_floating_point():
                assert error(ours[name], x) < 1e-12, (case, name)
            else:
                assert torch.equal(ours[name], x), (case, name)


@pytest.mark.usefixtures("small_blocks")
def test_nan_and_infinity_show_as_in_the_reference() -> None:
    """In losses and statistics everywhere; where a token's loss is a number, its gradient is too.

    Which other entries of a gradient are NaN besides is left open.
    """
    shown = 0
    for case in map(broken, all_cases(210, first=2000)):
        exact, ours = case.call(torch.float64, "reference"), case.call(torch.float64, "chunked")
        for name in ("loss", "log_probability", "rank"):
            x, y = ours[name], exact[name]
            torch.testing.assert_close(x, y, equal_nan=True, rtol=1e-11, atol=1e-11)
        for name in ("argmax", "kept", "touched"):
            assert torch.equal(ours[name], exact[name]), (case, name)
        finite = exact["loss"].isfinite() & (case.target != -100)
        usual = finite[..., None] & exact["d_hidden"].isfinite()
        x, y = (d["d_hidden"].where(usual, 0.0) for d in (ours, exact))
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-11)
        shown += not bool(exact["loss"].isfinite().all())
    assert 60 < shown < 200


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_error_is_at_most_that_of_the_same_dtype_computed_eagerly(dtype: torch.dtype) -> None:
    flipped, bad = 0, []
    for case in all_cases(140, first=1000):
        crossed, lines = compare(case, dtype)
        flipped += crossed
        bad += lines
    assert not bad, "\n".join(bad)
    assert flipped < 20
