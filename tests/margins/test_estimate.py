from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.margins import FinalNorm, effective, estimate

unchecked = pytest.mark.usefixtures("unchecked")


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


def naive(w: np.ndarray, h: np.ndarray, quantile: float) -> tuple[np.ndarray, np.ndarray]:
    """Appendix B word for word: a loop over tokens, V x V at once, numpy's percentiles."""
    norms = np.linalg.norm(h, axis=1) * np.linalg.norm(w, axis=1)
    margins, alphas = [], []
    for i in range(len(w)):
        gaps = np.array([h[t] @ (w[t] - w[i]) for t in range(len(w))])
        margins.append(np.percentile(gaps, 100 * quantile))
        alphas.append(np.percentile(gaps / norms, 100 * quantile))
    return np.array(margins), np.array(alphas)


@pytest.mark.parametrize("quantile", [0.0, 0.05, 0.33, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("vocab", [2, 3, 41])
def test_against_the_definition(quantile: float, vocab: int) -> None:
    w = torch.randn(vocab, 7, dtype=torch.float64)
    norm = nn.LayerNorm(7, eps=1e-3, dtype=torch.float64)
    nn.init.normal_(norm.weight, 1.0, 0.3)
    nn.init.normal_(norm.bias, 0.0, 0.3)
    gamma, bias = norm.weight.detach().numpy(), norm.bias.detach().numpy()
    margins, alphas = naive(w.numpy(), layer_norm(gamma * w.numpy(), gamma, bias, 1e-3), quantile)
    got = effective(w, norm, quantile)
    np.testing.assert_allclose(got.margins.numpy(), margins, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(got.alphas.numpy(), alphas, rtol=1e-10, atol=1e-12)
    assert got.margin == pytest.approx(margins.mean())
    assert got.margin_std == pytest.approx(margins.std())
    assert got.alpha == pytest.approx(alphas.mean())
    assert got.alpha_std == pytest.approx(alphas.std())


def test_by_hand() -> None:
    """Rows (1, 0) and (0, 2) under RMSNorm without eps: h = sqrt(2) (1, 0) and sqrt(2) (0, 1)."""
    w = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    got = effective(w, FinalNorm("rms", eps=0.0), 1.0)
    # i = 0: gaps 0 (t = 0) and 2 sqrt(2) (t = 1); i = 1: sqrt(2) and 0
    torch.testing.assert_close(got.margins, torch.tensor([8**0.5, 2**0.5]))
    torch.testing.assert_close(got.alphas, torch.tensor([1.0, 1.0]))
    assert effective(w, FinalNorm("rms", eps=0.0), 0.5).margins[0] == pytest.approx(2**0.5)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    w, norm = torch.randn(50, 6, dtype=torch.float64), FinalNorm("rms")
    whole = effective(w, norm)
    monkeypatch.setattr(estimate, "BLOCK_ELEMENTS", 50 * 7)
    calls: list[tuple[int, int]] = []
    parts = effective(w, norm, on_block=lambda done, total: calls.append((done, total)))
    torch.testing.assert_close(parts.margins, whole.margins)
    assert calls == [(n, 50) for n in (7, 14, 21, 28, 35, 42, 49, 50)]


def test_a_sample_is_part_of_the_whole() -> None:
    w, norm = torch.randn(60, 6, dtype=torch.float64), FinalNorm("layer")
    whole, part = effective(w, norm), effective(w, norm, sample=9, seed=3)
    assert len(part.tokens.unique()) == 9
    torch.testing.assert_close(part.margins, whole.margins[part.tokens])
    torch.testing.assert_close(part.alphas, whole.alphas[part.tokens])
    assert torch.equal(part.tokens, effective(w, norm, sample=9, seed=3).tokens)
    assert not torch.equal(part.tokens, effective(w, norm, sample=9, seed=4).tokens)
    assert torch.equal(effective(w, norm, sample=60).tokens, torch.arange(60))


def test_contexts_without_a_direction_leave_alpha_alone() -> None:
    w = torch.randn(20, 6, dtype=torch.float64)
    padded = torch.cat([w, torch.zeros(3, 6, dtype=torch.float64)])
    got = effective(padded, FinalNorm("rms"), 0.25)
    h = FinalNorm("rms")(w)
    own = (h * w).sum(-1)
    scale = h.norm(dim=-1) * w.norm(dim=-1)
    expected = np.quantile(((own - w[4] @ h.T) / scale).numpy(), 0.25)
    assert got.alphas[4].item() == pytest.approx(expected)
    assert torch.isfinite(got.alphas).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_weights_count_in_float32(dtype: torch.dtype) -> None:
    w = torch.randn(30, 16).to(dtype)
    norm = nn.RMSNorm(16, eps=1e-6).to(dtype)
    got = effective(w, norm)
    assert got.margins.dtype == torch.float32
    exact = effective(w.double(), FinalNorm("rms", eps=1e-6))
    torch.testing.assert_close(got.margins.double(), exact.margins, rtol=1e-4, atol=1e-4)


def test_a_parameter_is_fine_and_gets_no_gradient() -> None:
    got = effective(nn.Parameter(torch.randn(10, 4)), nn.LayerNorm(4))
    assert not got.margins.requires_grad


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "margin", "alpha"),
    [(768, 14.04, 0.940), (1024, 18.93, 0.948), (1280, 23.83, 0.954), (1600, 29.99, 0.958)],
)
def test_the_papers_table(width: int, margin: float, alpha: float) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.empty(50257, width).normal_(0, 0.02, generator=generator)
    got = effective(weight, nn.LayerNorm(width), sample=200)
    assert got.margin == pytest.approx(margin, abs=0.02)
    assert got.alpha == pytest.approx(alpha, abs=0.001)


@unchecked
def test_bad_input() -> None:
    norm, w = FinalNorm("rms"), torch.randn(5, 4)
    with pytest.raises(ArgumentValueError, match=r"weight: expected \[V, D\]"):
        effective(torch.randn(1, 4), norm)
    with pytest.raises(ArgumentValueError, match=r"weight: expected \[V, D\]"):
        effective(torch.randn(5), norm)
    with pytest.raises(ArgumentTypeError, match="weight: expected a floating"):
        effective(torch.ones(5, 4).long(), norm)
    with pytest.raises(ArgumentValueError, match="weight: expected finite"):
        effective(torch.full((5, 4), torch.nan), norm)
    with pytest.raises(ArgumentValueError, match="weight: expected rows that are not all zero"):
        effective(torch.zeros(5, 4), norm)
    with pytest.raises(ArgumentValueError, match="quantile: expected"):
        effective(w, norm, 5)
    with pytest.raises(ArgumentValueError, match="sample: expected at most V = 5"):
        effective(w, norm, sample=6)
    with pytest.raises(ArgumentValueError, match="sample: expected an integer, at least 1"):
        effective(w, norm, sample=0)
    with pytest.raises(ArgumentTypeError, match="seed: expected an integer"):
        effective(w, norm, sample=2, seed=0.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match=r"norm\.weight: expected shape \(4,\)"):
        effective(w, nn.LayerNorm(3))
    with pytest.raises(ArgumentValueError, match=r"norm\.bias: expected shape \(4,\)"):
        effective(w, FinalNorm("layer", bias=torch.zeros(3)))
    with pytest.raises(ArgumentTypeError, match="norm: expected a module or a FinalNorm"):
        effective(w, None)  # type: ignore[arg-type]


def test_the_evidence_is_the_papers_table_and_so_is_the_page() -> None:
    root = Path(__file__).parents[2]
    record = json.loads((root / "evidence" / "margins_gpt2.json").read_text(encoding="utf-8"))
    page = (root / "docs" / "margins.md").read_text(encoding="utf-8")
    assert [model["tokens"] for model in record["models"]] == [50257] * 4
    for model in record["models"]:
        assert model["margin"] == pytest.approx(model["paper"]["margin"][0], abs=0.02)
        assert model["alpha"] == pytest.approx(model["paper"]["alpha"][0], abs=0.001)
        assert f"{model['margin']:.2f} ({model['margin_std']:.2f})" in page
        assert f"{model['alpha']:.4f} ({model['alpha_std']:.1e})" in page
