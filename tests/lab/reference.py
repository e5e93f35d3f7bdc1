"""A GPT of ordinary modules for one run, without a run dimension: the oracle of the lab's model."""

from __future__ import annotations

import math

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.weight


def turned(x):
    """Turn pairs (i, i + d/2) of ``[B, H, T, d]`` by their angles, as complex numbers."""
    half = x.shape[-1] // 2
    z = torch.complex(x[..., :half], x[..., half:])
    rate = 10_000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * rate
    z = z * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((z.real, z.imag), -1)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        norm = RMSNorm if c.norm == "rms" else lambda width: nn.LayerNorm(width, bias=c.linear_bias)
        D, gated = c.width, c.mlp == "swiglu"
        self.c, self.gated = c, gated
        self.attention_norm, self.mlp_norm = norm(D), norm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D, c.linear_bias), nn.Linear(D, D, c.linear_bias)
        self.up = nn.Linear(D, c.hidden_width * (1 + gated), c.linear_bias)
        self.down = nn.Linear(c.hidden_width, D, c.linear_bias)

    def attend(self, x):
        B, T, D = x.shape
        q, k, v = (
            part.view(B, T, self.c.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(D, dim=-1)
        )
        if self.c.position == "rotary":
            q, k = turned(q), turned(k)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        weight = scores.masked_fill(future, -math.inf).softmax(-1)
        return self.out((weight @ v).transpose(1, 2).reshape(B, T, D))

    def think(self, x):
        y = self.up(x)
        if self.gated:
            gate, value = y.split(self.c.hidden_width, dim=-1)
            return self.down(gate * gate.sigmoid() * value)
        return self.down(y * 0.5 * (1 + torch.erf(y / math.sqrt(2))))

    def forward(self, x):
        x = x + self.attend(self.attention_norm(x))
        return x + self.think(self.mlp_norm(x))


class Reference(nn.Module):
    """Takes what `GPT.run_state` returns."""

    def __init__(self, c, state):
        super().__init__()
        self.embedding = nn.Embedding(c.vocab_size, c.width)
        self.positions = nn.Embedding(c.context, c.width) if c.position == "learned" else None
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = (
            RMSNorm(c.width) if c.norm == "rms" else nn.LayerNorm(c.width, bias=c.linear_bias)
        )
        self.output = nn.Linear(c.width, c.vocab_size, bias=c.unigram_bias)
        if c.tied:
            self.output.weight = self.embedding.weight
        self.to(state["embedding"].dtype)
        names = dict(self.named_parameters())
        assert {theirs(name) for name in state} == names.keys()
        with torch.no_grad():
            for name, value in state.items():
                product = value.ndim == 2 and (".attention." in name or ".mlp." in name)
                names[theirs(name)].copy_(value.T if product else value)

    def forward(self, ids):
        """Return hidden states and logits for ``[B, T]``."""
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[-1]))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return x, self.output(x)


def theirs(name):
    """Return the reference's name of one of the lab's parameters."""
    if name in ("embedding", "positions", "output"):
        return f"{name}.weight"
    if name == "output_bias":
        return "output.bias"
    return name.replace(".attention.", ".").replace(".mlp.", ".")
