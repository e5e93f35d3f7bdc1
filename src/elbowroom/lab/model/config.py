"""What decides the shape of a model and how it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elbowroom import checks
from elbowroom.errors import ArgumentValueError

NormKind = Literal["layer", "rms"]
PositionKind = Literal["learned", "rotary"]
MLPKind = Literal["gelu", "swiglu"]
NORM_KINDS = ("layer", "rms")
POSITION_KINDS = ("learned", "rotary")
MLP_KINDS = ("gelu", "swiglu")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A GPT's shape. The defaults are the paper's GPT-2: .80M parameters, tied, without biases.

    Args:
        vocab_size: V, the tokens it knows; 130 are the paper's 65 characters in two languages.
        layers: blocks of attention and MLP.
        heads: attention heads a block; divides ``width``.
        width: D, the length of hidden states and of the embedding's rows.
        context: the most tokens it sees at once.
        norm: "layer" (LayerNorm) or "rms" (RMSNorm), before each part of a block and at the end.
        position: "learned" embeddings, or "rotary" (Su et al., 2021), with base 10,000.
        mlp: "gelu", 4 D wide, or "swiglu", of as many parameters, its width a multiple of 8.
        tied: the head's weight is the embedding itself.
        unigram_bias: the head has a bias a token, which starts at zero.
        linear_bias: projections have biases, as in the original GPT-2; LayerNorm then too.
        init_std: of embeddings and weights; projections back into the residual stream have
            ``init_std / sqrt(2 * layers)``.

    Example:
        >>> ModelConfig(width=96, heads=3, mlp="swiglu").hidden_width
        256
    """

    vocab_size: int = 130
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64
    norm: NormKind = "layer"
    position: PositionKind = "learned"
    mlp: MLPKind = "gelu"
    tied: bool = True
    unigram_bias: bool = False
    linear_bias: bool = False
    init_std: float = 0.02

    def __post_init__(self) -> None:
        for name in ("vocab_size", "layers", "heads", "width", "context"):
            checks.integer(name, getattr(self, name), at_least=1)
        checks.choice("norm", self.norm, NORM_KINDS)
        checks.choice("position", self.position, POSITION_KINDS)
        checks.choice("mlp", self.mlp, MLP_KINDS)
        for name in ("tied", "unigram_bias", "linear_bias"):
            checks.flag(name, getattr(self, name))
        checks.number("init_std", self.init_std, at_least=0.0)
        if self.width % self.heads:
            raise ArgumentValueError("width", f"a multiple of heads, {self.heads}", self.width)
        if self.position == "rotary" and self.head_width % 2:
            expected = "an even number for each head, with rotary positions"
            raise ArgumentValueError("width", expected, f"{self.head_width} a head")

    @property
    def head_width(self) -> int:
        """The length of one attention head's vectors."""
        return self.width // self.heads

    @property
    def hidden_width(self) -> int:
        """The width between the MLP's projections."""
        if self.mlp == "gelu":
            return 4 * self.width
        return -(-8 * self.width // 3 // 8) * 8  # two thirds of 4 D, as there are three matrices
