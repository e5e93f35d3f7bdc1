"""The hand-written equations against autograd, and both layouts against each other."""

from __future__ import annotations

from math import exp, log

import pytest
import torch

from elbowroom.losses.entries import Dense, Listed, Terms, cross_entropy_, softminus_
from elbowroom.losses.variants import Softminus

TARGET = torch.tensor([[1, 0, 3]])


def problem():
    """Return logits ``[1, 3, 4]`` and what is kept: some, the target alone, all."""
    z = torch.randn(1, 3, 4, dtype=torch.float64)
    keep = torch.tensor([[[0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]]) > 0
    return z, keep


def in_layout(kind, z, keep):
    """Return a copy of the logits in a layout, the layout, and the way back to ``[1, 3, 4]``."""
    if kind == "dense":
        return z.clone(), Dense(TARGET, keep), lambda x: x
    listed = Listed(keep, TARGET)
    entries = z.view(-1, 4)[listed.row, listed.column]
    place = (listed.row, listed.column)
    return entries, listed, lambda x: torch.zeros(3, 4).to(x).index_put(place, x)[None]


def by_autograd(z, keep, e, s, c):
    """Return losses and the gradient of their weighted sum, from the definition."""
    z = z.clone().requires_grad_()
    losses = []
    for row, kept, y in zip(z[0], keep[0], TARGET[0].tolist(), strict=True):
        lse = row[kept].logsumexp(0)
        losses.append(lse - (1 - e) * row[y] - e * row[kept].mean() + s * lse**2)
    out = torch.stack(losses)[None]
    return out.detach(), torch.autograd.grad((out * c).sum(), z)[0]


@pytest.mark.parametrize("s", [0.0, 0.3])
@pytest.mark.parametrize("e", [0.0, 0.2])
@pytest.mark.parametrize("kind", ["dense", "listed"])
def test_value_and_gradient_are_those_of_the_definition(kind, e, s):
    z, keep = problem()
    c = torch.tensor([[0.5, 1.0, -2.0]], dtype=torch.float64)
    x, layout, back = in_layout(kind, z, keep)
    losses = cross_entropy_(x, layout, Terms(label_smoothing=e, z_loss=s, coefficient=c))
    expected, gradient = by_autograd(z, keep, e, s, c)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(back(x), gradient)
    assert (back(x)[~keep] == 0).all()


@pytest.mark.parametrize("kind", ["dense", "listed"])
def test_without_coefficients_only_the_value_is_made(kind):
    z, keep = problem()
    x, layout, _ = in_layout(kind, z, keep)
    losses = cross_entropy_(x, layout, Terms(label_smoothing=0.1, z_loss=0.1, coefficient=None))
    torch.testing.assert_close(losses, by_autograd(z, keep, 0.1, 0.1, torch.zeros(1, 3))[0])


def test_by_hand():
    z = torch.tensor([[[0.0, 2.0, 1.0, 5.0]]], dtype=torch.float64)
    keep = torch.tensor([[[True, True, False, False]]])
    for layout in (Dense(TARGET[:, :1], keep), Listed(keep, TARGET[:, :1])):
        x = z.clone() if isinstance(layout, Dense) else z[keep]
        one = torch.ones(1, 1, dtype=torch.float64)
        loss = cross_entropy_(x, layout, Terms(label_smoothing=0.0, z_loss=0.0, coefficient=one))
        p = exp(2.0) / (1 + exp(2.0))
        assert loss.item() == pytest.approx(-log(p), rel=1e-14)
        assert x.view(-1)[:2].tolist() == pytest.approx([1 - p, p - 1], rel=1e-14)


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("kind", ["dense", "listed"])
def test_softminus_is_that_of_the_definition(kind, detach):
    z = torch.tensor([[[0.3, 1.0, 0.1, -9.0]] * 3], dtype=torch.float64)
    z[0, :, 1:3] += torch.arange(3)[:, None] * 0.1
    margin = torch.full((1, 1), 2.5, dtype=torch.float64)
    leaf = z.clone().requires_grad_()
    theta = leaf.gather(-1, TARGET[..., None]) - margin[..., None]
    keep = z >= theta.detach()
    theta = theta.detach() if detach else theta
    faded = torch.where(keep, leaf - theta, 1.0)
    faded = leaf + 2.0 * torch.log(1 - torch.exp(-faded / 2.0))
    losses = faded.masked_fill(~keep, -torch.inf).logsumexp(-1)
    losses = losses - faded.gather(-1, TARGET[..., None])[..., 0]
    c = torch.tensor([[0.5, 1.0, -2.0]], dtype=torch.float64)
    (gradient,) = torch.autograd.grad((losses * c).sum(), leaf)
    x, layout, back = in_layout(kind, z, keep)
    terms = Terms(label_smoothing=0.0, z_loss=0.0, coefficient=c)
    ours = softminus_(x, layout, margin, Softminus(2.0, detach), terms)
    torch.testing.assert_close(ours, losses.detach())
    torch.testing.assert_close(back(x), gradient)


def test_smoothing_may_spread_over_fewer_entries_than_the_sum():
    z, keep = problem()
    x, c = z.clone(), torch.ones(1, 3, dtype=torch.float64)
    everything = torch.ones_like(keep)
    layout = Dense(TARGET, everything, keep)
    losses = cross_entropy_(x, layout, Terms(label_smoothing=0.2, z_loss=0.0, coefficient=c))
    leaf = z.clone().requires_grad_()
    lse = leaf.logsumexp(-1)
    mean = (leaf * keep).sum(-1) / keep.sum(-1)
    expected = lse - 0.8 * leaf.gather(-1, TARGET[..., None])[..., 0] - 0.2 * mean
    torch.testing.assert_close(losses, expected.detach())
    torch.testing.assert_close(x, torch.autograd.grad(expected.sum(), leaf)[0])


@pytest.mark.parametrize("largest_kept", [False, True])
def test_dropped_entries_may_be_huge(largest_kept):
    z = torch.tensor([[[1.0, 0.0, -1e30 if largest_kept else 1e30]]])
    keep = torch.tensor([[[True, True, False]]])
    layout = Dense(torch.tensor([[0]]), keep, largest_kept=largest_kept)
    terms = Terms(label_smoothing=0.1, z_loss=0.1, coefficient=torch.ones(1, 1))
    loss = cross_entropy_(z, layout, terms)
    assert loss.isfinite().all()
    assert z.isfinite().all()
    assert z[0, 0, 2] == 0


def test_a_list_knows_rows_columns_and_targets():
    _, keep = problem()
    listed = Listed(keep, TARGET)
    assert listed.row.tolist() == [0, 0, 1, 2, 2, 2, 2]
    assert listed.column.tolist() == [1, 2, 0, 0, 1, 2, 3]
    assert listed.count.tolist() == [2, 1, 4]
    assert listed.hit.tolist() == [0, 2, 6]
