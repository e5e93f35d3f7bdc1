from __future__ import annotations

import pytest
import torch
from torch import nn

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.margins import FinalNorm


class Llama(nn.Module):
    """Written as many models write it: eps under another name, the weight as a factor."""

    def __init__(self, width: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))
        self.variance_epsilon = 1e-3
        self.offset = offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return ((self.offset + self.weight.float()) * wide).to(x.dtype)


def shaken(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize(
    "module",
    [
        shaken(nn.LayerNorm(6, eps=1e-2)),
        nn.LayerNorm(6, elementwise_affine=False),
        shaken(nn.LayerNorm(6, bias=False)),
        shaken(nn.RMSNorm(6, eps=1e-2)),
        nn.RMSNorm(6),
        nn.RMSNorm(6, elementwise_affine=False),
        Llama(6),
        Llama(6, offset=1.0),
    ],
    ids=lambda m: type(m).__name__,
)
def test_reads_modules(module: nn.Module) -> None:
    x = torch.randn(5, 6) * torch.tensor([[1.0], [10.0], [0.1], [1e-2], [1e-3]])
    torch.testing.assert_close(FinalNorm.of(module)(x), module(x))


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_reads_a_module_in_bfloat16(offset: float) -> None:
    module = Llama(64, offset).to(torch.bfloat16)
    norm = FinalNorm.of(module)
    assert norm.kind == "rms"
    assert norm.weight is not None
    torch.testing.assert_close(norm.weight, offset + module.weight.detach().float())


def test_a_gemma_that_was_never_trained() -> None:
    module = Llama(6, offset=1.0)
    nn.init.zeros_(module.weight)
    norm = FinalNorm.of(module)
    assert norm.weight is not None
    assert norm.weight.tolist() == [1.0] * 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_reads_the_norms_of_transformers() -> None:
    gemma = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    for module in (gemma.Gemma2RMSNorm(8, eps=1e-4), llama.LlamaRMSNorm(8, eps=1e-4)):
        x = torch.randn(3, 8)
        torch.testing.assert_close(FinalNorm.of(shaken(module))(x), module(x))


def test_a_bias_moves_an_rms_norm_too() -> None:
    bias = torch.randn(4)
    x = torch.randn(2, 4)
    moved = FinalNorm("rms", bias=bias)(x)
    torch.testing.assert_close(moved, FinalNorm("rms")(x) + bias)


@pytest.mark.usefixtures("unchecked")
def test_bad_input() -> None:
    with pytest.raises(ArgumentValueError, match="kind: expected 'layer' or 'rms'"):
        FinalNorm("batch")  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match="eps: expected"):
        FinalNorm("rms", eps=-1.0)
    with pytest.raises(ArgumentValueError, match=r"weight: expected \[D\]"):
        FinalNorm("rms", torch.ones(2, 2))
    with pytest.raises(ArgumentValueError, match=r"weight: expected shape \(2,\)"):
        FinalNorm("layer", torch.ones(3))(torch.ones(4, 2))
    with pytest.raises(ArgumentValueError, match=r"bias: expected shape \(2,\)"):
        FinalNorm("rms", bias=torch.ones(1))(torch.ones(4, 2))
    with pytest.raises(ArgumentTypeError, match="bias: expected a tensor"):
        FinalNorm("rms", bias=[0.0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="norm: expected a module"):
        FinalNorm.of("rms")
    with pytest.raises(ArgumentTypeError, match="norm: expected a LayerNorm or an RMSNorm"):
        FinalNorm.of(nn.Linear(3, 3))
    with pytest.raises(ArgumentTypeError, match=r"norm: .* computes something else"):
        FinalNorm.of(nn.PReLU(3))
