"""Attention without a GPU: the ways of a CPU, kernels interpreted and compiled, and launches."""

from __future__ import annotations

import inspect
import math
import types

import pytest
import torch

from elbowroom.lab import model as package
from elbowroom.lab.model import ModelConfig, attention, layers
from elbowroom.lab.model.attention import attend, takes
from tests.kernels import Recorder, run_tests


def test_interpreted():
    run_tests("tests/lab/attention_interpreted.py", TRITON_INTERPRET="1")


def test_compiled_for_gpus_that_are_not_here(tmp_path):
    run_tests("tests/lab/attention_compiled.py", TRITON_CACHE_DIR=str(tmp_path))


# What a CPU does


def by_hand(qkv):
    """Return each query's mean of values in float64, place by place."""
    q, k, v = qkv.double().unbind(2)
    out = torch.empty_like(q)
    for window, place, head in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        seen = slice(place + 1)
        scores = k[window, seen, head] @ q[window, place, head] / math.sqrt(q.shape[-1])
        out[window, place, head] = scores.softmax(0) @ v[window, seen, head]
    return out


@pytest.mark.parametrize("way", [layers._attend_short, layers._attend])
@pytest.mark.parametrize("shape", [(3, 1, 2, 4), (2, 7, 3, 16), (1, 40, 2, 8)], ids=str)
def test_the_ways_of_a_cpu_equal_float64(way, shape):
    windows, length, heads, width = shape
    qkv = torch.randn(windows, length, 3, heads, width, requires_grad=True)
    dout = torch.randn(shape)
    got, expected = way(qkv).transpose(1, 2), by_hand(qkv)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    mine, exact = (torch.autograd.grad(y, qkv, dout.to(y.dtype))[0] for y in (got, expected))
    torch.testing.assert_close(mine, exact, rtol=1e-4, atol=1e-5)


def test_a_cpu_has_its_own_way_for_short_windows(monkeypatch):
    taken = []

    def note(name, way):
        monkeypatch.setattr(layers, name, lambda qkv: taken.append(name) or way(qkv))

    note("_attend", layers._attend)
    note("_attend_short", layers._attend_short)
    config = ModelConfig(vocab_size=5, layers=1, heads=2, width=8, context=129)
    attending = layers.Attention(1, config)
    for p in attending.parameters():
        torch.nn.init.normal_(p)
    outs = []
    for length in (128, 129):
        x = torch.linspace(-1, 1, 129 * 8).view(1, 129, 8)[:, :length]
        outs.append(attending(x, torch.zeros_like(x), length))
    assert taken == ["_attend_short", "_attend"]
    torch.testing.assert_close(outs[0], outs[1][:, :128], rtol=1e-4, atol=1e-5)


# What kernels are for


def some(windows=2, length=8, heads=2, width=16, dtype=torch.float32, device="cpu"):
    return torch.ones(windows, length, 3, heads, width, dtype=dtype, device=device)


def test_a_cpu_takes_no_kernels():
    assert not takes(some())


@pytest.fixture
def everywhere(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(attention, "DEVICES", ("cpu", "meta"))


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ({}, True),
        ({"length": 1, "windows": 0}, True),
        ({"length": 128}, True),
        ({"length": 129}, False),
        ({"dtype": torch.float64}, False),
        ({"dtype": torch.float16}, True),
        ({"dtype": torch.bfloat16, "device": "meta"}, True),
        ({"width": 24}, False),
        ({"width": 8}, False),
        ({"width": 128}, True),
        ({"width": 256}, False),
        ({"width": 128, "length": 64}, True),
        ({"width": 128, "length": 65}, False),
        ({"width": 128, "length": 65, "dtype": torch.bfloat16}, True),
        ({"width": 64, "length": 128}, True),
    ],
    ids=str,
)
def test_what_is_taken(what, expected):
    assert takes(some(**what)) == expected


@pytest.mark.usefixtures("everywhere")
def test_nothing_is_taken_without_triton(monkeypatch):
    monkeypatch.setattr(attention, "HAS_TRITON", False)
    assert not takes(some())


@pytest.mark.parametrize(
    ("major", "room", "what", "expected"),
    [
        (8, 101_376, {"length": 64, "width": 32}, True),  # GeForce
        (8, 101_376, {"length": 64, "width": 64}, False),
        (8, 166_912, {"length": 64, "width": 64}, True),  # A100
        (8, 166_912, {"length": 128, "width": 64}, False),
        (9, 232_448, {"length": 128, "width": 64}, True),  # H100
        (7, 232_448, {"length": 8}, False),
    ],
)
def test_what_devices_have_room_for(major, room, what, expected, monkeypatch):
    device = types.SimpleNamespace(major=major, shared_memory_per_block_optin=room)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    assert attention._fits(some(**what)) == expected


# What is launched


@pytest.fixture
def recorder(monkeypatch) -> types.SimpleNamespace:
    kernels = types.SimpleNamespace(forward_kernel=Recorder(), backward_kernel=Recorder())
    monkeypatch.setattr(package, "attention_kernels", kernels, raising=False)
    return kernels


PAPER = {"BLOCK": 64, "WIDTH": 32, "WHOLE": True, "TURNS": 1, "STAGES": 1}


@pytest.mark.parametrize(
    ("what", "tile"),
    [
        ({"length": 64, "width": 32}, PAPER | {"ROWS": 64, "PRECISION": "ieee", "num_warps": 8}),
        ({"length": 64, "width": 32, "dtype": torch.bfloat16}, PAPER | {"ROWS": 64}),
        ({"length": 50, "width": 32}, {"BLOCK": 64, "WIDTH": 32, "WHOLE": False}),
        ({"length": 1}, {"BLOCK": 16, "ROWS": 16, "WHOLE": False}),
        ({"length": 65}, {"BLOCK": 128, "ROWS": 16, "WHOLE": False, "num_warps": 8}),
        ({"length": 128, "width": 64}, {"BLOCK": 128, "WIDTH": 64, "WHOLE": True}),
    ],
    ids=str,
)
def test_what_is_handed_over(what, tile, recorder):
    qkv = some(windows=3, heads=5, **what).requires_grad_()
    out = attend(qkv)
    dout = torch.ones(1, 1, 1, 1, dtype=qkv.dtype).expand_as(out)
    (dqkv,) = torch.autograd.grad(out, qkv, dout)
    assert (out.shape, dqkv.shape) == (dout.shape, qkv.shape)
    ((grid, forward, options),) = recorder.forward_kernel.launches
    ((again, backward, same),) = recorder.backward_kernel.launches
    assert grid == again == (15,)
    assert options == same
    assert {name: options[name] for name in tile} == tile
    assert forward[0].data_ptr() == backward[0].data_ptr() == qkv.data_ptr()
    assert [x.shape for x in (forward[1], *backward[1:3])] == [out.shape, out.shape, qkv.shape]
    assert all(x.is_contiguous() for x in (*forward[:2], *backward[:3]))
    length, heads, width = qkv.shape[1], 5, qkv.shape[-1]
    numbers = (15, length, heads, width**-0.5)
    assert forward[2:] == backward[3:] == numbers


def test_launches_fit_the_kernels(request):
    kernels = pytest.importorskip("elbowroom.lab.model.attention_kernels")
    recorder = request.getfixturevalue("recorder")
    qkv = some().requires_grad_()
    attend(qkv).sum().backward()
    for name in ("forward_kernel", "backward_kernel"):
        ((_, given, options),) = getattr(recorder, name).launches
        del options["num_warps"]
        bound = inspect.signature(getattr(kernels, name).fn).bind(*given, **options)
        assert bound.arguments["scale"] == 0.25
        assert (bound.arguments["pairs"], bound.arguments["T"], bound.arguments["H"]) == (4, 8, 2)


@pytest.mark.parametrize("position", ["learned", "rotary"])
@pytest.mark.usefixtures("everywhere")
def test_a_layer_hands_over_its_projection(position, recorder):
    shape = {"vocab_size": 5, "layers": 1, "heads": 2, "width": 32, "context": 6}
    attending = layers.Attention(3, ModelConfig(**shape, position=position))
    for p in attending.parameters():
        torch.nn.init.normal_(p)
    x = torch.randn(3, 12, 32)
    assert attending(x, torch.zeros_like(x), 6).shape == x.shape
    ((_, (qkv, *_), _),) = recorder.forward_kernel.launches
    expected = (x @ attending.qkv.weight).view(6, 6, 3, 2, 16)
    turned = 2 if position == "rotary" else 0
    torch.testing.assert_close(qkv[:, :, turned:], expected[:, :, turned:])
    torch.testing.assert_close(qkv[:, 0], expected[:, 0])  # the first place is turned by nothing
    same = torch.allclose(qkv[:, 1, :2], expected[:, 1, :2], atol=1e-4)
    assert same == (position == "learned")


def test_strided_inputs_are_copied(recorder):
    qkv = some().transpose(0, 1).contiguous().transpose(0, 1)
    attend(qkv)
    ((_, given, _),) = recorder.forward_kernel.launches
    assert given[0].is_contiguous()
    assert given[0].shape == qkv.shape


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_products_use_tf32_where_that_is_allowed(precision, recorder):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        attend(some())
    finally:
        torch.set_float32_matmul_precision(before)
    ((_, _, options),) = recorder.forward_kernel.launches
    assert options["PRECISION"] == ("ieee" if precision == "highest" else "tf32")


@pytest.mark.parametrize(("turns", "programs"), [(2, 8), (4, 4), (99, 1)])
def test_programs_share_the_pairs(turns, programs, recorder, monkeypatch):
    monkeypatch.setattr(attention, "TURNS", turns)
    attend(some(windows=3, heads=5))
    ((grid, _, options),) = recorder.forward_kernel.launches
    assert (grid, options["TURNS"]) == ((programs,), turns)


@pytest.mark.parametrize("what", [{"windows": 0}, {"heads": 0}, {"length": 0}])
def test_nothing_is_launched_for_nothing(what, recorder):
    assert attend(some(**what)).numel() == 0
    assert not recorder.forward_kernel.launches


@pytest.mark.usefixtures("recorder")
def test_a_second_derivative_is_refused():
    qkv = some().requires_grad_()
    (dqkv,) = torch.autograd.grad(attend(qkv).sum(), qkv, create_graph=True)
    with pytest.raises(RuntimeError, match="autograd"):
        torch.autograd.grad(dqkv.sum(), qkv)


def test_shapes_are_known_without_a_device():
    qkv = some(windows=3, length=5, device="meta")
    out = torch.ops.elbowroom.attend(qkv)
    assert (out.shape, out.device.type) == ((3, 5, 2, 16), "meta")
    assert torch.ops.elbowroom.attend_backward(qkv, out).shape == qkv.shape
