"""Isotropy, IsoScore, principal components and under-trained rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from elbowroom import diagnose
from elbowroom.errors import ArgumentTypeError, ArgumentValueError

V, D = 40, 7


def matrix(*runs, dtype=torch.float64):
    return torch.randn(*runs, V, D, dtype=dtype) @ torch.randn(D, D, dtype=dtype) + 0.5


def close(a, b, **options):
    torch.testing.assert_close(a, b, **options)


# --- isotropy


def test_isotropy_by_hand():
    w = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)  # eigenvectors: the axes
    e = math.e
    z = [e**2 + 1, e**-2 + 1, 1 + e, 1 + 1 / e]
    close(diagnose.isotropy(w), torch.tensor(min(z) / max(z), dtype=torch.float64))
    either = [{a, b} for a in z[:2] for b in z[2:]]  # whichever sign the solver returned
    found = diagnose.isotropy(w, "paper").item()
    assert any(found == pytest.approx(min(pair) / max(pair)) for pair in either)


def test_isotropy_in_numpy():
    w = matrix()
    _, a = np.linalg.eigh((w.T @ w).numpy())
    z = np.exp(w.numpy() @ np.concatenate((a, -a), 1)).sum(0)
    assert diagnose.isotropy(w).item() == pytest.approx(z.min() / z.max())
    signs = torch.linalg.eigh(w.T @ w)[1]
    z = (w @ signs).exp().sum(0)
    close(diagnose.isotropy(w, "paper"), z.min() / z.max())


def test_isotropy_of_rows_and_runs():
    w = matrix(3)
    mask = torch.arange(V) % 2 == 0
    for convention in ("paper", "symmetric"):
        found = diagnose.isotropy(w, convention, rows=mask)
        alone = [diagnose.isotropy(w[r, ::2], convention) for r in range(3)]
        close(found, torch.stack(alone))
        close(found, diagnose.isotropy(w, convention, rows=torch.arange(0, V, 2)))


def test_isotropy_does_not_overflow():
    w = 400 * torch.eye(3)
    assert diagnose.isotropy(w).item() == 0
    assert diagnose.isotropy(w, "paper") <= 1


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 99))
def test_isotropy_properties(rows, width, seed):
    w = torch.randn(rows, width, dtype=torch.float64, generator=torch.manual_seed(seed))
    symmetric, paper = diagnose.isotropy(w), diagnose.isotropy(w, "paper")
    assert 0 <= symmetric <= paper + 1e-12 <= 1 + 1e-9
    turn = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64))[0]
    close(diagnose.isotropy(w @ turn), symmetric)
    close(diagnose.isotropy(-w), symmetric)


def test_half_precision_is_computed_in_float32():
    w = matrix().bfloat16()
    found = diagnose.isotropy(w)
    assert found.dtype == torch.float32
    close(found, diagnose.isotropy(w.double()).float(), rtol=1e-4, atol=1e-5)
    assert diagnose.isoscore(w).dtype == torch.float32


# --- IsoScore


def published_isoscore(points):
    """The algorithm of Rudman et al. (2022), step by step."""
    n = points.shape[1]
    reoriented = PCA(n_components=n).fit_transform(points)
    variances = np.diag(np.cov(reoriented.T))
    normalised = np.sqrt(n) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normalised - 1) / np.sqrt(2 * (n - np.sqrt(n)))
    share = (n - defect**2 * (n - np.sqrt(n))) ** 2 / n**2
    return (n * share - 1) / (n - 1)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e30])
def test_isoscore_against_the_published_steps(scale):
    x = matrix()
    expected = published_isoscore(x.numpy())
    assert 0.01 < expected < 0.9
    assert diagnose.isoscore(scale * x).item() == pytest.approx(expected)


def test_isoscore_of_fewer_points_than_dimensions():
    x = matrix()[:4]
    c = torch.cov(x.T)
    expected = (c.trace() ** 2 / c.square().sum() - 1) / (D - 1)
    close(diagnose.isoscore(x), expected)


def test_isoscore_extremes():
    line = torch.arange(9.0)[:, None] * torch.tensor([1.0, 2.0, 3.0])
    close(diagnose.isoscore(line), torch.tensor(0.0), atol=1e-6, rtol=0)
    cross = torch.cat((torch.eye(5), -torch.eye(5))) + 3.0
    close(diagnose.isoscore(cross), torch.tensor(1.0))
    assert diagnose.isoscore(torch.ones(4, 3)).isnan()


def test_isoscore_of_runs_and_rows():
    x = matrix(2)
    found = diagnose.isoscore(x, rows=torch.arange(9))
    close(found, torch.stack([diagnose.isoscore(x[r, :9]) for r in range(2)]))


# --- principal components


def test_pca_against_scikit_learn():
    w = matrix()
    found, oracle = diagnose.pca(w, 3), PCA(n_components=3, svd_solver="full").fit(w.numpy())
    close(found.components, torch.from_numpy(oracle.components_))
    close(found.projections, torch.from_numpy(oracle.transform(w.numpy())))
    close(found.explained_variance, torch.from_numpy(oracle.explained_variance_))
    close(found.explained_variance_ratio, torch.from_numpy(oracle.explained_variance_ratio_))
    close(found.mean, torch.from_numpy(oracle.mean_))


def test_pca_has_one_sign():
    w = matrix()
    close(diagnose.pca(w).components, diagnose.pca(-w).components)
    largest = diagnose.pca(w, D).components.abs().argmax(-1)
    assert (diagnose.pca(w, D).components[torch.arange(D), largest] > 0).all()


def test_pca_of_runs():
    w = matrix(3)
    found = diagnose.pca(w, rows=torch.arange(20))
    for r in range(3):
        alone = diagnose.pca(w[r, :20])
        close(found.projections[r], alone.projections)
        close(found.components[r], alone.components)


# --- under-trained rows


def test_norm_indicator():
    w = matrix()
    w[[5, 9]] *= 1e-3
    found = diagnose.under_trained(w)
    close(found.scores, w.norm(dim=1))
    assert sorted(found.ranks.tolist()) == list(range(1, V + 1))
    assert set(found.ranks[[5, 9]].tolist()) == {1, 2}


def test_equal_scores_rank_in_the_order_of_ids():
    assert diagnose.under_trained(torch.ones(20, 2)).ranks.tolist() == list(range(1, 21))


def test_distance_indicator():
    w = matrix()
    found = diagnose.under_trained(w, "distance", unused=torch.tensor([3, 4]))
    close(found.scores, (w - (w[3] + w[4]) / 2).norm(dim=1))


@pytest.mark.parametrize("remove", [True, False])
def test_cosine_indicator(remove):
    w, unused = matrix(), [1, 2, 30]
    x = w.numpy()
    if remove:
        c = PCA(n_components=1).fit(x).components_[0]
        x = x - np.outer(x @ c, c)
    u = x[unused].mean(0)
    expected = 1 - x @ u / np.linalg.norm(x, axis=1) / np.linalg.norm(u)
    found = diagnose.under_trained(
        w, "cosine", unused=torch.tensor(unused), remove_first_component=remove
    )
    close(found.scores, torch.from_numpy(expected))
    order = torch.from_numpy(expected.argsort())
    assert found.ranks[order].tolist() == list(range(1, V + 1))


def test_cosine_finds_rows_that_the_common_component_hides():
    w = 0.3 * torch.randn(300, 16, dtype=torch.float64)
    w[:, 0] += 5 * torch.randn(300, dtype=torch.float64)  # what all rows share
    pushed = torch.zeros(16, dtype=torch.float64)
    pushed[1] = -2.0
    w[:20, 1:] = pushed[1:] + 0.1 * torch.randn(20, 15, dtype=torch.float64)
    known = torch.arange(5)
    found = diagnose.under_trained(w, "cosine", unused=known)
    assert found.ranks[:20].max() == 20
    plain = diagnose.under_trained(w, "cosine", unused=known, remove_first_component=False)
    assert plain.ranks[:20].max() > 20


def test_a_row_of_zeros_and_runs():
    w = matrix(2)
    w[:, 7] = 0
    found = diagnose.under_trained(w, "cosine", unused=torch.tensor([0]))
    assert found.scores[:, 7].tolist() == [1.0, 1.0]
    for r in range(2):
        alone = diagnose.under_trained(w[r], "cosine", unused=torch.tensor([0]))
        close(found.scores[r], alone.scores)


# --- bad input

GOOD = torch.ones(4, 3)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "name", "kind"),
    [
        (lambda: diagnose.isotropy(torch.ones(3)), "weight", ArgumentValueError),
        (lambda: diagnose.isotropy(torch.ones(0, 3)), "weight", ArgumentValueError),
        (lambda: diagnose.isotropy(GOOD.long()), "weight", ArgumentTypeError),
        (lambda: diagnose.isotropy(GOOD, "mine"), "convention", ArgumentValueError),
        (lambda: diagnose.isotropy(GOOD, rows=torch.ones(3) > 0), "rows", ArgumentValueError),
        (lambda: diagnose.isotropy(GOOD, rows=torch.ones(4) < 0), "rows", ArgumentValueError),
        (lambda: diagnose.isotropy(GOOD, rows=torch.tensor([4])), "rows", ArgumentValueError),
        (lambda: diagnose.isotropy(GOOD, rows=torch.tensor(1)), "rows", ArgumentValueError),
        (lambda: diagnose.isotropy(GOOD, rows=torch.ones(4)), "rows", ArgumentTypeError),
        (lambda: diagnose.isotropy(GOOD, rows=[0]), "rows", ArgumentTypeError),
        (lambda: diagnose.isoscore(torch.ones(4, 1)), "points", ArgumentValueError),
        (lambda: diagnose.isoscore([[1.0]]), "points", ArgumentTypeError),
        (lambda: diagnose.pca(GOOD, 4), "k", ArgumentValueError),
        (lambda: diagnose.pca(GOOD, 0), "k", ArgumentValueError),
        (lambda: diagnose.pca(GOOD[:1]), "weight", ArgumentValueError),
        (lambda: diagnose.under_trained(GOOD, "size"), "indicator", ArgumentValueError),
        (
            lambda: diagnose.under_trained(GOOD, remove_first_component="no"),
            "remove_first_component",
            ArgumentTypeError,
        ),
        (lambda: diagnose.under_trained(GOOD, "cosine"), "unused", ArgumentValueError),
        (
            lambda: diagnose.under_trained(GOOD, unused=torch.tensor([1])),
            "unused",
            ArgumentValueError,
        ),
        (
            lambda: diagnose.under_trained(GOOD, "distance", unused=torch.tensor([-1])),
            "unused",
            ArgumentValueError,
        ),
    ],
)
def test_bad_input(call, name, kind):
    with pytest.raises(kind, match=rf"^{name}: expected"):
        call()
