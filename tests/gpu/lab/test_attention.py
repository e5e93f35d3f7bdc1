"""Attention on a GPU: the cases of the interpreter, PyTorch's errors as the limit, graphs."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from elbowroom.lab.model.attention import attend, takes
from tests.lab.attention_cases import *  # noqa: F403
from tests.lab.attention_cases import CLOSE, both, plain, some

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PAPER = (480, 64, 4, 32)
# windows, tokens, heads, width of a head
SIZES = [PAPER, (40, 50, 3, 32), (12, 128, 4, 64), (9, 100, 2, 16), (30, 17, 2, 128)]
NOISE = 1.1  # of two ways to sum


@pytest.fixture
def device() -> str:
    pytest.importorskip("triton")
    return "cuda"


@pytest.fixture
def tf32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def on_the_cpu(qkv, dout):
    """Return output and gradient in float64, of the values that the GPU was given."""
    return both(plain, qkv.detach().cpu().double().requires_grad_(), dout.cpu().double())


def errors(got, exact):
    """Return the error of output and gradient, relative to the norm of what is exact."""
    return [
        float((x.cpu().double() - y).norm() / y.norm()) for x, y in zip(got, exact, strict=True)
    ]


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_the_cpus_float64(shape, dtype, device):
    given = some(shape, dtype, device)
    assert takes(given[0])
    got = [x.cpu() for x in both(attend, *given)]
    torch.testing.assert_close(got, list(on_the_cpu(*given)), check_dtype=False, **CLOSE[dtype])


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_the_error_in_bf16_is_at_most_pytorchs(shape, device):
    given = some(shape, torch.bfloat16, device)
    exact = on_the_cpu(*given)
    ours, theirs = errors(both(attend, *given), exact), errors(both(plain, *given), exact)
    assert all(mine <= NOISE * limit for mine, limit in zip(ours, theirs, strict=True)), theirs


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_the_error_in_tf32_is_at_most_pytorchs(shape, device):
    """The limit is attention by plain products: PyTorch's fused float32 kernel uses no TF32."""
    given = some(shape, torch.float32, device)
    exact = on_the_cpu(*given)
    ours = errors(both(attend, *given), exact)
    with sdpa_kernel(SDPBackend.MATH):
        theirs = errors(both(plain, *given), exact)
    assert min(theirs) > 1e-5  # else it was not TF32
    assert all(mine <= NOISE * limit for mine, limit in zip(ours, theirs, strict=True)), theirs


def test_float32_is_float32_where_tf32_is_not_allowed(device):
    given = some(PAPER, torch.float32, device)
    assert max(errors(both(attend, *given), on_the_cpu(*given))) < 1e-6


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_the_same_bits_again_without_waiting(shape, dtype, device):
    given = some(shape, dtype, device)
    first = both(attend, *given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = both(attend, *given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("dtype", CLOSE)
def test_a_graph_holds_it(dtype, device):
    qkv, dout = some((6, 50, 2, 32), dtype, device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both(attend, qkv, dout)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = both(attend, qkv, dout)
    for _ in range(2):
        with torch.no_grad():
            qkv.normal_()
        dout.normal_()
        graph.replay()
        assert all(map(torch.equal, out, both(attend, qkv, dout)))


def test_a_window_gives_the_same_bits_in_any_company(device):
    qkv, dout = some((7, 64, 2, 32), torch.float32, device)
    whole = both(attend, qkv, dout)
    part = both(attend, qkv.detach()[2:5].clone().requires_grad_(), dout[2:5])
    assert all(torch.equal(x[2:5], y) for x, y in zip(whole, part, strict=True))


def test_more_elements_than_an_int32_counts(device):
    windows, length, heads, width = 2**19 + 3, 64, 1, 32  # 3 * 2^30 of queries, keys and values
    need = 4 * 3 * windows * length * width * 4
    if torch.cuda.mem_get_info()[0] < need:
        pytest.skip(f"needs {need / 2**30:.0f} GiB of device memory")
    pattern = some((3, length, heads, width), torch.float32, device)
    qkv = pattern[0].detach().repeat(windows // 3 + 1, 1, 1, 1, 1)[:windows].requires_grad_()
    dout = pattern[1].repeat(windows // 3 + 1, 1, 1, 1)[:windows]
    for got, wanted in zip(both(attend, qkv, dout), both(attend, *pattern), strict=True):
        for window in (0, windows // 2, windows - 2, windows - 1):
            assert torch.equal(got[window], wanted[window % 3])


def test_what_a_device_takes(device):
    assert takes(some(PAPER, torch.float32, device)[0])
    assert not takes(some((1, 129, 1, 16), torch.float32, device)[0])
    assert not takes(some((1, 8, 1, 16), torch.float64, device)[0])
    assert not takes(some((1, 8, 1, 24), torch.float32, device)[0])
    assert not takes(some(PAPER, torch.float32, "cpu")[0])
