"""What the public functions add to the equations: margins, runs, shift, statistics, backends."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
import torch.nn.functional as F

import elbowroom as er
from elbowroom.errors import BackendError
from elbowroom.losses.variants import Leaky, RareOnly
from elbowroom.margins import Annealed, ByNorms
from tests.losses.problems import (
    ALL,
    MARGIN,
    OPTIONS,
    RARE,
    D,
    N,
    V,
    linear_problem,
    name,
    value_and_gradients,
)

R = 3
INF = float("inf")


def same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


# ---- Margins


def each(linear, margin, **options):
    """Return the losses of every token of the usual problem."""
    hidden, weight, bias, target = linear_problem()
    return linear(hidden, weight, target, margin, bias=bias, reduction="none", **options).detach()


def test_a_margin_may_be_a_number_or_a_tensor_of_any_dtype(linear):
    expected = each(linear, 0.5)
    for margin in (torch.tensor(0.5), torch.full((N,), 0.5), torch.full((N,), 0.5).bfloat16()):
        assert torch.equal(each(linear, margin), expected)
    assert torch.equal(each(linear, 2), each(linear, torch.tensor(2)))


def test_a_margin_a_token(linear):
    margin = torch.tensor([0.0, 0.5, 1.0, 2.0, INF], dtype=torch.float64)
    expected = torch.stack([each(linear, float(m))[i] for i, m in enumerate(margin)])
    same(each(linear, margin), expected)


def test_a_margin_of_the_shape_of_target_or_flat(way):
    z, target = torch.randn(2, 3, 7, dtype=torch.float64), torch.randint(7, (2, 3))
    margin = torch.rand(2, 3)
    expected = way(z.view(6, 7), target.view(6), margin.view(6), reduction="none").view(2, 3)
    same(way(z, target, margin, reduction="none"), expected)
    same(way(z, target, margin.view(6), reduction="none"), expected)


def test_nothing_differentiates_through_a_margin(way):
    z = torch.randn(4, 7, requires_grad=True)
    margin = torch.rand(4, requires_grad=True)
    way(z, torch.arange(4), margin, variant=er.variants.Softminus()).backward()
    assert margin.grad is None


@pytest.mark.parametrize("norms", ["both", "target", "hidden"])
def test_by_norms_is_the_margin_of_its_numbers(linear, norms):
    hidden, weight, _, target = linear_problem()
    at = target.clamp(min=0)
    margin = torch.full((N,), 0.3, dtype=torch.float64)
    margin = margin * (1 if norms == "target" else hidden.detach().norm(dim=-1))
    margin = margin * (1 if norms == "hidden" else weight.detach()[at].norm(dim=-1))
    assert not torch.equal(each(linear, margin), each(linear, INF))
    same(each(linear, ByNorms(0.3, norms)), each(linear, margin))
    # Norms are of unscaled vectors.
    same(
        each(linear, ByNorms(0.3, norms), logit_scale=0.1, softcap=2.0),
        each(linear, margin, logit_scale=0.1, softcap=2.0),
    )


def test_by_norms_passes_over_ignored_tokens_that_are_not_numbers(linear):
    hidden, weight, bias, target = (x.detach().clone() for x in linear_problem())
    expected = linear(hidden, weight, target, ByNorms(0.3), bias=bias)
    hidden[target == -100] = float("nan")
    assert torch.equal(linear(hidden, weight, target, ByNorms(0.3), bias=bias), expected)


@pytest.mark.parametrize("progress", [0.25, torch.tensor(0.25)])
def test_an_annealed_margin(linear, progress):
    same(each(linear, Annealed(0.5, 2.5), progress=progress), each(linear, 1.0))
    rule = Annealed(ByNorms(0.1), ByNorms(0.5))
    same(each(linear, rule, progress=progress), each(linear, ByNorms(0.2)))
    z, target = torch.randn(4, V), torch.arange(4)
    loss = er.thresholded_cross_entropy(z, target, Annealed(0.5, 2.5), progress=progress)
    same(loss, er.thresholded_cross_entropy(z, target, 1.0))


def test_progress_does_nothing_to_other_margins(linear):
    assert torch.equal(each(linear, 1.0, progress=0.5), each(linear, 1.0))
    assert torch.equal(each(linear, ByNorms(0.3), progress=0.5), each(linear, ByNorms(0.3)))


# ---- Runs: a population is as many losses

RUN_MARGINS = {
    "number": 1.0,
    "0-d": torch.tensor(0.5),
    "R": torch.tensor([0.5, 1.0, INF], dtype=torch.float64),
    "RN": torch.linspace(0.1, 3.0, R * N, dtype=torch.float64).view(R, N),
    "alpha": ByNorms(0.3),
    "alphas": ByNorms(torch.tensor([0.1, 0.3, 0.5], dtype=torch.float64)),
    "annealed": Annealed(torch.tensor([0.5, 1.0, 2.0]), 3.0),
}


def of_run(x, i):
    """Return what belongs to one run: of a tensor, a rule or a variant, row ``i``."""
    if isinstance(x, ByNorms):
        return ByNorms(of_run(x.alpha, i), x.norms)
    if isinstance(x, Annealed):
        return Annealed(of_run(x.start, i), of_run(x.end, i))
    if isinstance(x, RareOnly):
        return RareOnly(of_run(x.rows, i))
    if isinstance(x, torch.Tensor) and x.ndim and x.shape[0] == R:
        return x[i]
    return x


def check_runs(linear, margin, **options):
    hidden, weight, bias, target = linear_problem(runs=R)

    def together(hidden, weight, bias):
        return linear(hidden, weight, target, margin, bias=bias, **options)

    def alone(hidden, weight, bias):
        return torch.stack(
            [
                linear(
                    hidden[i],
                    weight[i],
                    target[i],
                    of_run(margin, i),
                    bias=bias[i],
                    **{k: of_run(x, i) for k, x in options.items()},
                )
                for i in range(R)
            ]
        )

    ours = value_and_gradients(together, hidden, weight, bias)
    assert ours[0].shape == ((R, N) if options.get("reduction") == "none" else (R,))
    same(ours, value_and_gradients(alone, hidden, weight, bias))


@pytest.mark.parametrize("margin", RUN_MARGINS.values(), ids=RUN_MARGINS)
def test_runs_equal_a_loop_for_every_margin(linear, margin):
    check_runs(linear, margin, progress=0.25)


@pytest.mark.parametrize("variant", ALL, ids=name)
def test_runs_equal_a_loop_for_every_variant(linear, variant):
    check_runs(linear, RUN_MARGINS["R"], variant=variant, softcap=4.0)
    check_runs(linear, MARGIN, variant=variant, **OPTIONS["smooth"])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_runs_equal_a_loop_for_options_a_run(linear, reduction):
    rows = torch.rand(R, V) < 0.5
    options = {
        "protect": torch.rand(R, V) < 0.5,
        "token_weights": torch.rand(R, N),
        "reduction": reduction,
        "logit_scale": 0.8,
    }
    check_runs(linear, MARGIN, variant=RareOnly(rows), **options)
    check_runs(linear, MARGIN, protect=RARE, variant=RareOnly(RARE), reduction=reduction)
    if reduction == "mean":
        check_runs(linear, MARGIN, normalizer=torch.tensor([2.0, 5.0, 9.0]))
        check_runs(linear, MARGIN, normalizer=torch.tensor(5.0))


def test_statistics_of_runs_are_those_of_each_run(linear):
    hidden, weight, bias, target = linear_problem(runs=R)
    _, together = linear(hidden, weight, target, MARGIN, bias=bias, stats=True)
    for i in range(R):
        _, alone = linear(hidden[i], weight[i], target[i], MARGIN, bias=bias[i], stats=True)
        same(together.log_probability[i], alone.log_probability)
        for field in ("rank", "argmax", "kept", "touched"):
            assert torch.equal(getattr(together, field)[i], getattr(alone, field))


def test_a_run_alone_has_a_run_dimension(linear):
    hidden, weight, _, target = linear_problem(runs=1)
    loss, stats = linear(hidden, weight, target, MARGIN, stats=True)
    assert loss.shape == (1,)
    assert stats.touched.shape == (1, V)
    assert torch.equal(loss[0], linear(hidden[0], weight[0], target[0], MARGIN))


def test_runs_may_have_further_dimensions(linear):
    _, weight, _, _ = linear_problem(runs=R)
    wide = torch.randn(R, 2, 4, D, dtype=torch.float64)
    target = torch.randint(V, (R, 2, 4))
    loss, stats = linear(wide, weight, target, MARGIN, reduction="none", stats=True)
    flat = linear(wide.view(R, 8, D), weight, target.view(R, 8), MARGIN, reduction="none")
    assert torch.equal(loss.view(R, 8), flat)
    assert stats.rank.shape == (R, 2, 4)


# ---- Shift


@pytest.mark.parametrize("shift", [1, 2])
def test_shift_is_slicing(linear, shift):
    hidden = torch.randn(2, 5, D, dtype=torch.float64)
    weight = torch.randn(V, D, dtype=torch.float64)
    ids = torch.randint(V, (2, 5))
    ids[0, 4] = -100
    weights, margin = torch.rand(2, 5), 2 * torch.rand(2, 5)

    def ours(hidden, weight, margin=margin):
        return linear(hidden, weight, ids, margin, shift=shift, token_weights=weights)

    def sliced(hidden, weight):
        return linear(
            hidden[:, :-shift],
            weight,
            ids[:, shift:],
            margin[:, shift:],
            token_weights=weights[:, shift:],
        )

    expected = value_and_gradients(sliced, hidden, weight)
    same(value_and_gradients(ours, hidden, weight), expected)
    # A margin that is cut already, or flat, is used as it is.
    for cut in (margin[:, shift:], margin[:, shift:].reshape(-1)):
        same(ours(hidden, weight, cut), expected[0])
    _, stats = linear(hidden, weight, ids, margin, shift=shift, stats=True)
    assert stats.kept.shape == (2, 5 - shift)
    losses = linear(hidden, weight, ids, margin, shift=shift, reduction="none")
    assert losses.shape == (2, 5 - shift)


def test_shift_with_runs_and_without_a_batch(linear):
    hidden, weight, bias, ids = linear_problem(runs=R)
    margin = RUN_MARGINS["RN"]
    expected = linear(hidden[:, :-1], weight, ids[:, 1:], margin[:, 1:], bias=bias)
    same(linear(hidden, weight, ids, margin, bias=bias, shift=1), expected)
    alone = linear(hidden[0], weight[0], ids[0], margin[0], bias=bias[0], shift=1)
    same(alone, expected[0])


@pytest.mark.parametrize("shift", [3, 4])
def test_a_shift_that_leaves_nothing_gives_zero(linear, shift):
    hidden = torch.randn(2, 3, D, requires_grad=True)
    weight, ids = torch.randn(V, D), torch.randint(V, (2, 3))
    loss = linear(hidden, weight, ids, torch.rand(2, 3), shift=shift)
    loss.backward()
    assert loss.item() == 0
    assert (hidden.grad == 0).all()


# ---- Statistics


def test_statistics_by_hand(way):
    z = torch.tensor([[1.0, 0.5, -1.0, -3.0, 2.0], [0.0, 0.0, 0.0, 1.0, 0.0], [0.0] * 5])
    loss, stats = way(z, torch.tensor([0, 2, -100]), 1.0, stats=True)
    first = 1.0 - log(sum(map(exp, z[0].tolist())))
    second = -log(4 + exp(1.0))
    assert stats.log_probability.tolist() == pytest.approx([first, second, 0.0], rel=1e-6)
    assert stats.rank.tolist() == [2.0, 1 + 1 + 3 / 2, 0.0]
    assert stats.argmax.tolist() == [4, 3, -1]
    assert stats.kept.tolist() == [3, 5, 0]
    assert stats.touched.tolist() == [True] * 5
    assert torch.equal(loss, way(z, torch.tensor([0, 2, -100]), 1.0))
    _, stats = way(z, torch.tensor([0, -100, -100]), 1.0, stats=True)
    assert stats.touched.tolist() == [True, True, False, False, True]


@pytest.mark.parametrize("protect", [None, torch.rand(40, generator=torch.Generator()) < 0.3])
def test_statistics_against_a_loop(linear, protect):
    hidden, weight = torch.randn(30, 8), torch.randn(40, 8)
    target = torch.randint(40, (30,))
    target[::4] = -100
    _, stats = linear(hidden, weight, target, 2.0, stats=True, protect=protect)
    touched = set()
    for n, (z, y) in enumerate(zip((hidden @ weight.T).tolist(), target.tolist(), strict=True)):
        if y == -100:
            assert stats.rank[n] == stats.log_probability[n] == stats.kept[n] == 0
            assert stats.argmax[n] == -1
            continue
        free = [protect is None or protect[y] or not protect[i] for i in range(40)]
        kept = [i for i in range(40) if i == y or (z[i] >= z[y] - 2.0 and free[i])]
        touched.update(kept)
        assert stats.kept[n] == len(kept)
        assert stats.rank[n] == 1 + sum(x > z[y] for x in z)
        assert stats.argmax[n] == z.index(max(z))
        expected = z[y] - log(sum(map(exp, z)))
        assert stats.log_probability[n].item() == pytest.approx(expected, abs=1e-5)
    assert {i for i in range(40) if stats.touched[i]} == touched


def test_leaky_touches_every_row(linear):
    hidden, weight, bias, target = linear_problem()
    _, stats = linear(hidden, weight, target, 0.0, bias=bias, variant=Leaky(0.3), stats=True)
    assert stats.touched.all()
    assert (stats.kept[target != -100] < V).any()


@pytest.mark.parametrize("variant", ALL, ids=name)
def test_rows_not_touched_have_no_gradient(linear, variant):
    hidden, weight = torch.randn(4, 8), torch.randn(60, 8, requires_grad=True)
    if isinstance(variant, RareOnly):
        variant = RareOnly(torch.arange(60) % 2 == 0)
    loss, stats = linear(hidden, weight, torch.arange(4), 0.1, variant=variant, stats=True)
    loss.backward()
    assert (weight.grad[~stats.touched] == 0).all()
    assert stats.touched.all() == isinstance(variant, Leaky)


def test_statistics_carry_no_gradient(linear):
    hidden, weight, _, target = linear_problem()
    _, stats = linear(hidden, weight, target, MARGIN, stats=True)
    assert not any(x.requires_grad for x in vars(stats).values())


# ---- Shapes, dtypes, backends


def test_one_token_without_a_batch(way):
    z = torch.tensor([1.0, 0.5, -1.0])
    loss, stats = way(z, torch.tensor(0), 1.0, stats=True)
    assert loss.item() == pytest.approx(log(1 + exp(-0.5)), rel=1e-6)
    assert stats.rank.shape == ()
    assert way(z, torch.tensor(0), torch.tensor(1.0), reduction="none").shape == ()


def test_leading_dimensions_are_flattened(linear):
    hidden, weight = torch.randn(2, 3, 4, D), torch.randn(V, D)
    target = torch.randint(V, (2, 3, 4))
    losses = linear(hidden, weight, target, 1.0, reduction="none")
    assert losses.shape == (2, 3, 4)
    flat = linear(hidden.view(24, D), weight, target.view(24), 1.0, reduction="none")
    assert torch.equal(losses.view(24), flat)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_targets_of_any_integer_dtype(way, dtype):
    z, target = torch.randn(4, 7), torch.arange(4)
    assert torch.equal(way(z, target.to(dtype), 1.0), way(z, target, 1.0))
    assert torch.equal(
        way(z, target.to(dtype), 1.0, ignore_index=2), way(z, target, 1.0, ignore_index=2)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_losses_are_float32_or_float64_and_gradients_of_the_inputs_dtype(linear, dtype):
    hidden, weight, bias, target = linear_problem()
    inputs = [x.detach().to(dtype).requires_grad_() for x in (hidden, weight, bias)]
    loss = linear(*inputs[:2], target, 1.0, bias=inputs[2])
    loss.backward()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert {x.grad.dtype for x in inputs} == {dtype}


@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded"])
def test_inputs_need_not_be_contiguous(linear, layout):
    hidden, weight, bias, target = linear_problem()
    make = {
        "transposed": lambda x: x.t().contiguous().t(),
        "sliced": lambda x: torch.stack([x, x], -1)[..., 0],
        "expanded": lambda x: x[:1].expand(x.shape),
    }[layout]

    def loss(hidden, weight, prepare):
        hidden, weight = prepare(make(hidden)), prepare(make(weight))
        return linear(hidden, weight, target, MARGIN, bias=bias.detach())

    ours = value_and_gradients(lambda h, w: loss(h, w, lambda x: x), hidden, weight)
    same(
        ours, value_and_gradients(lambda h, w: loss(h, w, torch.Tensor.contiguous), hidden, weight)
    )


def test_the_default_is_the_chunked_backend_and_means_over_tokens():
    hidden, weight = torch.randn(4, 8), torch.randn(9, 8)
    target = torch.arange(4)
    auto, chunked, reference = (
        er.linear_thresholded_cross_entropy(hidden, weight, target, INF, backend=backend)
        for backend in ("auto", "chunked", "reference")
    )
    assert torch.equal(auto, er.linear_thresholded_cross_entropy(hidden, weight, target, INF))
    assert torch.equal(auto, chunked)
    torch.testing.assert_close(auto, reference)
    assert torch.equal(reference, F.cross_entropy(hidden @ weight.T, target))


def test_triton_says_that_it_is_for_gpus():
    with pytest.raises(
        BackendError, match=r"'triton' cannot run here: .* are on cpu.* pass 'auto'"
    ):
        er.linear_thresholded_cross_entropy(
            torch.zeros(1, 2), torch.zeros(3, 2), torch.tensor([0]), 1.0, backend="triton"
        )


# ---- What is not a number


@pytest.mark.parametrize("value", [float("nan"), INF, -INF])
@pytest.mark.parametrize("variant", ALL, ids=name)
def test_ignored_tokens_may_be_anything(linear, variant, value):
    hidden, weight, bias, target = linear_problem()

    def loss(hidden, weight, bias):
        return linear(hidden, weight, target, MARGIN, bias=bias, variant=variant, z_loss=0.1)

    expected = value_and_gradients(loss, hidden, weight, bias)
    broken = hidden.detach().clone()
    broken[target == -100] = value
    ours, gradients = value_and_gradients(loss, broken, weight, bias)
    assert torch.equal(ours, expected[0])
    for x, y in zip(gradients, expected[1], strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("value", [float("nan"), INF, -INF])
def test_ignored_logits_may_be_anything(value):
    z = torch.randn(3, 5)
    z[1] = value
    z.requires_grad_()
    er.thresholded_cross_entropy(z, torch.tensor([0, -100, 1]), 1.0).backward()
    assert z.grad.isfinite().all()
    assert (z.grad[1] == 0).all()


@pytest.mark.parametrize("value", [float("nan"), INF])
@pytest.mark.parametrize("margin", [1.0, INF])
def test_counted_tokens_that_are_not_numbers_show_as_in_cross_entropy(linear, value, margin):
    hidden, weight = torch.randn(3, D), torch.randn(V, D)
    hidden[1, 0] = value
    target = torch.tensor([0, 1, 2])
    z = hidden @ weight.T
    ours = linear(hidden, weight, target, margin, reduction="none")
    theirs = F.cross_entropy(z, target, reduction="none")
    assert torch.equal(ours.isfinite(), theirs.isfinite())
    assert not linear(hidden, weight, target, margin).isfinite()


@pytest.mark.parametrize("value", [float("nan"), INF, -INF])
@pytest.mark.parametrize("variant", ALL, ids=name)
def test_what_equalization_drops_may_be_anything(linear, variant, value):
    """A protected row is out of the loss of other targets, whatever its logit."""
    hidden, weight, bias, target = linear_problem()
    protect = torch.zeros(V, dtype=torch.bool)
    protect[V - 1] = True
    target = torch.where(target == V - 1, 0, target)

    def loss(hidden, weight, bias):
        options = {"label_smoothing": 0.1, "z_loss": 0.1, "protect": protect, "variant": variant}
        return linear(hidden, weight, target, MARGIN, bias=bias, **options)

    expected = value_and_gradients(loss, hidden, weight, bias)
    broken = bias.detach().clone()
    broken[V - 1] = value
    ours, gradients = value_and_gradients(loss, hidden, weight, broken)
    torch.testing.assert_close(ours, expected[0])
    for x, y in zip(gradients, expected[1], strict=True):
        torch.testing.assert_close(x, y)


def test_an_impossible_target_costs_infinitely_with_smoothing_too(linear):
    z = torch.tensor([[-INF, 1.0, 0.0]])
    loss = linear(torch.ones(1, 1), torch.zeros(3, 1), torch.tensor([0]), 1.0, bias=z[0])
    smoothed = linear(
        torch.ones(1, 1), torch.zeros(3, 1), torch.tensor([0]), 1.0, bias=z[0], label_smoothing=0.1
    )
    assert loss == smoothed == INF


def test_weights_of_ignored_tokens_may_be_anything(linear):
    hidden, weight, _, target = linear_problem()
    usual = torch.linspace(1, 2, len(target), dtype=torch.float64)
    broken = usual.masked_fill(target == -100, float("nan"))

    def loss(token_weights):
        return value_and_gradients(
            lambda h, w: linear(h, w, target, MARGIN, token_weights=token_weights), hidden, weight
        )

    expected, ours = loss(usual), loss(broken)
    assert torch.equal(ours[0], expected[0])
    assert all(torch.equal(x, y) for x, y in zip(ours[1], expected[1], strict=True))


def test_no_tokens_of_all_parts_give_0(linear):
    """Where gradients are accumulated, the normalizer counts the tokens of all parts: even none."""
    hidden, weight, _, target = linear_problem()
    nothing = torch.full_like(target, -100)
    count = (nothing != -100).sum()
    loss, gradients = value_and_gradients(
        lambda h, w: linear(h, w, nothing, MARGIN, normalizer=count), hidden, weight
    )
    assert loss == 0
    assert all((x == 0).all() for x in gradients)


@pytest.mark.parametrize("where", [0, 2])
def test_statistics_of_a_nan_are_none(way, where):
    z = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    z[0, where] = float("nan")
    _, stats = way(z, torch.tensor([0, 1]), 1.0, stats=True)
    assert stats.log_probability.isnan().tolist() == [True, False]
    assert stats.rank.isnan().tolist() == [True, False]
    assert stats.rank[1] == 2
