"""The chunked backend inside PyTorch: autograd, torch.compile, autocast, and its memory."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import elbowroom as er
from elbowroom.errors import BackendError
from elbowroom.losses import chunked, operator, products
from elbowroom.losses.variants import RareOnly
from tests.losses.problems import (
    ALL,
    MARGIN,
    D,
    N,
    V,
    linear_problem,
    name,
    value_and_gradients,
)

chunked_loss = partial(er.linear_thresholded_cross_entropy, backend="chunked")
SWEEP = operator._sweep._init_fn  # the operator, as an ordinary function


def problem32(n=12, v=40, d=8, dtype=torch.float32):
    hidden, weight = torch.randn(n, d).to(dtype), torch.randn(v, d).to(dtype)
    target = torch.randint(v, (n,))
    target[3] = -100
    return hidden.requires_grad_(), weight.requires_grad_(), target


def same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


# ---- Autograd


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_second_derivative_is_refused(reduction):
    hidden, weight, _, target = linear_problem()
    loss = chunked_loss(hidden, weight, target, MARGIN, reduction=reduction).sum()
    with pytest.raises(BackendError, match=r"first derivatives only.* backend='reference'"):
        torch.autograd.grad(loss, hidden, create_graph=True)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_two_backward_passes_double_the_gradient(linear, reduction):
    hidden, weight, bias, target = linear_problem()
    loss = linear(hidden, weight, target, MARGIN, bias=bias, reduction=reduction).sum()
    loss.backward(retain_graph=True)
    once = [x.grad.clone() for x in (hidden, weight, bias)]
    loss.backward()
    for x, y in zip((hidden, weight, bias), once, strict=True):
        assert torch.equal(x.grad, 2 * y)


@pytest.mark.parametrize("factor", [1.0, 3.0, 0.0, -0.5])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_upstream_gradient_scales(linear, reduction, factor):
    hidden, weight, bias, target = linear_problem()

    def loss(hidden, weight, bias):
        return linear(hidden, weight, target, MARGIN, bias=bias, reduction=reduction)

    _, once = value_and_gradients(loss, hidden, weight, bias)
    _, ours = value_and_gradients(lambda *x: factor * loss(*x), hidden, weight, bias)
    same(ours, tuple(factor * x for x in once))


def test_runs_have_upstream_gradients_of_their_own(linear):
    hidden, weight, _, target = linear_problem(runs=3)
    loss = linear(hidden, weight, target, MARGIN)
    upstream = torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64)
    loss.backward(upstream)
    for i, factor in enumerate(upstream):
        w = weight[i].detach().clone().requires_grad_()
        (factor * linear(hidden[i].detach(), w, target[i], MARGIN)).backward()
        same(weight.grad[i], w.grad)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("needs", range(8))
def test_inputs_that_need_no_gradient_get_none(linear, needs, reduction):
    *inputs, target = linear_problem()
    _, expected = value_and_gradients(
        lambda h, w, b: linear(h, w, target, MARGIN, bias=b, reduction=reduction).sum(), *inputs
    )
    leaves = [x.detach().clone().requires_grad_(bool(needs >> i & 1)) for i, x in enumerate(inputs)]
    loss = linear(*leaves[:2], target, MARGIN, bias=leaves[2], reduction=reduction).sum()
    assert loss.requires_grad == (needs > 0)
    if needs:
        loss.backward(torch.tensor(0.5))  # what `value_and_gradients` gives a single number
    for x, y in zip(leaves, expected, strict=True):
        if x.requires_grad:
            same(x.grad, y)
        else:
            assert x.grad is None


def test_without_grad_mode_nothing_is_kept(linear):
    hidden, weight, bias, target = linear_problem()
    expected = linear(hidden, weight, target, MARGIN, bias=bias).detach()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            loss = linear(hidden, weight, target, MARGIN, bias=bias)
        assert not loss.requires_grad
        same(loss, expected)


def test_no_gradient_is_made_where_none_is_wanted(monkeypatch):
    made = []
    original = products.Products.__init__

    def spy(self, head, needs, entries):
        made.append(needs)
        original(self, head, needs, entries)

    monkeypatch.setattr(products.Products, "__init__", spy)
    hidden, weight, bias, target = linear_problem()
    with torch.no_grad():
        chunked_loss(hidden, weight, target, MARGIN, bias=bias)
    assert made.pop() == products.Needs(False, False, False)
    chunked_loss(hidden, weight.detach(), target, MARGIN).backward()
    assert made.pop() == products.Needs(True, False, False)


def test_accumulated_gradients_equal_one_batch(linear):
    hidden, weight, bias, target = linear_problem()
    whole = value_and_gradients(
        lambda h, w, b: linear(h, w, target, MARGIN, bias=b), hidden, weight, bias
    )
    count = (target != -100).sum()  # a tensor, as it comes from all_reduce

    def in_parts(h, w, b):
        return sum(
            linear(h[part], w, target[part], MARGIN, bias=b, normalizer=count)
            for part in (slice(0, 2), slice(2, 3), slice(3, N))
        )

    same(value_and_gradients(in_parts, hidden, weight, bias), whole)


def test_a_tied_weight_gets_both_gradients(linear):
    weight, ids = torch.randn(V, D, dtype=torch.float64), torch.randint(V, (2, 7))
    mix = torch.randn(D, D, dtype=torch.float64)

    def body(w):
        return torch.tanh(F.embedding(ids, w) @ mix)

    def ours(w):
        return linear(body(w), w, ids, MARGIN, shift=1)

    def theirs(w):
        z = F.linear(body(w)[:, :-1], w)
        return er.thresholded_cross_entropy(z, ids[:, 1:], MARGIN)

    same(value_and_gradients(ours, weight), value_and_gradients(theirs, weight))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_may_be_changed_between_two_backward_passes(linear, reduction):
    hidden, weight, _, target = linear_problem()
    loss = linear(hidden, weight, target, MARGIN, reduction=reduction).sum()
    loss.backward(retain_graph=True)
    first = weight.grad.clone()
    for factor in (1, 2, 3):
        loss.backward(retain_graph=True)
        same(weight.grad, (factor + 1) * first)
    weight.grad.zero_()
    loss.backward()
    assert torch.equal(weight.grad, first)


def test_a_gradient_is_handed_out_without_a_pass_over_it(monkeypatch):
    monkeypatch.setattr(operator, "_sweep", SWEEP)
    hidden, weight, target = problem32(4, 3000, 8)
    loss = chunked_loss(hidden, weight, target, 0.1)
    with Largest() as mode:
        loss.backward()
    assert mode.elements < weight.numel()


# ---- torch.compile


@pytest.mark.parametrize("cases", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_it_compiles_without_a_graph_break(cases):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "--noconftest",
        "--show-capture=no",
        "-m",
        cases,
    ]
    file = Path(__file__).with_name("compiled.py")
    done = subprocess.run(
        [*command, str(file)], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("variant", ["", "RareOnly", "Softminus"])
def test_opcheck(variant, stats):
    hidden, weight, target = problem32()
    rows = torch.rand(1, 40) < 0.5
    arguments = (
        hidden.detach()[None],
        weight.detach()[None],
        None if stats else torch.randn(1, 40),
        torch.rand(1, 12),
        target.clamp(min=0)[None],
        (target != -100)[None],
        torch.full((1, 1), 1.0),
        rows if stats else None,
        rows if variant == "RareOnly" else None,
        variant,
        [1.0, 0.0] if variant == "Softminus" else [],
        1.0,
        3.0 if stats else None,
        0.1,
        0.1,
        False,
        "chunked",
        [True, stats, not stats],
        stats,
    )
    torch.library.opcheck(torch.ops.elbowroom.sweep, arguments)


@pytest.mark.parametrize("variant", ALL, ids=name)
def test_a_variant_survives_the_operators_plain_arguments(variant):
    kind, numbers, rows = operator._pack_variant(variant)
    back = operator._unpack_variant(kind, numbers, rows)
    if isinstance(variant, RareOnly):
        assert back.rows is variant.rows
    else:
        assert back == variant


# ---- Autocast


@pytest.mark.parametrize("with_bias", [False, True])
def test_autocast_is_casting_by_hand(linear, with_bias):
    hidden, weight, target = problem32()
    leaves = (hidden, weight, torch.randn(40)) if with_bias else (hidden, weight)

    def by_hand(hidden, weight, bias=None):
        bias = None if bias is None else bias.bfloat16()
        return linear(hidden.bfloat16(), weight.bfloat16(), target, 1.0, bias=bias)

    def under_autocast(hidden, weight, bias=None):
        with torch.autocast("cpu", torch.bfloat16):
            return linear(hidden, weight, target, 1.0, bias=bias)

    value, gradients = value_and_gradients(under_autocast, *leaves)
    expected, expected_gradients = value_and_gradients(by_hand, *leaves)
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)
    for x, y in zip(gradients, expected_gradients, strict=True):
        assert x.dtype == torch.float32
        assert torch.equal(x, y)


def test_autocast_leaves_float64_alone(linear):
    hidden, weight, bias, target = linear_problem()
    expected = linear(hidden, weight, target, 1.0, bias=bias)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(linear(hidden, weight, target, 1.0, bias=bias), expected)


def test_autocast_joins_dtypes(linear):
    hidden, weight, target = problem32()
    expected = linear(hidden.bfloat16(), weight.bfloat16(), target, 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(linear(hidden.bfloat16(), weight, target, 1.0), expected)


def test_autocast_computes_bare_logits_in_float32():
    hidden, weight, target = problem32()
    z = (hidden @ weight.T).detach()
    expected = er.thresholded_cross_entropy(z, target, 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(er.thresholded_cross_entropy(z, target, 1.0), expected)


# ---- Memory


LIMIT = 300 * 8  # the weight; all logits would be 60 * 300


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor that is made."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.is_view or func is torch.ops.aten.detach.default:
            return out
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.numel())
        return out


def largest(monkeypatch, **options):
    """Return the largest tensor of a forward and backward pass, inside the operator too."""
    monkeypatch.setattr(operator, "_sweep", SWEEP)
    dtype = options.pop("dtype", torch.float32)
    hidden, weight, target = problem32(60, 300, 8, dtype)
    margin = options.pop("margin", 1.0)
    with Largest() as mode:
        options = {"backend": "chunked", "stats": True, "variant": None} | options
        loss, _ = er.linear_thresholded_cross_entropy(hidden, weight, target, margin, **options)
        loss.sum().backward()
    assert hidden.grad.abs().sum() > 0
    return mode.elements


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("margin", [0.05, 1.0], ids=["listed", "dense"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_all_logits_never_exist_at_once(monkeypatch, reduction, margin, dtype):
    monkeypatch.setattr(chunked, "BLOCK", 1500)  # 5 of 60 tokens
    monkeypatch.setattr(products, "LIST_LENGTH", 1500)
    used = []
    original = chunked.Listed
    monkeypatch.setattr(chunked, "LIST_SHARE", 1.0 if margin < 1 else 0.0)
    monkeypatch.setattr(chunked, "Listed", lambda *x: used.append(1) or original(*x))
    elements = largest(monkeypatch, reduction=reduction, margin=margin, dtype=dtype)
    assert elements <= LIMIT
    assert bool(used) == (margin < 1 and dtype == torch.float32)


@pytest.mark.parametrize("variant", ALL, ids=name)
def test_all_logits_never_exist_at_once_whatever_the_variant(monkeypatch, variant):
    monkeypatch.setattr(chunked, "BLOCK", 1500)
    monkeypatch.setattr(chunked, "STRIP", 1500)
    if isinstance(variant, RareOnly):
        variant = RareOnly(torch.arange(300) % 2 == 0)
    options = {"label_smoothing": 0.1, "softcap": 5.0, "protect": torch.arange(300) % 3 == 0}
    assert largest(monkeypatch, variant=variant, **options) <= LIMIT


def test_the_measure_sees_all_logits_where_they_exist(monkeypatch):
    assert largest(monkeypatch, backend="reference") >= 60 * 300
    assert largest(monkeypatch, backend="chunked") >= 59 * 300  # one block
