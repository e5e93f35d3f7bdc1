"""What all rival losses promise: options, runs, ignored tokens, dtypes, and errors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from elbowroom.counts import TokenCounts
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.losses.problem import prepare_linear
from elbowroom.rivals.common import HeadOptions, target_logits, unit_rows
from tests.rivals.cases import CASES, D, V, make_counts, problem

every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
plain = pytest.mark.parametrize(
    "case", [c for c in CASES if c.plain is not None], ids=lambda case: case.name
)
counted = pytest.mark.parametrize(
    "case", [c for c in CASES if c.needs_counts], ids=lambda case: case.name
)


def value_and_gradients(loss, *inputs):
    value = loss(*inputs)
    floating = [x for x in inputs if x.is_floating_point()]
    return value.detach(), torch.autograd.grad(value.sum(), floating)


def logits(hidden, weight, bias, scale=1.0, softcap=None):
    raw = hidden @ weight.T + bias
    return scale * (raw if softcap is None else softcap * torch.tanh(raw / softcap))


@plain
def test_its_limit_is_cross_entropy(case):
    hidden, weight, target = problem()
    bias = torch.randn(V, dtype=torch.float64, requires_grad=True)

    def ours(h, w, b):
        return case.as_plain()(h, w, target, bias=b, logit_scale=0.7, softcap=3.0)

    def theirs(h, w, b):
        return F.cross_entropy(logits(h, w, b, 0.7, 3.0), target)

    value, gradients = value_and_gradients(ours, hidden, weight, bias)
    expected, expected_gradients = value_and_gradients(theirs, hidden, weight, bias)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradients, expected_gradients)


@plain
def test_by_default_it_is_not_cross_entropy(case):
    hidden, weight, target = problem(40)
    value, gradients = value_and_gradients(lambda h, w: case(h, w, target), hidden, weight)
    plain_value, plain_gradients = value_and_gradients(
        lambda h, w: F.cross_entropy(h @ w.T, target), hidden, weight
    )
    assert not torch.allclose(gradients[1], plain_gradients[1], rtol=1e-3)
    if case.name != "agg":  # whose value is cross-entropy's, as documented
        assert not torch.allclose(value, plain_value, rtol=1e-3)


@pytest.mark.parametrize("case", [c for c in CASES if c.smooth], ids=lambda case: case.name)
def test_gradients_are_those_of_the_value(case):
    hidden, weight, target = problem(4)
    bias = torch.randn(V, dtype=torch.float64, requires_grad=True)

    def loss(h, w, b):
        return case(h, w, target, bias=b, logit_scale=0.8, softcap=4.0, reduction="none")

    assert gradcheck(loss, (hidden, weight, bias))


@every
def test_runs_in_company_are_runs_alone(case):
    R, N = 3, 5
    hidden = torch.randn(R, N, D, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(R, V, D, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(R, V, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, V, (R, N))
    target[1, 2] = -100
    value = case(hidden, weight, target, bias=bias)
    assert value.shape == (R,)
    gradients = torch.autograd.grad(value.sum(), (hidden, weight, bias))
    for r in range(R):
        inputs = [x[r].detach().requires_grad_() for x in (hidden, weight, bias)]
        alone = case(inputs[0], inputs[1], target[r], bias=inputs[2])
        torch.testing.assert_close(value[r], alone)
        for together, g in zip(gradients, torch.autograd.grad(alone, inputs), strict=True):
            torch.testing.assert_close(together[r], g)


@counted
def test_each_run_may_have_its_own_counts(case):
    hidden = torch.randn(2, 5, D, dtype=torch.float64)
    weight = torch.randn(2, V, D, dtype=torch.float64)
    target = torch.randint(0, V, (2, 5))
    counts = TokenCounts.running(V, steps=9, runs=2)
    for _ in range(3):
        counts.update(torch.randint(0, V, (2, 15)))
    value = case(hidden, weight, target, counts=counts)
    for r in range(2):
        one = TokenCounts.running(V, steps=9)
        one.counts.copy_(counts.counts[r])
        one.seen.copy_(counts.seen)
        torch.testing.assert_close(value[r], case(hidden[r], weight[r], target[r], counts=one))


@every
def test_ignored_tokens_change_nothing(case):
    hidden, weight, target = problem(8)
    ignored = torch.tensor([1, 4])
    kept = torch.tensor([0, 2, 3, 5, 6, 7])
    target[ignored] = -100
    with torch.no_grad():
        hidden[ignored[0]] = 0.0
        hidden[ignored[1]] = torch.nan  # whatever an ignored position holds, it reaches nothing
    options = {"gamma": 0.0} if case.name == "equalization" else {}  # its draw is by position
    value = case(hidden, weight, target, **options)
    gradients = torch.autograd.grad(value, (hidden, weight))
    assert all(g.isfinite().all() for g in gradients)
    assert (gradients[0][ignored] == 0).all()
    expected = case(hidden[kept], weight, target[kept], **options)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradients[1], torch.autograd.grad(expected, weight)[0])


@every
def test_reductions_weights_and_shift(case):
    hidden = torch.randn(2, 5, D, dtype=torch.float64)
    weight = torch.randn(V, D, dtype=torch.float64)
    target = torch.randint(0, V, (2, 5))
    target[0, 3] = -100
    each = case(hidden, weight, target, reduction="none")
    assert each.shape == (2, 5)
    assert each[0, 3] == 0
    torch.testing.assert_close(case(hidden, weight, target, reduction="sum"), each.sum())
    torch.testing.assert_close(case(hidden, weight, target), each.sum() / 9)
    torch.testing.assert_close(case(hidden, weight, target, normalizer=2.0), each.sum() / 2)
    w = torch.rand(2, 5, dtype=torch.float64)
    weighted = case(hidden, weight, target, token_weights=w)
    torch.testing.assert_close(weighted, (each * w).sum() / (w * (target >= 0)).sum())
    shifted = case(hidden, weight, target, shift=1, reduction="sum")
    inner = case(hidden[:, :-1], weight, target[:, 1:], reduction="sum")
    torch.testing.assert_close(shifted, inner)


@every
@pytest.mark.parametrize("n", [0, 3])
def test_no_tokens_no_loss_no_gradients(case, n):
    hidden, weight, _ = problem(n)
    value = case(hidden, weight, torch.full((n,), -100))
    assert value == 0
    for gradient in torch.autograd.grad(value, (hidden, weight)):
        assert (gradient == 0).all()


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_computes_in_float32(case, dtype):
    hidden, weight, target = problem(6, torch.float64)
    low = [x.detach().to(dtype).requires_grad_() for x in (hidden, weight)]
    value = case(*low, target)
    assert value.dtype == torch.float32
    exact = case(low[0].detach().double(), low[1].detach().double(), target)
    torch.testing.assert_close(value.detach().double(), exact, rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(value, low)
    assert [g.dtype for g in gradients] == [dtype, dtype]


@every
def test_autocast_casts_the_inputs_and_nothing_else(case):
    hidden, weight, target = problem(6, torch.float32)
    bias = torch.randn(V, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = case(hidden, weight, target, bias=bias)
    low = [x.to(torch.bfloat16) for x in (hidden, weight, bias)]
    expected = case(low[0], low[1], target, bias=low[2])
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)
    ours = torch.autograd.grad(value, (hidden, weight, bias))
    assert all(map(torch.equal, ours, torch.autograd.grad(expected, (hidden, weight, bias))))


@every
def test_huge_logits_stay_finite(case):
    hidden, weight, target = problem(6, torch.float32)
    value = case(hidden, weight, target, logit_scale=1e4)
    gradients = torch.autograd.grad(value, (hidden, weight))
    assert value.isfinite()
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.usefixtures("unchecked")
@every
def test_bad_input_is_named(case):
    hidden, weight, target = (x.detach() for x in problem())
    for bad, error, name in [
        ((hidden.tolist(), weight, target), ArgumentTypeError, "hidden"),
        ((hidden[:, :2], weight, target), ArgumentValueError, "hidden"),
        ((hidden, weight, target.double()), ArgumentTypeError, "target"),
        ((hidden, weight, target[:2]), ArgumentValueError, "target"),
        ((hidden, weight, target + V), ArgumentValueError, "target"),
    ]:
        with pytest.raises(error, match=name):
            case(*bad)
    for option, bad, error in [
        ("logit_scale", 0.0, ArgumentValueError),
        ("softcap", -1.0, ArgumentValueError),
        ("reduction", "max", ArgumentValueError),
        ("bias", torch.zeros(V + 1, dtype=torch.float64), ArgumentValueError),
        ("margin", 1.0, ArgumentTypeError),
    ]:
        with pytest.raises(error, match=option):
            case(hidden, weight, target, **{option: bad})


@pytest.mark.usefixtures("unchecked")
@counted
def test_bad_counts_are_named(case):
    hidden, weight, target = problem()
    with pytest.raises(ArgumentTypeError, match="counts: expected TokenCounts"):
        case(hidden, weight, target, counts=torch.ones(V))
    with pytest.raises(ArgumentValueError, match="counts: expected counts of the head's 7 tokens"):
        case(hidden, weight, target, counts=make_counts(V + 1))
    with pytest.raises(ArgumentValueError, match="counts"):
        case(hidden, weight, target, counts=TokenCounts.running(V, steps=3, runs=2))
    with pytest.raises(ArgumentValueError, match="counts: expected a tensor on"):
        case(hidden, weight, target, counts=TokenCounts.running(V, steps=3, device="meta"))


PARAMETERS = [
    ("agg", "alpha", -1.0),
    ("adversarial", "alpha", -1.0),
    ("equalization", "threshold", 1.5),
    ("equalization", "gamma", 1.5),
    ("equalization", "seed", 0.5),
    ("equalization", "seed", torch.tensor([1, 2, 3])),
    ("equalization", "step", -1),
    ("equalization", "step", torch.tensor([1])),
    ("seesaw", "p", -1.0),
    ("seesaw", "q", -1.0),
    ("seesaw", "floor", 1.0),
    ("acsl_sigmoid", "xi", 1.1),
    ("acsl_sigmoid", "form", "tanh"),
    ("logit_adjusted", "tau", float("nan")),
    ("logit_adjusted", "smoothing", -1.0),
    ("sampled", "samples", 0),
    ("sampled", "proposal", "zipf"),
    ("sampled", "proposal", "uniform"),  # which has no use for counts
    ("sampled", "smoothing", 0.0),
    ("focal", "gamma", -1.0),
    ("class_balanced", "beta", 1.0),
    ("mile", "gamma", -1.0),
    ("mile", "normalize", "yes"),
    ("ldam", "max_margin", -1.0),
    ("ldam", "normalize", 1),
    ("cwt", "deduplicate", "no"),
    ("adversarial", "detach_weight_norm", None),
    ("ldam", "s", 0.0),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "parameter", "bad"), PARAMETERS)
def test_bad_parameters_are_named(name, parameter, bad):
    case = next(c for c in CASES if c.name == name)
    expected = "counts" if bad == "uniform" else parameter
    with pytest.raises((ArgumentValueError, ArgumentTypeError), match=f"^{expected}: "):
        case(*problem(), **{parameter: bad})


def test_options_are_those_of_the_shared_description():
    import inspect

    known = inspect.signature(prepare_linear).parameters
    keyword = [n for n, p in known.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    assert list(HeadOptions.__annotations__) == keyword


def test_target_logits_are_entries_of_all_logits():
    hidden, weight, target = problem()
    bias = torch.randn(V, dtype=torch.float64)
    options = {"bias": bias, "logit_scale": 0.5, "softcap": 2.0}
    head, tokens = prepare_linear(hidden, weight, target, **options)
    expected = head.logits().gather(-1, tokens.target[..., None])[..., 0]
    torch.testing.assert_close(target_logits(head, tokens), expected)


def test_unit_rows_leave_zero_rows_alone():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    unit = unit_rows(x)
    torch.testing.assert_close(unit, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    (gradient,) = torch.autograd.grad(unit[:, 0].sum(), x)
    torch.testing.assert_close(gradient, torch.tensor([[0.128, -0.096], [0.0, 0.0]]))


@pytest.mark.gpu
@every
def test_a_gpu_gives_the_same(case):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    hidden, weight, target = problem()
    here = case(hidden, weight, target)
    there = case(hidden.cuda(), weight.cuda(), target.cuda(), **_counts_on_gpu(case))
    torch.testing.assert_close(here, there.cpu())


def _counts_on_gpu(case):
    return {"counts": make_counts().cuda()} if case.needs_counts else {}
