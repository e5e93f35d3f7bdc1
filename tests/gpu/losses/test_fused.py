"""The Triton backend on a GPU: the interpreter's cases, graphs, compilation, sizes past 2^31."""

from __future__ import annotations

import pytest
import torch

import elbowroom as er
from elbowroom import variants
from elbowroom.losses import fused
from tests.losses.fused_cases import *  # noqa: F403
from tests.losses.problems import name, value_and_gradients

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # PyTorch warns of itself
]


@pytest.fixture
def device() -> str:
    pytest.importorskip("triton")
    return "cuda"


@pytest.fixture
def dtypes() -> tuple[torch.dtype, ...]:
    return torch.float32, torch.float16, torch.bfloat16


@pytest.fixture
def count() -> int:
    return 84  # each has kernels of its own to be compiled


@pytest.fixture
def most() -> int:
    return 200


def problem(n=300, v=5000, d=64, dtype=torch.bfloat16):
    """Return hidden, weight and targets that lie near the top, as a trained model's do."""
    hidden, weight = torch.randn(n, d, device="cuda"), torch.randn(v, d, device="cuda") / 4
    target = (hidden @ weight.T).topk(8).indices[:, 7]
    target[::11] = -100
    return hidden.to(dtype), weight.to(dtype), target


def loss_of(target, margin, **options):
    def loss(hidden, weight):
        return er.linear_thresholded_cross_entropy(hidden, weight, target, margin, **options)

    return loss


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("margin", [1.0, float("inf"), "tensor", "norms", "annealed"])
@pytest.mark.parametrize("stats", [False, True])
def test_nothing_waits_for_the_device(margin, stats):
    hidden, weight, target = problem()
    hidden.requires_grad_()
    weight.requires_grad_()
    progress = torch.tensor(0.5, device="cuda")
    margin = {
        "tensor": torch.tensor(1.0, device="cuda"),
        "norms": er.margins.ByNorms(0.1),
        "annealed": er.margins.default(5000),
    }.get(margin, margin)
    loss = loss_of(target, margin, progress=progress, stats=stats, backend="triton")

    def once():
        out = loss(hidden, weight)
        (out[0] if stats else out).backward()

    once()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        once()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("variant", [None, variants.Softminus(), variants.Decoupled()], ids=name)
def test_a_captured_graph_follows_its_inputs(variant):
    hidden, weight, target = problem()
    margin = torch.tensor(1.0, device="cuda")
    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    loss = loss_of(target, margin, variant=variant, backend="triton")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.autograd.grad(loss(h, w), (h, w))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(h, w)
        gradients = torch.autograd.grad(value, (h, w))
    for i in range(3):
        with torch.no_grad():
            h.copy_(torch.randn_like(hidden))
            margin.fill_(0.5 + i)
        graph.replay()
        x, y = h.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
        expected = loss_of(target, 0.5 + i, variant=variant, backend="triton")(x, y)
        assert torch.equal(value, expected)
        for mine, other in zip(gradients, torch.autograd.grad(expected, (x, y)), strict=True):
            assert torch.equal(mine, other)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("margin", [1.0, float("inf")])
def test_compiled_in_one_graph(margin):
    torch.compiler.reset()
    hidden, weight, target = problem()
    loss = loss_of(target, margin, z_loss=1e-4, backend="triton")
    compiled = torch.compile(lambda h, w: loss(torch.tanh(h), w), fullgraph=True)
    ours = value_and_gradients(compiled, hidden, weight)
    expected = value_and_gradients(lambda h, w: loss(torch.tanh(h), w), hidden, weight)
    torch.testing.assert_close(ours, expected, rtol=2e-2, atol=1e-4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("stats", [False, True])
def test_opcheck(stats):
    hidden, weight, target = problem(dtype=torch.float32)
    arguments = (
        hidden[None], weight[None], None, None if stats else torch.rand(1, 300, device="cuda"),
        target.clamp(min=0)[None], (target != -100)[None], torch.ones(1, 1, device="cuda"),
        None, None, "", [], 1.0, None, 0.0, 0.0, False, "triton", [not stats] * 2 + [False], stats,
    )  # fmt: skip
    torch.library.opcheck(torch.ops.elbowroom.sweep, arguments)


def test_a_vocabulary_of_any_size_is_read_in_whole_words(monkeypatch):
    """Rows of products begin at multiples of a strip; what lies between them may be anything."""
    monkeypatch.setattr(fused, "BUDGET", 2**24)
    for v in (5001, 5120):
        hidden, weight, target = problem(n=700, v=v)
        found = {
            backend: value_and_gradients(loss_of(target, 1.0, backend=backend), hidden, weight)
            for backend in ("triton", "reference")
        }
        torch.testing.assert_close(found["triton"], found["reference"], rtol=5e-2, atol=2e-4)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_device_that_is_not_the_current_one():
    inputs = problem()
    first = value_and_gradients(loss_of(inputs[2], 1.0, backend="triton"), *inputs[:2])
    hidden, weight, target = (x.to("cuda:1") for x in inputs)
    second = value_and_gradients(loss_of(target, 1.0, backend="triton"), hidden, weight)
    assert torch.equal(first[0], second[0].to("cuda:0"))
    assert all(torch.equal(x, y.to("cuda:0")) for x, y in zip(first[1], second[1], strict=True))


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_factor_of_the_backward_pass(factor):
    """The device looks at it: 1 leaves gradients alone, another multiplies them."""
    hidden, weight, target = problem()
    x, w = hidden.requires_grad_(), weight.requires_grad_()
    loss = loss_of(target, 1.0, backend="triton")
    plain = torch.autograd.grad(loss(x, w), (x, w))
    upstream = torch.tensor(factor, device="cuda")
    scaled = torch.autograd.grad(loss(x, w), (x, w), upstream)
    assert all(torch.equal(a * factor, b) for a, b in zip(plain, scaled, strict=True))


def test_products_past_2_31_elements(monkeypatch):
    """All logits at once, against the same in small chunks: offsets need 64 bits."""
    hidden, weight, target = problem(n=9000, v=250_001, d=32)
    results = []
    for budget in (8 * 2**30, 2**28):
        monkeypatch.setattr(fused, "BUDGET", budget)
        results.append(value_and_gradients(loss_of(target, 2.0, backend="triton"), hidden, weight))
    torch.testing.assert_close(*results, rtol=2e-2, atol=1e-6)
    assert results[0][1][1].any()


def test_a_weight_past_2_31_elements():
    """Its last rows as if they were alone."""
    n, v, d = 64, 600_007, 4096
    weight = torch.empty(v, d, device="cuda", dtype=torch.bfloat16).normal_(std=0.02)
    hidden = torch.randn(n, d, device="cuda", dtype=torch.bfloat16)
    target = torch.arange(v - n, v, device="cuda")
    protect = torch.ones(v, dtype=torch.bool, device="cuda")
    protect[-2000:] = False  # so that the others are left out
    loss, (d_hidden, d_weight) = value_and_gradients(
        loss_of(target, 30.0, protect=protect, backend="triton"), hidden, weight
    )
    few = value_and_gradients(
        loss_of(target - (v - 2000), 30.0, backend="triton"), hidden, weight[-2000:]
    )
    torch.testing.assert_close(loss, few[0])
    torch.testing.assert_close(d_hidden, few[1][0], rtol=2e-2, atol=1e-6)
    torch.testing.assert_close(d_weight[-2000:], few[1][1], rtol=2e-2, atol=1e-6)
    assert not d_weight[:-2000].any()


def test_memory_beyond_inputs_and_gradients():
    hidden, weight, target = problem(n=8192, v=128_256, d=512)
    h, w = hidden.requires_grad_(), weight.requires_grad_()
    for margin in (1.0, float("inf")):
        h.grad = w.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss_of(target, margin, backend="triton")(h, w).backward()
        gradients = (h.numel() + w.numel()) * 2  # and what the sums of chunks need, if any
        accumulator = w.numel() * 4
        assert torch.cuda.max_memory_allocated() - before - gradients - accumulator <= 2**30
