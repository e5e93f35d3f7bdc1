"""The reference: ordinary cross-entropy to the bit, numbers worked out by hand, derivatives.

What is worked out by hand holds for every backend, so the fixture `way` runs through them.
"""

from __future__ import annotations

from math import exp, inf, log, nan, tanh

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

import elbowroom as er
from elbowroom.losses.reference import masks
from elbowroom.losses.spec import Spec
from tests.losses.problems import (
    ALL,
    MARGIN,
    OPTIONS,
    TRUE_GRADIENT,
    linear_problem,
    logits_problem,
    name,
    value_and_gradients,
)

INF = float("inf")
REDUCTIONS = ("none", "mean", "sum")
reductions = pytest.mark.parametrize("reduction", REDUCTIONS)


def targets(n, vocab, ignored=-100):
    target = torch.randint(vocab, (n,))
    target[1::3] = ignored
    return target


# ---- F.cross_entropy


@reductions
@pytest.mark.parametrize("n", [1, 7, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_infinite_margin_is_cross_entropy_to_the_bit(dtype, n, reduction):
    z, target = 3 * torch.randn(n, 53, dtype=dtype), targets(n, 53, -7)
    ours, gradients = value_and_gradients(
        lambda z: er.thresholded_cross_entropy(
            z, target, INF, reduction=reduction, ignore_index=-7
        ),
        z,
    )
    theirs, expected = value_and_gradients(
        lambda z: F.cross_entropy(z, target, reduction=reduction, ignore_index=-7), z
    )
    assert torch.equal(ours, theirs)
    assert torch.equal(gradients[0], expected[0])


@reductions
@pytest.mark.parametrize("n", [1, 7, 1000])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_infinite_margin_of_a_linear_head_is_cross_entropy_to_the_bit(
    dtype, with_bias, n, reduction
):
    inputs = [torch.randn(shape, dtype=dtype) for shape in [(n, 24), (53, 24), (53,)]]
    inputs = inputs if with_bias else inputs[:2]
    target = targets(n, 53)

    def ours(hidden, weight, bias=None):
        return er.linear_thresholded_cross_entropy(
            hidden, weight, target, INF, bias=bias, reduction=reduction, backend="reference"
        )

    def theirs(hidden, weight, bias=None):
        return F.cross_entropy(F.linear(hidden, weight, bias), target, reduction=reduction)

    value, gradients = value_and_gradients(ours, *inputs)
    expected, expected_gradients = value_and_gradients(theirs, *inputs)
    assert torch.equal(value, expected)
    for x, y in zip(gradients, expected_gradients, strict=True):
        assert torch.equal(x, y)


@reductions
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_logits_are_cross_entropy_in_float32(dtype, reduction):
    z, target = 3 * torch.randn(40, 53).to(dtype), targets(40, 53)
    ours, gradients = value_and_gradients(
        lambda z: er.thresholded_cross_entropy(z, target, INF, reduction=reduction), z
    )
    theirs, expected = value_and_gradients(
        lambda z: F.cross_entropy(z.float(), target, reduction=reduction), z
    )
    assert ours.dtype == torch.float32
    assert gradients[0].dtype == dtype
    assert torch.equal(ours, theirs)
    assert torch.equal(gradients[0], expected[0])


@reductions
def test_label_smoothing_at_an_infinite_margin_is_pytorchs(way, reduction):
    z, target = 3 * torch.randn(40, 53, dtype=torch.float64), targets(40, 53)
    ours = value_and_gradients(
        lambda z: way(z, target, INF, reduction=reduction, label_smoothing=0.3), z
    )
    theirs = value_and_gradients(
        lambda z: F.cross_entropy(z, target, reduction=reduction, label_smoothing=0.3), z
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_other_variants_at_an_infinite_margin_are_cross_entropy(linear):
    hidden, weight, bias, target = linear_problem()
    expected = value_and_gradients(
        lambda h, w, b: F.cross_entropy(F.linear(h, w, b), target), hidden, weight, bias
    )
    for variant in ALL:
        ours = value_and_gradients(
            lambda h, w, b, v=variant: linear(h, w, target, INF, bias=b, variant=v),
            hidden,
            weight,
            bias,
        )
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14, msg=name(variant))


@reductions
@pytest.mark.parametrize("variant", ALL, ids=name)
def test_everything_ignored_is_zero_with_zero_gradients(linear, variant, reduction):
    hidden, weight, bias, target = linear_problem()
    target = torch.full_like(target, -100)
    value, gradients = value_and_gradients(
        lambda h, w, b: linear(
            h, w, target, MARGIN, bias=b, variant=variant, reduction=reduction, z_loss=0.1
        ),
        hidden,
        weight,
        bias,
    )
    assert torch.equal(value, torch.zeros_like(value))
    for x in gradients:
        assert torch.equal(x, torch.zeros_like(x))


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_an_empty_batch_is_zero(way, shape):
    z, target = torch.zeros(*shape, 4, requires_grad=True), torch.zeros(shape, dtype=torch.int64)
    loss, stats = way(z, target, 1.0, stats=True)
    assert loss.item() == 0
    loss.backward()
    assert z.grad.shape == z.shape
    assert stats.rank.shape == shape
    assert not stats.touched.any()
    assert way(z, target, 1.0, reduction="none").shape == shape


# ---- By hand: plain arithmetic on Python's floats

Z = [1.0, 0.5, -1.0, -3.0, 2.0]  # target 0; at margin 1 the threshold is 0, and 2 and 3 are below


def lse(values):
    return log(sum(map(exp, values)))


def gradient_of(z, kept, target=0, factor=1.0):
    """Return ``factor * (p_i - [i = target])`` over kept entries, 0 elsewhere."""
    total = sum(exp(z[i]) for i in kept)
    return [factor * (exp(x) / total - (i == target)) * (i in kept) for i, x in enumerate(z)]


def check(way, z, margin, value, gradient, target=0, **options):
    """Compare value and gradient of one token; a gradient of 0 must be exactly that."""
    x = torch.tensor([z], dtype=torch.float64, requires_grad=True)
    loss = way(x, torch.tensor([target]), margin, **options)
    loss.backward()
    assert loss.item() == pytest.approx(value, rel=1e-13, abs=1e-15)
    assert x.grad[0].tolist() == pytest.approx(gradient, rel=1e-12, abs=1e-15)
    for got, expected in zip(x.grad[0].tolist(), gradient, strict=True):
        assert expected != 0 or got == 0


def test_by_hand_the_threshold(way):
    check(way, Z, 1.0, lse([1.0, 0.5, 2.0]) - 1.0, gradient_of(Z, [0, 1, 4]))


def test_by_hand_ties_with_the_threshold_are_kept(way):
    z = [1.0, 0.0, -(2.0**-40)]
    check(way, z, 1.0, lse([1.0, 0.0]) - 1.0, gradient_of(z, [0, 1]))


def test_by_hand_margin_0_keeps_what_is_not_less_probable(way):
    z = [1.0, 0.5, 2.0, 1.0]
    check(way, z, 0.0, lse([1.0, 2.0, 1.0]) - 1.0, gradient_of(z, [0, 2, 3]))


def test_by_hand_a_lone_target_gets_loss_0_and_gradient_0(way):
    check(way, [1.0, 0.5, -2.0], 0.0, 0.0, [0.0, 0.0, 0.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_target_is_kept_whatever_the_rounding(linear, dtype):
    hidden, weight = torch.randn(50, 33).to(dtype), torch.randn(70, 33).to(dtype)
    target = torch.arange(50)
    loss, stats = linear(
        hidden, weight, target, 0.0, softcap=7.3, logit_scale=0.37, reduction="none", stats=True
    )
    assert (stats.kept >= 1).all()
    assert loss.isfinite().all()


def test_the_target_is_kept_by_index_and_not_by_value():
    z, target = torch.randn(1, 3, 5), torch.tensor([[0, 4, 2]])
    spec = Spec(margin=torch.full((1, 1), -9.0))  # no user gets this far with it
    below, dropped = masks(z, target, spec)
    assert torch.equal(~below, torch.eye(5, dtype=torch.bool)[target])
    assert not dropped.any()


@pytest.mark.parametrize("where", [0, 1], ids=["target", "other"])
def test_a_nan_logit_shows(way, where):
    z = torch.tensor([[1.0, 0.5, -5.0]])
    z[0, where] = nan
    z.requires_grad_()
    loss = way(z, torch.tensor([0]), 1.0)
    loss.backward()
    assert loss.isnan()
    assert z.grad.isnan().any()


def test_by_hand_protect(way):
    protect = torch.tensor([False, True, False, False, True])
    check(way, Z, INF, lse([1.0, -1.0, -3.0]) - 1.0, gradient_of(Z, [0, 2, 3]), protect=protect)


def test_by_hand_protect_does_nothing_for_a_protected_target(way):
    protect = torch.tensor([True, True, False, False, True])
    check(way, Z, INF, lse(Z) - 1.0, gradient_of(Z, range(5)), protect=protect)


def test_by_hand_protect_with_a_margin(way):
    protect = torch.tensor([False, False, True, False, True])
    check(way, Z, 1.0, lse([1.0, 0.5]) - 1.0, gradient_of(Z, [0, 1]), protect=protect)


def test_by_hand_z_loss_is_of_the_kept_log_sum_exp(way):
    total = lse([1.0, 0.5, 2.0])
    p = gradient_of(Z, [0, 1, 4], target=None)
    gradient = [g * (1 + 2 * 0.1 * total) - (i == 0) for i, g in enumerate(p)]
    check(way, Z, 1.0, total - 1.0 + 0.1 * total**2, gradient, z_loss=0.1)


def test_by_hand_label_smoothing_spreads_over_kept_entries(way):
    total = lse([1.0, 0.5, 2.0])
    value = 0.8 * (total - 1.0) + 0.2 * (total - (1.0 + 0.5 + 2.0) / 3)
    p = gradient_of(Z, [0, 1, 4], target=None)
    gradient = [(g - 0.2 / 3) * (g > 0) - 0.8 * (i == 0) for i, g in enumerate(p)]
    check(way, Z, 1.0, value, gradient, label_smoothing=0.2)


def test_by_hand_logit_scale_comes_before_the_margin(way):
    scaled = [2 * x for x in Z]  # 2, 1, -2, -6, 4: at margin 1 the tie at 1 stays
    value = lse([2.0, 1.0, 4.0]) - 2.0
    check(way, Z, 1.0, value, gradient_of(scaled, [0, 1, 4], factor=2.0), logit_scale=2.0)


def test_by_hand_softcap_comes_before_the_scale(linear):
    capped = [3.0 * tanh(x / 3.0) for x in Z]  # .96, .50, -.96, -2.28, 1.75
    z = [0.5 * x for x in capped]  # the threshold is .48 - .6
    slope = [0.5 * (1 - (x / 3.0) ** 2) for x in capped]
    gradient = [g * s for g, s in zip(gradient_of(z, [0, 1, 4]), slope, strict=True)]

    def way(x, *arguments, **options):
        return linear(x, torch.eye(5, dtype=x.dtype), *arguments, **options)

    value = lse([z[0], z[1], z[4]]) - z[0]
    check(way, Z, 0.6, value, gradient, softcap=3.0, logit_scale=0.5)


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ({"reduction": "sum"}, (1, 1)),
        ({}, (1 / 2, 1 / 2)),
        ({"normalizer": 5.0}, (1 / 5, 1 / 5)),
        ({"normalizer": torch.tensor(5.0)}, (1 / 5, 1 / 5)),
        ({"token_weights": torch.tensor([3.0, 1.0, 9.0])}, (3 / 4, 1 / 4)),
        ({"token_weights": torch.tensor([3.0, 0.0, 9.0])}, (1, 0)),
        ({"token_weights": torch.zeros(3)}, (0, 0)),
        ({"token_weights": torch.tensor([3.0, 1.0, 9.0]), "reduction": "sum"}, (3, 1)),
        ({"token_weights": torch.tensor([3.0, 1.0, 9.0]), "normalizer": 8.0}, (3 / 8, 1 / 8)),
    ],
)
def test_by_hand_reductions_and_weights(way, options, factors):
    x = torch.tensor([Z, Z[::-1], Z], dtype=torch.float64, requires_grad=True)
    loss = way(x, torch.tensor([0, 1, -100]), 1.0, **options)
    loss.backward()
    # The second token: 2, -3, -1, .5, 1 with target 1, whose threshold, -4, masks nothing.
    single = [lse([1.0, 0.5, 2.0]) - 1.0, lse(Z) + 3.0]
    value = sum(f * y for f, y in zip(factors, single, strict=True))
    assert loss.item() == pytest.approx(value, rel=1e-13)
    expected = [
        gradient_of(Z, [0, 1, 4], factor=factors[0]),
        gradient_of(Z[::-1], range(5), target=1, factor=factors[1]),
        [0.0] * 5,
    ]
    torch.testing.assert_close(x.grad, torch.tensor(expected, dtype=torch.float64))


def test_by_hand_reduction_none(way):
    x = torch.tensor([[Z, Z[::-1]], [Z, Z]], dtype=torch.float64)
    target, weights = torch.tensor([[0, 1], [-100, 4]]), torch.tensor([[3.0, 1.0], [2.0, 1.0]])
    loss = way(x, target, 1.0, reduction="none", token_weights=weights)
    first, second = lse([1.0, 0.5, 2.0]) - 1.0, lse(Z) + 3.0
    expected = [[3 * first, second], [0.0, lse([1.0, 2.0]) - 2.0]]
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64))


def test_masked_entries_get_exactly_zero_gradient_everywhere(linear):
    hidden, weight, bias = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in [(6, 5), (90, 5), (90,)]
    )
    target = (hidden @ weight.T + bias).topk(4).indices[:, 3]
    target[0] = (hidden @ weight.T + bias)[0].argmax()  # which nothing else is near
    loss, stats = linear(hidden, weight, target, 0.05, bias=bias, stats=True)
    loss.backward()
    assert 0 < stats.touched.sum() < len(weight)
    assert (weight.grad[~stats.touched] == 0).all()
    assert (bias.grad[~stats.touched] == 0).all()
    assert (weight.grad[stats.touched] != 0).any(-1).all()
    alone = (stats.kept <= 1)[:, None].expand_as(hidden)
    assert alone.any()
    assert (hidden.grad[alone] == 0).all()


def test_extreme_logits_neither_overflow_nor_lose_the_target(way):
    z = torch.tensor([[1e4, 1e4 - 1, -1e4], [-1e4, 1e4, 0.0]], requires_grad=True)
    loss = way(z, torch.tensor([0, 0]), 2.0, reduction="none")
    assert loss.tolist() == pytest.approx([log(1 + exp(-1)), 2e4], rel=1e-6)
    loss.sum().backward()
    assert z.grad[0].tolist() == pytest.approx(gradient_of([1.0, 0.0, 0.0], [0, 1]), rel=1e-5)
    assert z.grad[1].tolist() == [-1.0, 1.0, 0.0]


@pytest.mark.parametrize("z", [[-inf, 1.0, 0.0], [inf, 1.0, 0.0], [1.0, inf, 0.0], [0.0, -inf, 0]])
@pytest.mark.parametrize("margin", [1.0, INF])
def test_infinite_logits_show_as_in_cross_entropy(z, margin):
    x, target = torch.tensor([z]), torch.tensor([0])
    ours = er.thresholded_cross_entropy(x, target, margin)
    torch.testing.assert_close(ours, F.cross_entropy(x, target), equal_nan=True)


# ---- Derivatives


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("variant", TRUE_GRADIENT, ids=name)
def test_gradcheck_from_logits(variant, options):
    z, target = logits_problem(options.get("logit_scale", 1.0))

    def loss(z):
        return er.thresholded_cross_entropy(z, target, MARGIN, variant=variant, **options)

    assert gradcheck(loss, z)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("variant", TRUE_GRADIENT, ids=name)
def test_gradcheck_of_a_linear_head(linear, variant, options):
    scale, softcap = options.get("logit_scale", 1.0), None if options else 3.0
    hidden, weight, bias, target = linear_problem(scale, softcap)

    def loss(hidden, weight, bias):
        return linear(
            hidden, weight, target, MARGIN, bias=bias, variant=variant, softcap=softcap, **options
        )

    assert gradcheck(loss, (hidden, weight, bias), fast_mode=True)  # along random directions


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_second_derivatives_of_the_reference(options):
    scale = options.get("logit_scale", 1.0)
    z, target = logits_problem(scale)
    assert gradgradcheck(lambda z: er.thresholded_cross_entropy(z, target, MARGIN, **options), z)
    hidden, weight, bias, target = linear_problem(scale, 3.0)

    def loss(hidden, weight, bias):
        return er.linear_thresholded_cross_entropy(
            hidden, weight, target, MARGIN, bias=bias, softcap=3.0, backend="reference", **options
        )

    assert gradgradcheck(loss, (hidden, weight, bias))
