"""What the Triton backend must do, on any device: interpreted on a CPU, and compiled on a GPU.

``ours`` is the backend in a dtype, ``eager`` what a user would write in that dtype (a linear layer,
then the loss of its logits in float32), ``exact`` the reference in float64 on the same inputs,
which are exact in every dtype. Modules that import these tests bring the fixtures ``device``,
``dtypes``, and of generated cases their ``count`` and the ``most`` tokens that one may have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import elbowroom as er
from elbowroom import variants
from elbowroom.losses import fused
from elbowroom.losses.kernels import settings
from tests.losses.cases import VARIANTS, Case, broken, make
from tests.losses.problems import ALL, MARGIN, linear_problem, name, value_and_gradients
from tests.losses.test_chunked import DIFFERENTIABLE, error

INF = float("inf")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch) -> None:
    """Make chunks so small that most cases have several; entries are listed for few tokens."""
    monkeypatch.setattr(fused, "BUDGET", 20_000)
    monkeypatch.setattr(fused, "ALIGNED", 8)
    choose(monkeypatch, listed=8, share=0.0)


def choose(monkeypatch, **chosen) -> None:
    """Let kernels run with other settings than the device's own."""
    before = settings.CHOSEN or settings.of(torch.device(fused.DEVICES[0]))
    monkeypatch.setattr(settings, "CHOSEN", replace(before, **chosen))


def on(case: Case, device: str) -> Case:
    """Move a case."""

    def moved(x: Any) -> Any:
        if isinstance(x, variants.RareOnly):
            return variants.RareOnly(x.rows.to(device))
        return x.to(device) if isinstance(x, Tensor) else x

    options = {key: moved(x) for key, x in case.options.items()}
    tensors = (case.hidden, case.weight, case.target, case.margin)
    hidden, weight, target, margin = map(moved, tensors)
    return replace(
        case, hidden=hidden, weight=weight, target=target, margin=margin, options=options
    )


def eagerly(case: Case, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return loss and gradients of a linear layer in ``dtype`` and the loss of its logits."""
    options = dict(case.options)
    bias, cap, scale = (options.pop(x, None) for x in ("bias", "softcap", "logit_scale"))
    inputs = {"hidden": case.hidden, "weight": case.weight, "bias": bias}
    leaves = {
        key: x.to(dtype, copy=True).requires_grad_() for key, x in inputs.items() if x is not None
    }
    runs = case.weight.ndim == 3
    margin = case.margin
    if isinstance(margin, er.margins.ByNorms):
        rows = _rows(case.weight, case.target, runs)
        margin = margin.of(case.hidden.to(dtype), rows.to(dtype)).float()
        margin = margin.masked_fill(case.target == -100, INF)

    def logits(weight: Tensor, bias: Tensor | None) -> Tensor:
        hidden = leaves["hidden"].reshape(-1, *leaves["hidden"].shape[-2:])
        weight = weight.reshape(-1, *weight.shape[-2:])
        z = torch.stack([F.linear(h, w) for h, w in zip(hidden, weight, strict=True)]).float()
        if bias is not None:
            z = z + bias.reshape(len(z), 1, -1).float()
        z = z if cap is None else cap * torch.tanh(z / cap)
        return z.view(*leaves["hidden"].shape[:-1], -1) * (scale or 1.0)

    z = logits(leaves["weight"], leaves.get("bias"))
    if isinstance(options["variant"], variants.Decoupled):
        fixed = leaves["weight"].detach(), None if bias is None else leaves["bias"].detach()
        at = case.target.clamp(min=0)[..., None]
        below = z.detach() < z.detach().gather(-1, at) - _column(margin, z)
        z = torch.where(below.scatter(-1, at, False), logits(*fixed), z)
        options["variant"], margin = None, INF
    parts = []
    for r in range(len(case.weight) if runs else 1):

        def of(x: Any, r: int = r) -> Any:
            return x[r] if runs and isinstance(x, Tensor) and x.ndim == case.target.ndim else x

        own = options | {"token_weights": of(options.get("token_weights"))}
        ids = case.target[r] if runs else case.target
        rows = z[r] if runs else z
        parts.append(er.thresholded_cross_entropy(rows, ids, of(margin), **own))
    loss = torch.stack(parts) if runs else parts[0]
    g = torch.Generator().manual_seed(case.seed)
    upstream = torch.rand(loss.shape, generator=g, dtype=torch.float64)
    loss.backward(upstream.to(loss.dtype).to(loss.device))
    return {"loss": loss.detach()} | {f"d_{key}": x.grad for key, x in leaves.items()}


def _rows(weight: Tensor, target: Tensor, runs: bool) -> Tensor:
    ids = target.clamp(min=0)
    if not runs:
        return weight[ids]
    return torch.stack([w[i] for w, i in zip(weight, ids, strict=True)])


def _column(margin: Any, z: Tensor) -> Any:
    if not isinstance(margin, Tensor) or margin.ndim == 0:
        return margin
    return margin.to(z.dtype)[..., None]


def compare(case: Case, dtype: torch.dtype) -> tuple[bool, list[str]]:
    """Return whether an entry crossed its threshold, and a line for each figure not good enough."""
    exact, ours = case.call(torch.float64, "reference"), case.call(dtype, "triton")
    if not all(torch.equal(ours[name], exact[name]) for name in ("kept", "touched")):
        return True, []  # rounding moved it: such cases are counted apart
    eager = eagerly(case, dtype)
    bad = []
    for key in (key for key in DIFFERENTIABLE if key in exact):
        e, bound = error(ours[key], exact[key]), error(eager[key], exact[key])
        if not e <= bound + 4 * torch.finfo(dtype).eps:
            bad.append(f"seed {case.seed}, {key}: {e:.2e} against {bound:.2e}")
    return False, bad


def generated(device: str, count: int, most: int, first: int) -> list[Case]:
    """Return cases on a device, each variant in turn."""
    found: list[Case] = []
    while len(found) < count:
        case = make(first, VARIANTS[len(found) % len(VARIANTS)])
        found += [on(case, device)] if case.target.numel() <= most else []
        first += 1
    return found


def test_error_is_at_most_that_of_the_same_dtype_computed_eagerly(device, dtypes, count, most):
    for dtype in dtypes:
        flipped, bad = 0, []
        for case in generated(device, count, most, 5000):
            crossed, lines = compare(case, dtype)
            flipped += crossed
            bad += lines
        assert not bad, f"{dtype}\n" + "\n".join(bad)
        # bfloat16 rounds logits so far that thresholds are crossed in many a case
        assert flipped <= count / (2 if dtype == torch.bfloat16 else 20)


def test_statistics_are_the_references(device, count, most):
    """Where no entry crosses its threshold; gradients are judged above, by float64."""
    crossed = 0
    for case in generated(device, count, most, 6000):
        exact, ours = (case.call(torch.float32, backend) for backend in ("reference", "triton"))
        if not all(torch.equal(ours[key], exact[key]) for key in ("kept", "touched")):
            crossed += 1
            continue
        for key in ("argmax", "rank"):
            assert torch.equal(ours[key], exact[key]), (case.seed, key)
        for key in ("loss", "log_probability"):
            torch.testing.assert_close(ours[key], exact[key], rtol=1e-5, atol=1e-5)
    assert crossed <= count / 20


def test_nan_and_infinity_show_as_in_the_reference(device, count, most):
    shown = 0
    for case in map(broken, generated("cpu", count, most, 7000)):
        case = on(case, device)
        exact, ours = (case.call(torch.float32, backend) for backend in ("reference", "triton"))
        for key in ("loss", "log_probability", "rank"):
            x, y = ours[key], exact[key]
            torch.testing.assert_close(x, y, equal_nan=True, rtol=1e-4, atol=1e-4)
        for key in ("argmax", "kept", "touched"):
            assert torch.equal(ours[key], exact[key]), (case.seed, key)
        number = exact["loss"].isfinite()
        usual = (number & (case.target != -100))[..., None] & exact["d_hidden"].isfinite()
        assert bool((ours["d_hidden"].isfinite() | ~usual).all()), case.seed
        shown += not bool(exact["loss"].isfinite().all())
    assert shown > count / 5


@pytest.mark.parametrize("margin", [1.0, INF])
@pytest.mark.parametrize("value", [float("nan"), INF])
def test_ignored_tokens_may_be_anything(device, margin, value):
    hidden, weight = torch.randn(9, 12, device=device), torch.randn(300, 12, device=device)
    target = torch.arange(9, device=device)
    target[4] = -100
    spoiled = hidden.clone()
    spoiled[4] = value

    def both(states):
        return value_and_gradients(
            lambda h, w: er.linear_thresholded_cross_entropy(
                h, w, target, margin, backend="triton"
            ),
            states,
            weight,
        )

    (loss, (d_hidden, d_weight)), expected = both(spoiled), both(hidden)
    assert torch.equal(loss, expected[0])
    assert torch.equal(d_hidden, expected[1][0])
    assert torch.equal(d_weight, expected[1][1])
    assert not d_hidden[4].any()


@pytest.mark.parametrize("variant", ALL, ids=name)
def test_rows_that_nobody_keeps_get_exactly_nothing(device, variant):
    hidden, weight = torch.randn(7, 12, device=device), torch.randn(700, 12, device=device)
    target = (hidden @ weight.T).argmax(-1)
    if isinstance(variant, variants.RareOnly):
        variant = variants.RareOnly(torch.ones(700, dtype=torch.bool, device=device))
    hidden.requires_grad_()
    weight.requires_grad_()
    loss, stats = er.linear_thresholded_cross_entropy(
        hidden, weight, target, 0.5, variant=variant, stats=True, backend="triton"
    )
    loss.backward()
    if not isinstance(variant, variants.Leaky):
        assert 0 < int(stats.touched.sum()) < 700
    assert bool((weight.grad[~stats.touched] == 0).all())
    assert bool((weight.grad[stats.touched] != 0).any(-1).all())


@pytest.mark.parametrize("count", [0, 5])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_nothing_to_learn_from(device, count, reduction):
    hidden = torch.randn(count, 8, device=device, requires_grad=True)
    weight = torch.randn(130, 8, device=device, requires_grad=True)
    target = torch.full((count,), -100, device=device)
    loss, stats = er.linear_thresholded_cross_entropy(
        hidden, weight, target, 1.0, stats=True, reduction=reduction, backend="triton"
    )
    loss.sum().backward()
    assert not loss.any()
    assert not hidden.grad.any()
    assert not weight.grad.any()
    assert not stats.touched.any()


@pytest.mark.parametrize("needs", range(8))
@pytest.mark.parametrize("margin", [MARGIN, INF])
def test_inputs_that_need_no_gradient_get_none(device, needs, margin):
    *inputs, target = (x.detach().to(device) for x in linear_problem())
    inputs = [x.float() for x in inputs]

    def loss(h, w, b, backend="triton"):
        return er.linear_thresholded_cross_entropy(h, w, target, margin, bias=b, backend=backend)

    leaves = [x.clone().requires_grad_(bool(needs >> i & 1)) for i, x in enumerate(inputs)]
    value = loss(*leaves)
    assert value.requires_grad == (needs > 0)
    if needs:
        value.backward()
    expected = [x.clone().requires_grad_() for x in inputs]
    loss(*expected, backend="reference").backward()
    for x, y in zip(leaves, expected, strict=True):
        if x.requires_grad:
            torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-6)
        else:
            assert x.grad is None


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_two_backward_passes_double_the_gradient(device, reduction):
    hidden, weight, bias, target = (x.detach().to(device) for x in linear_problem())
    leaves = [x.float().requires_grad_() for x in (hidden, weight, bias)]
    loss = er.linear_thresholded_cross_entropy(
        *leaves[:2], target, MARGIN, bias=leaves[2], reduction=reduction, backend="triton"
    ).sum()
    loss.backward(retain_graph=True)
    once = [x.grad.clone() for x in leaves]
    loss.backward()
    for x, y in zip(leaves, once, strict=True):
        assert torch.equal(x.grad, 2 * y)


@pytest.mark.parametrize("variant", [None, variants.Softminus(), variants.Decoupled()], ids=name)
def test_the_same_bits_twice(device, variant):
    hidden, weight = torch.randn(30, 16, device=device), torch.randn(300, 16, device=device)
    target = torch.randint(300, (30,), device=device)

    def once():
        return value_and_gradients(
            lambda h, w: er.linear_thresholded_cross_entropy(
                h, w, target, 2.0, variant=variant, backend="triton"
            ),
            hidden,
            weight,
        )

    (loss, gradients), (again, others) = once(), once()
    assert torch.equal(loss, again)
    assert all(torch.equal(x, y) for x, y in zip(gradients, others, strict=True))


@pytest.mark.parametrize(
    ("listed", "budget", "pieces"),
    [
        (0, 2_000, 2),
        (8, 2_000, 2),
        (1000, 2_000, 2),
        (0, 10**9, 1),
        (8, 10**9, 7),
        (1000, 10**9, 2),
    ],
)
def test_layouts_agree(device, listed, budget, pieces, monkeypatch):
    """However tokens are cut into chunks, in blocks, in what pieces, or listed."""
    count = 140 if pieces == 7 else 40
    hidden, weight = torch.randn(count, 20, device=device), torch.randn(300, 20, device=device)
    target = torch.randint(300, (count,), device=device)
    target[::7] = -100

    def loss(backend):
        return value_and_gradients(
            lambda h, w: er.linear_thresholded_cross_entropy(h, w, target, 1.0, backend=backend),
            hidden,
            weight,
        )

    choose(monkeypatch, listed=listed, pieces=pieces)
    monkeypatch.setattr(settings, "multiprocessors", lambda _: 1)
    monkeypatch.setattr(fused, "BUDGET", budget)
    torch.testing.assert_close(loss("triton"), loss("reference"), rtol=1e-4, atol=1e-6)


def test_float16_gradients_of_a_mean_over_many_tokens_do_not_vanish(device):
    """A coefficient of 1e-5 times a probability is less than float16 can hold."""
    hidden = torch.randn(40, 16, device=device).half()
    weight = (torch.randn(300, 16, device=device) / 4).half()
    target = torch.randint(300, (40,), device=device)
    for margin in (2.0, INF):
        exact = value_and_gradients(
            lambda h, w, margin=margin: er.linear_thresholded_cross_entropy(
                h, w, target, margin, normalizer=1e5, backend="reference"
            ),
            hidden.double(),
            weight.double(),
        )
        ours = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        loss = er.linear_thresholded_cross_entropy(
            *ours, target, margin, normalizer=1e-1, backend="triton"
        )
        loss.backward(torch.tensor(1.0, device=device))
        for x, y in zip(ours, exact[1], strict=True):
            # 0.5 is what `value_and_gradients` gives a single number
            assert error(x.grad.double() / 1e6 * 0.5, y) < 4e-3


@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize(
    "variant", [None, variants.Softminus(), variants.Decoupled(), variants.Leaky(0.2)], ids=name
)
def test_memory_that_nobody_wrote_is_not_read(device, variant):
    """PyTorch fills it with NaN, and integers with their largest, when asked."""
    hidden, weight, bias = (torch.randn(*s, device=device) for s in ((14, 12), (300, 12), (300,)))
    target = torch.randint(300, (14,), device=device)
    target[::6] = -100

    def loss(backend):
        return value_and_gradients(
            lambda h, w, b: er.linear_thresholded_cross_entropy(
                h, w, target, 1.0, bias=b, softcap=9.0, variant=variant, backend=backend
            ),
            hidden,
            weight,
            bias,
        )

    expected = loss("reference")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        found = loss("triton")
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("budget", [2_000, 10**9])
@pytest.mark.parametrize("margin", [1.0, INF])
def test_a_weights_gradient_in_its_own_dtype(device, margin, budget, monkeypatch):
    """As bfloat16 has it on a GPU: sums in float32, and one more rounding."""
    monkeypatch.setattr(fused, "gradient_dtype", lambda dtype: dtype)
    monkeypatch.setattr(fused, "BUDGET", budget)
    hidden, weight = torch.randn(18, 16, device=device), torch.randn(300, 16, device=device) / 4
    hidden, weight = hidden.half(), weight.half()
    target = torch.randint(300, (18,), device=device)

    def loss(backend, h, w, factor=1.0):
        return value_and_gradients(
            lambda h, w: (
                factor
                * er.linear_thresholded_cross_entropy(
                    h, w, target, margin, reduction="sum", backend=backend
                )
            ),
            h,
            w,
        )[1]

    exact = loss("reference", hidden.double(), weight.double())
    for factor in (2.0, 3.0):  # half of it comes to the loss: 1 spares a pass
        for x, y in zip(loss("triton", hidden, weight, factor), exact, strict=True):
            assert x.dtype == torch.float16
            assert error(x.double(), factor * y) < 2e-3


def test_one_row(device):
    hidden = torch.randn(5, 8, device=device, requires_grad=True)
    weight = torch.randn(1, 8, device=device, requires_grad=True)
    loss = er.linear_thresholded_cross_entropy(
        hidden, weight, torch.zeros(5, dtype=torch.long, device=device), 1.0, backend="triton"
    )
    loss.backward()
    assert loss.item() == 0
    assert not hidden.grad.any()
    assert not weight.grad.any()
