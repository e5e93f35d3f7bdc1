"""Penalties on the matrix of embeddings that keep its rows from huddling together."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentValueError
from elbowroom.rivals.common import unit_rows


def cosreg(weight: Float[Tensor, "*runs V D"], gamma: float = 1.0) -> Float[Tensor, "*runs"]:
    r"""Cosine regularisation (Gao et al. 2019, CosReg), to be added to a loss.

    .. math:: \frac{\gamma}{V^2} \sum_i \sum_{j \ne i} \langle \hat w_i, \hat w_j \rangle
        = \frac{\gamma}{V^2} \Big( \Big\| \sum_i \hat w_i \Big\|^2 - V \Big), \qquad
        \hat w = w / \|w\|

    Args:
        weight: ``[V, D]``, or ``[R, V, D]`` for one penalty a run.
        gamma: γ; 1 as published.

    Reference:
        Gao et al. 2019, "Representation Degeneration Problem in Training Natural Language
        Generation Models".

    Example:
        >>> cosreg(torch.tensor([[2.0, 0.0], [3.0, 0.0]]))  # (|(2, 0)|^2 - 2) / 2^2
        tensor(0.5000)
    """
    gamma = checks.number("gamma", gamma)
    unit = unit_rows(_checked(weight))
    size = unit.shape[-2]
    return gamma / size**2 * (unit.sum(-2).square().sum(-1) - size)


def laplacian(
    weight: Float[Tensor, "*runs V D"], gamma: float = 1.0, *, chunk: int = 1024
) -> Float[Tensor, "*runs"]:
    r"""Laplacian regularisation of unit rows, after Zhang et al. 2020, to be added to a loss.

    .. math:: -\frac{\gamma}{V^2} \operatorname{tr}(\hat W^\top L \hat W)
        = -\frac{\gamma}{2 V^2} \sum_{ij} S_{ij} \| \hat w_i - \hat w_j \|^2, \qquad
        L = \operatorname{diag}(S 1) - S

    Two rows repel each other in proportion to how similar they are: the edge between rows i and j
    of the graph weighs :math:`S_{ij} = \max(0, \langle \hat w_i, \hat w_j \rangle)`, and
    :math:`S_{ii} = 0`. Unlike the cosine regularisation, rows that are far apart do not
    compensate for rows that are close. S is a constant to the gradient: the graph of this step.

    The idea, a Laplacian penalty from pairwise similarity against degeneration, is the
    publication's; graph and scale are ours, so do not take its hyperparameters over.

    Args:
        weight: ``[V, D]``, or ``[R, V, D]`` for one penalty a run.
        gamma: γ.
        chunk: how many rows are compared with all others at a time; ``chunk * V`` similarities
            are in memory.

    Reference:
        Zhang et al. 2020, "Revisiting Representation Degeneration Problem in Language Modeling".

    Example:
        >>> laplacian(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))  # -(.6 * (1 - .6) * 2) / 2^2
        tensor(-0.1200)
    """
    gamma = checks.number("gamma", gamma)
    chunk = checks.integer("chunk", chunk, at_least=1)
    unit = unit_rows(_checked(weight))
    with torch.autocast(unit.device.type, enabled=False):
        pulled, degree = _neighbours(unit.detach(), chunk)
    # tr = sum_i d_i |u_i|^2 - sum_ij S_ij u_i u_j. Its gradient by u_i, with d and S constant and
    # S symmetric, is 2 (d_i u_i - sum_j S_ij u_j); the first part is along u_i, and normalisation
    # removes it. So 2 <u, S u>, with S u constant, has the gradient; its value is corrected.
    similar = (unit * pulled).sum((-2, -1))
    trace = degree - 2 * similar + similar.detach()
    return -gamma / unit.shape[-2] ** 2 * trace


@torch.no_grad()
def _neighbours(
    unit: Float[Tensor, "*runs V D"], chunk: int
) -> tuple[Float[Tensor, "*runs V D"], Float[Tensor, "*runs"]]:
    """Return S U and the sum of all degrees (of rows that are not zero)."""
    pulled, degree = torch.empty_like(unit), unit.new_zeros(unit.shape[:-2])
    for start in range(0, unit.shape[-2], chunk):
        part = unit[..., start : start + chunk, :]
        similarity = (part @ unit.mT).clamp_(min=0.0)
        similarity.diagonal(offset=start, dim1=-2, dim2=-1).zero_()
        pulled[..., start : start + chunk, :] = similarity @ unit
        degree += similarity.sum((-2, -1))
    return pulled, degree


def _checked(weight: Tensor) -> Tensor:
    weight = checks.is_floating("weight", weight)
    if weight.ndim not in (2, 3) or 0 in weight.shape:
        raise ArgumentValueError("weight", "[V, D] or [R, V, D]", f"shape {tuple(weight.shape)}")
    return weight
