"""What attention on short windows must do, on any device that the kernels run on.

Modules that import these tests bring the fixture ``device``.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from elbowroom.lab.model import GPT, ModelConfig, attention
from elbowroom.lab.model.attention import attend

CLOSE = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.float16: {"rtol": 2e-3, "atol": 4e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 3e-2},
}
# windows, tokens, heads, width of a head
SHAPES = [
    (3, 1, 1, 16),
    (2, 7, 3, 16),
    (2, 16, 2, 64),
    (1, 33, 3, 32),
    (2, 64, 2, 32),
    (1, 50, 1, 128),
]
LONG = [(1, 65, 2, 16), (1, 128, 1, 64), (1, 100, 1, 32)]


def some(shape, dtype, device) -> tuple[Tensor, Tensor]:
    """Return queries, keys and values, and a gradient of the output."""
    windows, length, heads, width = shape
    torch.manual_seed(0)
    qkv = torch.randn(windows, length, 3, heads, width)
    dout = torch.randn(windows, length, heads, width)
    return qkv.to(device, dtype).requires_grad_(), dout.to(device, dtype)


def plain(qkv: Tensor) -> Tensor:
    q, k, v = qkv.transpose(1, 3).unbind(2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def both(function, qkv: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and gradient."""
    out = function(qkv)
    return out.detach(), *torch.autograd.grad(out, qkv, dout)


def exact(qkv: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    return both(plain, qkv.detach().double().requires_grad_(), dout.double())


def check(shape, dtype, device) -> None:
    given = some(shape, dtype, device)
    got = both(attend, *given)
    assert all(x.dtype == dtype and x.is_contiguous() for x in got)
    torch.testing.assert_close(got, exact(*given), check_dtype=False, **CLOSE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_and_gradients_equal_float64(shape, dtype, device):
    check(shape, dtype, device)


@pytest.mark.parametrize("shape", LONG, ids=str)
def test_windows_of_several_rows_of_tiles(shape, device):
    check(shape, torch.float32, device)


@pytest.mark.parametrize(("turns", "stages"), [(2, 1), (3, 2)])
def test_programs_that_take_several_pairs_in_turn(turns, stages, device, monkeypatch):
    given = some((2, 20, 2, 16), torch.float32, device)
    whole = both(attend, *given)
    monkeypatch.setattr(attention, "TURNS", turns)
    monkeypatch.setattr(attention, "STAGES", stages)
    assert all(map(torch.equal, both(attend, *given), whole))


def test_large_scores_stay_finite(device):
    qkv, dout = some((1, 20, 1, 16), torch.float32, device)
    given = (qkv.detach() * 100).requires_grad_(), dout
    torch.testing.assert_close(
        both(attend, *given), exact(*given), check_dtype=False, rtol=1e-4, atol=1e-3
    )


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, interpreted
def test_another_window_that_is_not_finite_changes_nothing(device):
    qkv, dout = some((3, 5, 2, 16), torch.float32, device)
    whole = both(attend, qkv, dout)
    with torch.no_grad():
        qkv[1] = torch.nan
    spoilt = both(attend, qkv, dout)
    for before, after in zip(whole, spoilt, strict=True):
        assert torch.equal(before[[0, 2]], after[[0, 2]])
        assert after[1].isnan().all()


def test_strides_of_any_kind(device):
    qkv, dout = some((2, 9, 2, 16), torch.float32, device)
    whole = both(attend, qkv, dout)
    strided = qkv.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    other = dout.transpose(1, 2).contiguous().transpose(1, 2)
    assert all(map(torch.equal, both(attend, strided, other), whole))
    summed = both(attend, qkv, dout[:1, :1, :1, :1].expand_as(dout))
    even = both(attend, qkv, dout[:1, :1, :1, :1].expand_as(dout).contiguous())
    assert all(map(torch.equal, summed, even))


@pytest.mark.parametrize("shape", [(0, 4, 2, 16), (2, 4, 0, 16), (2, 0, 2, 16)])
def test_nothing_comes_of_nothing(shape, device):
    qkv, dout = some(shape, torch.float32, device)
    out, dqkv = both(attend, qkv, dout)
    assert (out.shape, dqkv.shape) == (dout.shape, qkv.shape)


def test_the_operators_keep_their_word(device):
    qkv, dout = some((2, 9, 2, 16), torch.float32, device)
    torch.library.opcheck(torch.ops.elbowroom.attend, (qkv,))
    torch.library.opcheck(torch.ops.elbowroom.attend_backward, (qkv.detach(), dout))


def model_and_ids(device, **options):
    torch.manual_seed(0)
    shape = {"vocab_size": 11, "layers": 2, "heads": 2, "width": 32, "context": 9}
    model = GPT(ModelConfig(**shape, **options, init_std=0.3), [0, 1, 2]).to(device)
    return model, torch.randint(11, (3, 2, 9)).to(device)


def states_and_gradients(function, model, ids):
    hidden = function(ids)
    total = hidden.float().sin().sum()
    return hidden.detach(), torch.autograd.grad(total, list(model.parameters()))


def spied(monkeypatch) -> list[str]:
    """Note which kernels are launched."""
    calls: list[str] = []
    launch = attention._launch

    def spy(kernel, *tensors):
        calls.append(kernel)
        launch(kernel, *tensors)

    monkeypatch.setattr(attention, "_launch", spy)
    return calls


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_the_model_uses_it(position, device, monkeypatch):
    calls = spied(monkeypatch)
    model, ids = model_and_ids(device, position=position)
    got = states_and_gradients(model, model, ids)
    assert calls == ["forward_kernel"] * 2 + ["backward_kernel"] * 2
    monkeypatch.setattr(attention, "DEVICES", ())
    other = states_and_gradients(model, model, ids)
    assert len(calls) == 4
    torch.testing.assert_close(got, other, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("unchecked")  # the checker of shapes cannot be traced
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch warns of itself
@pytest.mark.filterwarnings("ignore:TensorFloat32")  # and on a GPU that it could be faster
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_the_model_compiled_in_one_graph(backend, device, monkeypatch):
    calls = spied(monkeypatch)
    torch.compiler.reset()
    model, ids = model_and_ids(device)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(
        states_and_gradients(compiled, model, ids),
        states_and_gradients(model, model, ids),
        rtol=1e-4,
        atol=1e-4,
    )
    assert calls.count("backward_kernel") == 4
