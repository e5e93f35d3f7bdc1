"""The shape of a cloud of embeddings: isotropy, principal components, under-trained rows.

Every function takes a matrix ``[V, D]``, or ``[R, V, D]`` of R runs, each of which is looked at by
itself, and computes in float32, or float64 for float64. Eigenvalue problems are ``[D, D]`` and
solved in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.diagnose.inputs import matrix, row_ids
from elbowroom.errors import ArgumentValueError

Convention = Literal["paper", "symmetric"]
Indicator = Literal["norm", "distance", "cosine"]
CONVENTIONS = ("paper", "symmetric")
INDICATORS = ("norm", "distance", "cosine")


def isotropy(
    weight: Float[Tensor, "*runs V D"],
    convention: Convention = "symmetric",
    *,
    rows: Bool[Tensor, " V"] | Int[Tensor, " K"] | None = None,
) -> Float[Tensor, "*runs"]:
    r"""Return how evenly the rows of a matrix point in all directions, between 0 and 1.

    .. math:: I(W) = \min_a Z(a) / \max_a Z(a), \qquad Z(a) = \sum_i \exp \langle w_i, a \rangle

    over unit eigenvectors a of :math:`W^T W`, uncentred (Mu and Viswanath, 2018). The sign of an
    eigenvector is arbitrary, and Z(a) differs from Z(-a). The paper's numbers take one sign of
    each, whichever the solver returned: "paper" does so too, and is reproducible on one machine
    only. "symmetric" takes both signs of each, is at most as large, and means the same everywhere.
    Paper, section "Results and Observations": per language, over that language's rows of the head.

    Args:
        weight: ``[V, D]`` or ``[R, V, D]``.
        convention: "symmetric" or "paper".
        rows: a mask ``[V]`` or ids ``[K]`` of the rows to look at; all of them by default.

    Returns:
        ``[]`` or ``[R]``.

    Example:
        >>> import torch
        >>> isotropy(torch.cat((torch.eye(3), -torch.eye(3))))
        tensor(1.)
    """
    checks.choice("convention", convention, CONVENTIONS)
    w = matrix("weight", weight, rows)
    _, directions = torch.linalg.eigh((w.mT @ w).double())
    projections: Tensor = w @ directions.to(w.dtype)
    log_z = projections.logsumexp(-2)
    if convention == "symmetric":
        log_z = torch.cat((log_z, (-projections).logsumexp(-2)), -1)
    return (log_z.amin(-1) - log_z.amax(-1)).exp()


def isoscore(
    points: Float[Tensor, "*runs N D"],
    *,
    rows: Bool[Tensor, " N"] | Int[Tensor, " K"] | None = None,
) -> Float[Tensor, "*runs"]:
    r"""Return IsoScore: the share of dimensions that a cloud of points uses uniformly.

    0 for points on a line, 1 for a covariance proportional to the identity; shifts, rotations and
    scale do not matter (Rudman et al., 2022).

    The published algorithm scales the variances along principal components,
    :math:`\hat\sigma = \sqrt{D}\, \sigma / \lVert \sigma \rVert`, and takes
    :math:`\delta = \lVert \hat\sigma - 1 \rVert / \sqrt{2 (D - \sqrt{D})}`,
    :math:`\phi = (D - \delta^2 (D - \sqrt{D}))^2 / D^2` and
    :math:`\iota = (D \phi - 1) / (D - 1)`. With
    :math:`s = \sum_j \sigma_j / \lVert \sigma \rVert`, we have
    :math:`\lVert \hat\sigma - 1 \rVert^2 = 2 D - 2 \sqrt{D} s`, so that
    :math:`\phi = s^2 / D` and, for a covariance matrix C,

    .. math:: \iota = \frac{s^2 - 1}{D - 1}, \qquad
        s^2 = \frac{(\mathrm{tr}\, C)^2}{\lVert C \rVert_F^2}

    which needs no principal components.

    Args:
        points: ``[N, D]`` or ``[R, N, D]``, D at least 2.
        rows: a mask ``[N]`` or ids ``[K]`` of the points to look at; all of them by default.

    Returns:
        ``[]`` or ``[R]``; NaN where all points are one.

    Example:
        >>> import torch
        >>> isoscore(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
        tensor(1.)
    """
    x = matrix("points", points, rows)
    if x.shape[-1] < 2:
        raise ArgumentValueError("points", "[..., N, D] with D at least 2", tuple(points.shape))
    x = x - x.mean(-2, keepdim=True)
    x = x / x.abs().amax((-2, -1), keepdim=True)  # scale does not matter; squares of it overflow
    gram = x.mT @ x if x.shape[-1] <= x.shape[-2] else x @ x.mT  # the same trace and norm
    s_squared = x.square().sum((-2, -1)) ** 2 / gram.square().sum((-2, -1))
    return (s_squared - 1) / (x.shape[-1] - 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class PrincipalComponents:
    """The directions of greatest variance, and where the points lie along them."""

    projections: Float[Tensor, "*runs V k"]
    """Of the centred rows."""
    components: Float[Tensor, "*runs k D"]
    """Unit vectors; the entry of largest magnitude of each is positive."""
    explained_variance: Float[Tensor, "*runs k"]
    """The variance along each, ``1 / (V - 1)`` normed, descending."""
    explained_variance_ratio: Float[Tensor, "*runs k"]
    """Its share of the whole variance."""
    mean: Float[Tensor, "*runs D"]
    """What was subtracted."""


def pca(
    weight: Float[Tensor, "*runs V D"],
    k: int = 2,
    *,
    rows: Bool[Tensor, " V"] | Int[Tensor, " K"] | None = None,
) -> PrincipalComponents:
    """Return the first k principal components of the rows of a matrix.

    The eigenvectors of the covariance ``[D, D]``, with a fixed sign, so that a figure looks the
    same each time. Paper, section 'Learned "Translations"' (Figure "PCA").

    Args:
        weight: ``[V, D]`` or ``[R, V, D]``, V at least 2.
        k: how many, at most D.
        rows: a mask ``[V]`` or ids ``[K]`` of the rows to look at; all of them by default.

    Example:
        >>> import torch
        >>> found = pca(torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]), k=1)
        >>> found.components, found.explained_variance
        (tensor([[1., 0.]]), tensor([4.]))
    """
    w = matrix("weight", weight, rows)
    if checks.integer("k", k, at_least=1) > w.shape[-1]:
        raise ArgumentValueError("k", f"at most D = {w.shape[-1]}", k)
    if w.shape[-2] < 2:
        raise ArgumentValueError("weight", "at least 2 rows", w.shape[-2])
    mean = w.mean(-2)
    centred = w - mean[..., None, :]
    covariance = (centred.mT @ centred).double() / (w.shape[-2] - 1)
    variances, vectors = torch.linalg.eigh(covariance)  # ascending
    variances = variances.clamp(min=0)
    components = vectors[..., -k:].flip(-1).mT.to(w.dtype)
    largest = components.gather(-1, components.abs().argmax(-1, keepdim=True))
    components = components * largest.sign()
    first = variances[..., -k:].flip(-1)
    return PrincipalComponents(
        projections=centred @ components.mT,
        components=components,
        explained_variance=first.to(w.dtype),
        explained_variance_ratio=(first / variances.sum(-1, keepdim=True)).to(w.dtype),
        mean=mean,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class UnderTrained:
    """How far each row is from a row that was never trained; small is suspicious."""

    scores: Float[Tensor, "*runs V"]
    """The indicator of each row."""
    ranks: Int[Tensor, "*runs V"]
    """1 for the most suspicious row, V for the least; equal scores in the order of ids."""


def under_trained(
    weight: Float[Tensor, "*runs V D"],
    indicator: Indicator = "norm",
    *,
    unused: Int[Tensor, " K"] | None = None,
    remove_first_component: bool = True,
) -> UnderTrained:
    r"""Return an indicator of under-trained tokens (Land and Bartolo, 2024) for each row.

    - "norm", for the input matrix of an untied model: :math:`\lVert w_i \rVert`. Weight decay
      shrinks rows that no gradient reaches.
    - "distance", for any matrix: :math:`\lVert w_i - u \rVert`, with u the mean of the rows that
      are known to be unused.
    - "cosine", for the output matrix (tied or not): :math:`1 - \cos(w'_i, u')`. Softmax moves the
      rows of all tokens that never are the target in one direction. Rows of an output matrix also
      share a large component, which hides the difference: c being the first principal component
      (of the centred rows), :math:`w'_i = w_i - \langle w_i, c \rangle c`, and u' is the mean of
      w' over the unused rows. A row of zeros has cosine 0.

    Args:
        weight: ``[V, D]`` or ``[R, V, D]``.
        indicator: "norm", "distance" or "cosine".
        unused: ids of tokens that cannot occur in the training text (reserved ids, padding of the
            vocabulary, bytes that no UTF-8 text has); needed for all but "norm".
        remove_first_component: whether "cosine" removes c.

    Example:
        >>> import torch
        >>> under_trained(torch.tensor([[3.0, 4.0], [0.0, 0.1], [1.0, 0.0]])).ranks
        tensor([3, 1, 2])
    """
    checks.choice("indicator", indicator, INDICATORS)
    checks.flag("remove_first_component", remove_first_component)
    w = matrix("weight", weight, None)
    if indicator == "norm":
        if unused is not None:
            fix = 'pass indicator="distance" or "cosine"'
            raise ArgumentValueError("unused", 'None with indicator="norm"', "ids", fix)
        scores = w.norm(dim=-1)
    else:
        if unused is None:
            fix = "pass the ids of tokens that cannot occur"
            raise ArgumentValueError("unused", f"ids, for {indicator!r}", None, fix)
        unused = row_ids("unused", unused, w)
        if indicator == "distance":
            scores = (w - w[..., unused, :].mean(-2, keepdim=True)).norm(dim=-1)
        else:
            scores = _cosine_distance(w, unused, remove_first_component)
    ranks = scores.argsort(dim=-1, stable=True).argsort(dim=-1) + 1
    return UnderTrained(scores=scores, ranks=ranks)


def _cosine_distance(
    w: Float[Tensor, "*runs V D"], unused: Int[Tensor, " K"], remove_first_component: bool
) -> Float[Tensor, "*runs V"]:
    if remove_first_component:
        c = pca(w, 1).components
        w = w - (w @ c.mT) * c
    u = w[..., unused, :].mean(-2, keepdim=True)
    return 1 - torch.nn.functional.cosine_similarity(w, u, dim=-1)
