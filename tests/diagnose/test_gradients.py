"""Gradient types against autograd on a model with a copy of the embedding for each type."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from elbowroom import diagnose, linear_thresholded_cross_entropy
from elbowroom.diagnose import gradients
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.margins import Annealed, ByNorms

V, N, D = 9, 12, 4


def close(a, b, **options):
    torch.testing.assert_close(a, b, **options)


@pytest.fixture(params=[2**24, 5 * V], ids=["whole", "chunks"])
def _chunks(request, monkeypatch):
    monkeypatch.setattr(gradients, "LOGITS_AT_ONCE", request.param)


def case(n=N, dtype=torch.float64):
    h, w = torch.randn(n, D, dtype=dtype), torch.randn(V, D, dtype=dtype)
    return h, w, torch.randint(V, (n,))


def two_heads(h, as_target, as_other, y, cap=lambda x: x, bias=0.0):
    """Logits that take the target's entry from one head and the others from another."""
    own = F.one_hot(y, V).bool()
    return cap(torch.where(own, h @ as_target.T, h @ as_other.T) + bias)


def loss_of(z, y, margin, protect=None):
    """Thresholded cross-entropy, token by token, written with a loop."""
    losses = []
    for n in range(len(y)):
        theta = z[n, y[n]].detach() - (margin if isinstance(margin, float) else margin[n])
        kept = [
            i
            for i in range(V)
            if i == y[n]
            or (z[n, i] >= theta and not (protect is not None and protect[i] and not protect[y[n]]))
        ]
        losses.append(z[n, kept].logsumexp(0) - z[n, y[n]])
    return torch.stack(losses)


def oracle(h, w, y, margin, *, protect=None, coefficient=None, **head):
    one, other = w.clone().requires_grad_(), w.clone().requires_grad_()
    losses = loss_of(two_heads(h, one, other, y, **head), y, margin, protect)
    total = losses.mean() if coefficient is None else (losses * coefficient).sum()
    return torch.autograd.grad(total, (one, other))


def check(found, expected):
    close(found.target, expected[0])
    close(found.marginalization, expected[1])


# --- the head, in closed form


def test_head_gradients_by_hand():
    h, w = torch.tensor([[2.0]], dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)
    found = diagnose.head_gradients(h, w, torch.tensor([1]))
    close(3 * found.target[:, 0], torch.tensor([0, -4, 0], dtype=torch.float64))
    close(3 * found.marginalization[:, 0], torch.tensor([2, 0, 2], dtype=torch.float64))
    target, marginalization = found.norms()
    close(3 * target, torch.tensor([0, 4, 0], dtype=torch.float64))
    close(3 * marginalization, torch.tensor([2, 0, 2], dtype=torch.float64))


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("margin", [float("inf"), 2.0, 0.5, 0.0])
def test_against_copies(margin):
    h, w, y = case()
    check(diagnose.head_gradients(h, w, y, margin), oracle(h, w, y, margin))


@pytest.mark.usefixtures("_chunks")
def test_against_copies_with_all_options():
    h, w, y = case()
    bias, weights = torch.randn(V, dtype=h.dtype), torch.rand(N, dtype=h.dtype)
    y[3], h[3] = -1, torch.nan
    counted = y >= 0

    def cap(x):
        return 0.7 * 3.0 * torch.tanh(x / 3.0)

    expected = oracle(
        h[counted],
        w,
        y[counted],
        1.0,
        coefficient=(weights / weights[counted].sum())[counted],
        cap=cap,
        bias=bias,
    )
    options = {"bias": bias, "token_weights": weights, "ignore_index": -1}
    found = diagnose.head_gradients(h, w, y, 1.0, logit_scale=0.7, softcap=3.0, **options)
    check(found, expected)


@pytest.mark.usefixtures("_chunks")
def test_margins_of_all_kinds():
    h, w, y = case()
    each = torch.rand(N, dtype=h.dtype) * 3
    check(diagnose.head_gradients(h, w, y, each), oracle(h, w, y, each))
    scaled = ByNorms(0.1).of(h, w[y])
    check(diagnose.head_gradients(h, w, y, ByNorms(0.1)), oracle(h, w, y, scaled))
    one = torch.tensor(1.0)
    check(diagnose.head_gradients(h, w, y, one), oracle(h, w, y, 1.0))
    square = diagnose.head_gradients(h.view(3, 4, D), w, y.view(3, 4), each.view(3, 4))
    check(square, oracle(h, w, y, each))
    check(diagnose.head_gradients(h.view(3, 4, D), w, y.view(3, 4), each), oracle(h, w, y, each))


def test_equalization():
    h, w, y = case()
    protect = torch.arange(V) % 3 == 0
    found = diagnose.head_gradients(h, w, y, 2.0, protect=protect)
    check(found, oracle(h, w, y, 2.0, protect=protect))


def test_shift_and_reductions():
    h, w, _ = case()
    h, y = h.view(3, 4, D), torch.randint(V, (3, 4))
    margin = torch.rand(3, 4, dtype=h.dtype)
    rows, targets, kept = h[:, :-1].reshape(-1, D), y[:, 1:].flatten(), margin[:, 1:].flatten()
    for options, coefficient in (
        ({}, 1 / 9),
        ({"reduction": "sum"}, 1),
        ({"normalizer": 4.0}, 1 / 4),
    ):
        found = diagnose.head_gradients(h, w, y, margin, shift=1, **options)
        check(found, oracle(rows, w, targets, kept, coefficient=coefficient))


@pytest.mark.usefixtures("_chunks")
def test_runs_are_apart():
    h, w = torch.randn(3, N, D, dtype=torch.float64), torch.randn(3, V, D, dtype=torch.float64)
    y, bias = torch.randint(V, (3, N)), torch.randn(3, V, dtype=torch.float64)
    margin = torch.tensor([0.3, 2.0, torch.inf], dtype=torch.float64)
    protect = torch.rand(3, V) < 0.3
    found = diagnose.head_gradients(h, w, y, margin, bias=bias, protect=protect)
    full = diagnose.head_gradients(
        h, w, y, margin[:, None].expand(3, N), bias=bias, protect=protect
    )
    for r in range(3):
        expected = oracle(h[r], w[r], y[r], margin[r].item(), bias=bias[r], protect=protect[r])
        close(found.target[r], expected[0])
        close(found.marginalization[r], expected[1])
        close(full.target[r], expected[0])
    shared = diagnose.head_gradients(h, w, y, 1.0, protect=protect[0])
    alone = diagnose.head_gradients(h[2], w[2], y[2], 1.0, protect=protect[0])
    close(shared.marginalization[2], alone.marginalization)


def test_rows_that_are_never_kept_get_exact_zeros():
    h, w, y = case(200)
    w[4], y[y == 4] = 0.0, 5
    bias = torch.zeros(V, dtype=h.dtype)
    bias[4] = -1e3
    found = diagnose.head_gradients(h, w, y, 1.0, bias=bias)
    assert found.marginalization[4].count_nonzero() == 0
    assert found.target[4].count_nonzero() == 0


def test_a_nearly_certain_target_keeps_its_digits():
    h, w = torch.ones(1, 1), torch.tensor([[30.0], [0.0]])
    found = diagnose.head_gradients(h, w, torch.tensor([0]))
    close(found.target[0], -found.marginalization[1], rtol=0, atol=0)
    close(found.target[0, 0].double(), -torch.exp(torch.tensor(-30.0).double()), rtol=1e-5, atol=0)


def test_half_precision_and_autocast():
    h, w, y = case(dtype=torch.float32)
    half = diagnose.head_gradients(h.bfloat16(), w.bfloat16(), y, 1.0)
    assert half.target.dtype == torch.float32
    wide = diagnose.head_gradients(h.bfloat16().float(), w.bfloat16().float(), y, 1.0)
    close(half.target, wide.target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = diagnose.head_gradients(h, w, y, 1.0)
    close(under.marginalization, half.marginalization, rtol=0, atol=0)


def test_no_tokens():
    found = diagnose.head_gradients(torch.zeros(0, D), torch.zeros(V, D), torch.zeros(0).long())
    assert found.target.shape == (V, D)
    assert found.target.count_nonzero() == 0


@pytest.mark.parametrize("runs", [(), (2,)])
def test_types_sum_to_the_gradient_of_our_own_loss(runs):
    h = torch.randn(*runs, 3, 5, D, dtype=torch.float64)
    w = torch.randn(*runs, V, D, dtype=torch.float64, requires_grad=True)
    y = torch.randint(V, (*runs, 3, 5))
    y[..., 1, 2:] = -100
    options = {
        "bias": torch.randn(*runs, V, dtype=h.dtype),
        "logit_scale": 1.3,
        "softcap": 5.0,
        "shift": 1,
        "token_weights": torch.rand(y.shape, dtype=h.dtype),
        "protect": torch.arange(V) % 2 == 0,
    }
    for margin in (float("inf"), 1.0, ByNorms(0.2), torch.rand(y.shape, dtype=h.dtype)):
        loss = linear_thresholded_cross_entropy(h, w, y, margin, **options).sum()
        (expected,) = torch.autograd.grad(loss, w)
        found = diagnose.head_gradients(h, w.detach(), y, margin, **options)
        close(found.target + found.marginalization, expected)


# --- any loss


@pytest.mark.parametrize("runs", [(), (2,)])
def test_split_gradients_of_another_loss(runs):
    h = torch.randn(*runs, N, D, dtype=torch.float64)
    w = torch.randn(*runs, V, D, dtype=torch.float64)
    y = torch.randint(V, (*runs, N))
    y[..., 2] = -100
    one, other = w.clone().requires_grad_(), w.clone().requires_grad_()
    own = F.one_hot(y.clamp(min=0), V).bool()
    z = torch.where(own, h @ one.mT, h @ other.mT)
    loss = (z.sigmoid() * (y >= 0)[..., None]).square().sum()
    (dz,) = torch.autograd.grad(loss, z, retain_graph=True)
    expected = torch.autograd.grad(loss, (one, other))
    h[..., 2, :] = torch.nan  # an ignored token may hold anything
    found = diagnose.split_gradients(h, dz, y)
    check(found, expected)


def test_context_gradients():
    ids, g = torch.randint(V, (2, 3, 5)), torch.randn(2, 3, 5, D, dtype=torch.float64)
    weight = torch.zeros(V, D, dtype=torch.float64, requires_grad=True)
    for r in range(2):
        (expected,) = torch.autograd.grad(F.embedding(ids[r], weight), weight, g[r])
        close(diagnose.context_gradients(ids[r], g[r], V), expected)
        close(diagnose.context_gradients(ids, g, V, runs=True)[r], expected)
    empty = diagnose.context_gradients(torch.zeros(0).long(), torch.zeros(0, D), V)
    assert empty.shape == (V, D)


# --- bad input

GOOD = {"hidden": torch.ones(3, 2), "weight": torch.ones(4, 2), "target": torch.zeros(3).long()}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "name", "kind"),
    [
        ({"hidden": torch.ones(3, 5)}, "hidden", ArgumentValueError),
        ({"target": torch.zeros(2).long()}, "target", ArgumentValueError),
        ({"margin": -1.0}, "margin", ArgumentValueError),
        ({"margin": float("nan")}, "margin", ArgumentValueError),
        ({"margin": "2"}, "margin", ArgumentTypeError),
        ({"margin": Annealed(1.0, 2.0)}, "progress", ArgumentValueError),
        ({"margin": torch.ones(2)}, "margin", ArgumentValueError),
        ({"margin": -torch.ones(3)}, "margin", ArgumentValueError),
        ({"protect": torch.ones(4)}, "protect", ArgumentTypeError),
        ({"protect": [True] * 4}, "protect", ArgumentTypeError),
        ({"protect": torch.ones(3) > 0}, "protect", ArgumentValueError),
        ({"protect": torch.ones(1, 4) > 0}, "protect", ArgumentValueError),
        ({"reduction": "max"}, "reduction", ArgumentValueError),
    ],
)
def test_bad_head(change, name, kind):
    with pytest.raises(kind, match=rf"^{name}: expected"):
        diagnose.head_gradients(**(GOOD | change))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "name", "kind"),
    [
        ({"hidden": torch.ones(2)}, "hidden", ArgumentValueError),
        ({"hidden": torch.ones(3, 2).long()}, "hidden", ArgumentTypeError),
        ({"dlogits": torch.ones(2, 4)}, "dlogits", ArgumentValueError),
        ({"dlogits": None}, "dlogits", ArgumentTypeError),
        ({"target": torch.zeros(2).long()}, "target", ArgumentValueError),
        ({"target": torch.zeros(3)}, "target", ArgumentTypeError),
        ({"target": torch.full((3,), 4)}, "target", ArgumentValueError),
    ],
)
def test_bad_split(change, name, kind):
    given = {"hidden": torch.ones(3, 2), "dlogits": torch.ones(3, 4), "target": GOOD["target"]}
    with pytest.raises(kind, match=rf"^{name}: expected"):
        diagnose.split_gradients(**(given | change))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "name", "kind"),
    [
        ({"ids": torch.zeros(3)}, "ids", ArgumentTypeError),
        ({"ids": torch.full((3,), 4)}, "ids", ArgumentValueError),
        ({"output_gradient": torch.ones(2, 2)}, "output_gradient", ArgumentValueError),
        ({"output_gradient": torch.ones(3, 2).long()}, "output_gradient", ArgumentTypeError),
        ({"vocab_size": 0}, "vocab_size", ArgumentValueError),
        ({"runs": 1}, "runs", ArgumentTypeError),
        (
            {"ids": torch.tensor(1), "output_gradient": torch.ones(2), "runs": True},
            "ids",
            ArgumentValueError,
        ),
    ],
)
def test_bad_context(change, name, kind):
    given = {"ids": GOOD["target"], "output_gradient": torch.ones(3, 2), "vocab_size": 4}
    with pytest.raises(kind, match=rf"^{name}: expected"):
        diagnose.context_gradients(**(given | change))


def test_all_is_complete():
    assert sorted(diagnose.__all__) == diagnose.__all__
    assert all(getattr(diagnose, name).__doc__ for name in diagnose.__all__)
