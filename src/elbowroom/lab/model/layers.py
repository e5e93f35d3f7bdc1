"""The parts of a block, each with a leading dimension of runs.

Activations are ``[R, N, D]``, the N tokens of a run in one row, and weights ``[R, D_in, D_out]``:
the order in which products and both their gradients need no transposed copy.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from elbowroom.lab.model import attention
from elbowroom.lab.model.config import ModelConfig
from elbowroom.lab.model.products import product

EPS = 1e-5  # of both norms: PyTorch's default for LayerNorm, as in the paper
ROTARY_BASE = 10_000.0
SHORT = 128  # tokens; see `_is_short`


class Linear(nn.Module):
    """A product with one matrix a run."""

    def __init__(self, runs: int, d_in: int, d_out: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(runs, d_in, d_out))
        self.bias = nn.Parameter(torch.empty(runs, d_out)) if bias else None

    def forward(
        self, x: Float[Tensor, "R N I"], onto: Float[Tensor, "R N O"] | None = None
    ) -> Float[Tensor, "R N O"]:
        """Return ``x @ weight + bias``, added to ``onto`` where that is given."""
        if self.bias is None:
            return product(x, self.weight, onto)
        bias = self.bias[:, None]
        return product(x, self.weight, bias if onto is None else onto + bias)


class Norm(nn.Module):
    """LayerNorm or RMSNorm with one gain a run."""

    def __init__(self, runs: int, config: ModelConfig) -> None:
        super().__init__()
        self.kind = config.norm
        self.weight = nn.Parameter(torch.empty(runs, config.width))
        has_bias = config.linear_bias and config.norm == "layer"
        self.bias = nn.Parameter(torch.empty(runs, config.width)) if has_bias else None

    def forward(self, x: Float[Tensor, "R N D"]) -> Float[Tensor, "R N D"]:
        """Return ``x``, each token's vector normalised, times the gain, plus the bias."""
        if self.weight.shape[0] == 1:  # one pass instead of two
            bias = None if self.bias is None else self.bias.squeeze(0)
            return self._normalise(x, self.weight.squeeze(0), bias)
        y = self._normalise(x, None, None)
        weight = self.weight[:, None]
        return y * weight if self.bias is None else torch.addcmul(self.bias[:, None], y, weight)

    def _normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if self.kind == "layer":
            return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)
        return F.rms_norm(x, x.shape[-1:], weight, EPS)


class Rotary(nn.Module):
    """Turns queries and keys by an angle that grows with the position, pair of entries by pair."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        half = config.head_width // 2
        rate = ROTARY_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(config.context, dtype=torch.float64)[:, None] * rate
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, x: Float[Tensor, "B T two H d"]) -> Float[Tensor, "B T two H d"]:
        """Return queries and keys, turned; entry i is paired with entry i + d / 2."""
        length = x.shape[1]
        cos, sin = (table[:length, None, None].to(x.dtype) for table in (self.cos, self.sin))
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin


class Attention(nn.Module):
    """Causal attention of several heads; runs are folded into the batch."""

    def __init__(self, runs: int, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        width, bias = config.width, config.linear_bias
        self.qkv = Linear(runs, width, 3 * width, bias=bias)
        self.out = Linear(runs, width, width, bias=bias)
        self.rotary = Rotary(config) if config.position == "rotary" else None

    def forward(
        self, x: Float[Tensor, "R N D"], onto: Float[Tensor, "R N D"], length: int
    ) -> Float[Tensor, "R N D"]:
        """Attend within each ``length`` tokens of ``x``, and add the result to ``onto``."""
        qkv = self.qkv(x).view(-1, length, 3, self.heads, x.shape[-1] // self.heads)
        if self.rotary is not None:
            qkv = torch.cat((self.rotary(qkv[:, :, :2]), qkv[:, :, 2:]), 2)
        if attention.takes(qkv):
            y = attention.attend(qkv)
        else:
            y = (_attend_short(qkv) if _is_short(qkv) else _attend(qkv)).transpose(1, 2)
        out: Tensor = self.out(y.reshape(x.shape), onto)
        return out


def _is_short(qkv: Tensor) -> bool:
    """Tell where plain products beat PyTorch's fused attention, which uses a CPU's cores badly."""
    return qkv.device.type == "cpu" and qkv.shape[1] <= SHORT


def _attend(qkv: Float[Tensor, "B T three H d"]) -> Float[Tensor, "B H T d"]:
    q, k, v = qkv.transpose(1, 3).unbind(2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _attend_short(qkv: Float[Tensor, "B T three H d"]) -> Float[Tensor, "B H T d"]:
    """Return the same from weights ``[B, H, T, T]`` that exist in full."""
    batch, length, _, heads, size = qkv.shape
    q, k, v = qkv.permute(2, 0, 3, 1, 4).reshape(3, -1, length, size).unbind(0)
    future = qkv.new_full((length, length), -math.inf).triu_(1)
    weight = torch.baddbmm(future, q, k.mT, alpha=size**-0.5).softmax(-1)
    return torch.bmm(weight, v).view(batch, heads, length, size)


class MLP(nn.Module):
    """Two projections with GELU between them, or three with a gate (SwiGLU)."""

    def __init__(self, runs: int, config: ModelConfig) -> None:
        super().__init__()
        self.gated = config.mlp == "swiglu"
        hidden, bias = config.hidden_width, config.linear_bias
        self.up = Linear(runs, config.width, hidden * (2 if self.gated else 1), bias=bias)
        self.down = Linear(runs, hidden, config.width, bias=bias)

    def forward(
        self, x: Float[Tensor, "R N D"], onto: Float[Tensor, "R N D"]
    ) -> Float[Tensor, "R N D"]:
        """Apply to each token of ``x``, and add the result to ``onto``."""
        y = self.up(x)
        if self.gated:
            gate, value = y.chunk(2, -1)
            y = F.silu(gate) * value
        else:
            y = F.gelu(y)
        out: Tensor = self.down(y, onto)
        return out


class Block(nn.Module):
    """Attention and MLP, each on the normalised residual stream and added to it."""

    def __init__(self, runs: int, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = Norm(runs, config)
        self.attention = Attention(runs, config)
        self.mlp_norm = Norm(runs, config)
        self.mlp = MLP(runs, config)

    def forward(self, x: Float[Tensor, "R N D"], length: int) -> Float[Tensor, "R N D"]:
        """Return the residual stream after the block."""
        x = self.attention(self.attention_norm(x), x, length)
        out: Tensor = self.mlp(self.mlp_norm(x), x)
        return out
