"""Each variant: numbers worked out by hand, and the gradients that are stopped on purpose."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

import elbowroom as er
from elbowroom.losses.variants import Decoupled, DetachedBelow, Leaky, RareOnly, Softminus
from tests.losses.problems import ALL, MARGIN, OPTIONS, linear_problem, logits_problem, name
from tests.losses.problems import value_and_gradients as differentiate
from tests.losses.test_reference import INF, Z, check, gradient_of, lse

# Z = [1, .5, -1, -3, 2], target 0; at margin 1 the threshold is 0, and entries 2 and 3 are below.
KEPT = (0, 1, 4)
THETA = 0.0


# ---- Softminus


def softminus(c):
    """Return what softminus makes of the kept logits, and its slopes."""
    fade = {i: exp(-(Z[i] - THETA) / c) for i in KEPT}
    z = {i: Z[i] + c * log(1 - fade[i]) for i in KEPT}
    return z, {i: 1 / (1 - fade[i]) for i in KEPT}


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("c", [1.0, 5.0])
def test_by_hand_softminus(way, c, detach):
    z, slope = softminus(c)
    total = sum(map(exp, z.values()))
    g = {i: exp(z[i]) / total - (i == 0) for i in KEPT}  # by the faded logits
    gradient = [g[i] * slope[i] if i in KEPT else 0.0 for i in range(5)]
    if not detach:  # the threshold moves with the target's logit
        gradient[0] -= sum(g[i] * (slope[i] - 1) for i in KEPT)
    check(way, Z, 1.0, lse(z.values()) - z[0], gradient, variant=Softminus(c, detach))


def test_by_hand_softminus_1_subtracts_the_threshold_from_each_exponential(way):
    e = [exp(x) - exp(THETA) for x in Z]
    loss = way(torch.tensor([Z], dtype=torch.float64), torch.tensor([0]), 1.0, variant=Softminus())
    expected = -log(e[0] / (e[0] + e[1] + e[4]))
    assert loss.item() == pytest.approx(expected, rel=1e-13)


def test_by_hand_softminus_is_clamped_on_the_threshold(way):
    z = [1.0, 0.0, -0.5]  # the second is a tie, which is kept
    e = [exp(1.0) - 1.0, 1e-9]
    loss = way(torch.tensor([z], dtype=torch.float64), torch.tensor([0]), 1.0, variant=Softminus())
    assert loss.item() == pytest.approx(log(1 + e[1] / e[0]), rel=1e-6)


@pytest.mark.parametrize("variant", [Softminus(), Softminus(5.0), Softminus(1.0, True)])
def test_softminus_at_a_wide_margin_is_cross_entropy(way, variant):
    check(way, Z, INF, lse(Z) - 1.0, gradient_of(Z, range(5)), variant=variant)
    loss = way(torch.tensor([Z]), torch.tensor([0]), 300.0, variant=variant)
    assert loss.item() == pytest.approx(lse(Z) - 1.0, rel=1e-6)


@pytest.mark.parametrize("margin", [1.0, INF])
@pytest.mark.parametrize("c", [1.0, 5.0])
def test_softminus_with_an_impossible_token_has_finite_gradients(linear, c, margin):
    """A bias of -inf forbids a token; to fade it must not make NaN of it."""
    hidden = torch.tensor([[1.0, 3.0, 0.5]], requires_grad=True)
    weight, bias = torch.eye(3, requires_grad=True), torch.tensor([0.0, -INF, 0.0])
    loss = linear(hidden, weight, torch.tensor([0]), margin, bias=bias, variant=Softminus(c))
    loss.backward()
    assert loss.isfinite()
    assert hidden.grad.isfinite().all()
    assert weight.grad.isfinite().all()
    z = torch.tensor([[1.0, -INF, 0.5]], requires_grad=True)
    of_logits = er.thresholded_cross_entropy(z, torch.tensor([0]), margin, variant=Softminus(c))
    of_logits.backward()
    torch.testing.assert_close(of_logits, loss)
    torch.testing.assert_close(z.grad, hidden.grad)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("c", [1.0, 5.0])
def test_gradcheck_of_a_detached_threshold(way, c, options):
    """The margin follows the target's logit, so that the threshold really is a constant."""
    scale = options.get("logit_scale", 1.0)
    z, target = logits_problem(scale)
    at = target.clamp(min=0)[:, None]
    theta = (scale * z.detach()).gather(-1, at) - MARGIN

    def loss(z):
        margin = ((scale * z.detach()).gather(-1, at) - theta)[:, 0]
        return way(z, target, margin, variant=Softminus(c, detach_threshold=True), **options)

    assert gradcheck(loss, z, fast_mode=True)


# ---- DetachedBelow


def test_by_hand_detached_below(way):
    full = gradient_of(Z, range(5))
    gradient = [g if i in KEPT else 0.0 for i, g in enumerate(full)]
    check(way, Z, 1.0, lse(Z) - 1.0, gradient, variant=DetachedBelow())


def test_by_hand_detached_below_smooths_over_entries_not_below(way):
    value = 0.8 * (lse(Z) - 1.0) + 0.2 * (lse(Z) - 3.5 / 3)
    p = gradient_of(Z, range(5), target=None)
    gradient = [(p[i] - 0.2 / 3) * (i in KEPT) - 0.8 * (i == 0) for i in range(5)]
    check(way, Z, 1.0, value, gradient, variant=DetachedBelow(), label_smoothing=0.2)


def test_by_hand_detached_below_with_protect(way):
    protect = torch.tensor([False, False, True, False, True])
    full = gradient_of(Z, [0, 1, 3])
    gradient = [full[0], full[1], 0.0, 0.0, 0.0]
    value = lse([1.0, 0.5, -3.0]) - 1.0
    check(way, Z, 1.0, value, gradient, variant=DetachedBelow(), protect=protect)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradcheck_of_detached_below(way, options):
    """Entries below stand still, so that the derivative by them is 0; then it must be so."""
    scale = options.get("logit_scale", 1.0)
    z, target = logits_problem(scale)
    at = target.clamp(min=0)[:, None]
    start = z.detach().clone()  # gradcheck moves z in place
    below = (scale * start < (scale * start).gather(-1, at) - MARGIN).scatter(-1, at, False)

    def loss(z):
        return way(z, target, MARGIN, variant=DetachedBelow(), **options)

    assert gradcheck(lambda z: loss(torch.where(below, start, z)), z, fast_mode=True)
    loss(z).sum().backward()
    assert below.any()
    assert (z.grad[below] == 0).all()


# ---- Decoupled


def test_by_hand_decoupled(linear):
    hidden = torch.tensor([Z], dtype=torch.float64, requires_grad=True)
    weight = torch.eye(5, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    loss = linear(hidden, weight, torch.tensor([0]), 1.0, bias=bias, variant=Decoupled())
    loss.backward()
    full = gradient_of(Z, range(5))
    rows = [g if i in KEPT else 0.0 for i, g in enumerate(full)]
    assert loss.item() == pytest.approx(lse(Z) - 1.0, rel=1e-13)
    assert hidden.grad[0].tolist() == pytest.approx(full, rel=1e-12)
    assert bias.grad.tolist() == pytest.approx(rows, rel=1e-12)
    expected = torch.tensor([[g * x for x in Z] for g in rows], dtype=torch.float64)
    torch.testing.assert_close(weight.grad, expected)
    assert (weight.grad[[2, 3]] == 0).all()
    assert (bias.grad[[2, 3]] == 0).all()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_decoupled_rows_get_the_full_gradient_where_not_below(linear, options):
    scale = options.get("logit_scale", 1.0)
    hidden, weight, bias, target = linear_problem(scale)

    def loss(hidden, weight, bias):
        return linear(hidden, weight, target, MARGIN, bias=bias, variant=Decoupled(), **options)

    def full(z):
        return er.thresholded_cross_entropy(z, target, INF, **options)

    assert gradcheck(lambda h: loss(h, weight.detach(), bias.detach()), hidden, fast_mode=True)
    z = (hidden @ weight.T + bias).detach()
    value, (by_z,) = differentiate(full, z)
    at = target.clamp(min=0)[:, None]
    below = (scale * z < (scale * z).gather(-1, at) - MARGIN).scatter(-1, at, False)
    by_z = by_z.masked_fill(below, 0.0)
    ours, (_, by_weight, by_bias) = differentiate(loss, hidden, weight, bias)
    torch.testing.assert_close(ours, value)
    torch.testing.assert_close(by_weight, by_z.T @ hidden.detach())
    torch.testing.assert_close(by_bias, by_z.sum(0))


# ---- Leaky, RareOnly


def test_by_hand_leaky(way):
    value = 0.7 * (lse([1.0, 0.5, 2.0]) - 1.0) + 0.3 * (lse(Z) - 1.0)
    parts = gradient_of(Z, KEPT, factor=0.7), gradient_of(Z, range(5), factor=0.3)
    gradient = [a + b for a, b in zip(*parts, strict=True)]
    check(way, Z, 1.0, value, gradient, variant=Leaky(0.3))


def test_by_hand_both_terms_of_leaky_share_equalization(way):
    protect = torch.tensor([False, False, True, False, True])
    value = 0.7 * (lse([1.0, 0.5]) - 1.0) + 0.3 * (lse([1.0, 0.5, -3.0]) - 1.0)
    parts = gradient_of(Z, [0, 1], factor=0.7), gradient_of(Z, [0, 1, 3], factor=0.3)
    gradient = [a + b for a, b in zip(*parts, strict=True)]
    check(way, Z, 1.0, value, gradient, variant=Leaky(0.3), protect=protect)


def test_the_ends_of_leaky_are_both_losses(way):
    check(way, Z, 1.0, lse([1.0, 0.5, 2.0]) - 1.0, gradient_of(Z, KEPT), variant=Leaky(0.0))
    check(way, Z, 1.0, lse(Z) - 1.0, gradient_of(Z, range(5)), variant=Leaky(1.0))


def test_by_hand_rare_only(way):
    rows = torch.tensor([True, True, False, True, True])  # of those below, 3 may be masked
    value, gradient = lse([1.0, 0.5, -1.0, 2.0]) - 1.0, gradient_of(Z, [0, 1, 2, 4])
    check(way, Z, 1.0, value, gradient, variant=RareOnly(rows))


def test_rare_only_of_no_rows_is_cross_entropy(way):
    none = torch.zeros(5, dtype=torch.bool)
    check(way, Z, 1.0, lse(Z) - 1.0, gradient_of(Z, range(5)), variant=RareOnly(none))


# ---- All


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("variant", [v for v in ALL if not isinstance(v, Decoupled)], ids=name)
def test_a_linear_head_gives_the_loss_of_its_logits(linear, variant, options):
    inputs = linear_problem(options.get("logit_scale", 1.0))
    target = inputs[-1]
    ours = differentiate(
        lambda h, w, b: linear(h, w, target, MARGIN, bias=b, variant=variant, **options),
        *inputs[:3],
    )
    of_logits = differentiate(
        lambda h, w, b: er.thresholded_cross_entropy(
            F.linear(h, w, b), target, MARGIN, variant=variant, **options
        ),
        *inputs[:3],
    )
    torch.testing.assert_close(ours, of_logits, rtol=1e-11, atol=1e-13)


def test_variants_are_values():
    assert Softminus(2.0) == Softminus(2.0)
    assert Softminus(2.0) != Softminus(2.0, detach_threshold=True)
    assert Leaky(0.5) == Leaky(0.5)
    assert DetachedBelow() == DetachedBelow()
    assert set(er.variants.__all__) == {
        "Decoupled",
        "DetachedBelow",
        "Leaky",
        "RareOnly",
        "Softminus",
        "Variant",
    }
