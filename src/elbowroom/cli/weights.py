"""Reads a model's output embedding and final norm from safetensors files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from elbowroom.cli.main import UsageError
from elbowroom.errors import FileError
from elbowroom.margins.norms import FinalNorm, NormKind

# How names end, the likelier first. The head comes before the input embedding: margins are about
# logits, and where the two are tied, files hold one of them.
EMBEDDINGS = (
    ("lm_head.weight", "embed_out.weight"),
    ("wte.weight", "embed_tokens.weight", "embed_in.weight", "word_embeddings.weight"),
    ("tok_embeddings.weight", "token_embedding.weight"),
)
NORMS = (
    ("ln_f.weight", "final_layernorm.weight", "final_layer_norm.weight", "norm_f.weight"),
    ("norm.weight",),
)
# Families whose norms multiply by 1 + weight.
OFFSET_MODELS = (
    *("gemma", "gemma2", "gemma3", "gemma3_text", "recurrent_gemma", "t5gemma", "vaultgemma"),
    *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
)
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Weights:
    """The tensors of one or more safetensors files, found by name and read when asked for."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = {name: file for file in files for name in _names(file)}
        self.config = _config(files[0].parent / "config.json")

    def read(self, name: str) -> Tensor:
        """Return a floating-point tensor."""
        if name not in self.files:
            raise FileError(f"no tensor {name!r}; there are {_some(self.files)}")
        with safe_open(self.files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        if tensor.dtype not in FLOATS:
            raise FileError(
                f"{name}: expected float64, float32, bfloat16 or float16, got {tensor.dtype}; "
                "quantised weights have to be converted first"
            )
        return tensor

    def find(self, what: str, option: str, endings: Sequence[Sequence[str]]) -> str:
        """Return the one name with the likeliest ending, outside a model's numbered layers."""
        outside = [n for n in self.files if not any(part.isdigit() for part in n.split("."))]
        for group in endings:
            found = [n for n in outside if any(re.search(rf"(^|\.){e}$", n) for e in group)]
            if len(found) > 1:
                raise FileError(f"several tensors may be the {what}; pass {option}: {_some(found)}")
            if found:
                return found[0]
        raise FileError(f"found no {what} by its usual names; pass {option}: {_some(outside)}")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which tensors to read and how to understand the norm; None is to be found out."""

    embedding: str | None = None
    norm: str | None = None
    kind: NormKind | None = None
    eps: float | None = None
    offset: float | None = None


def load(weights: Weights, choice: Choice) -> tuple[Tensor, FinalNorm, dict[str, Any]]:
    """Return the embedding, the final norm, and what was chosen, in words for a report."""
    embedding = choice.embedding or weights.find("embedding", "--embedding NAME", EMBEDDINGS)
    name = choice.norm or weights.find("final norm", "--norm NAME", NORMS)
    bias = name.removesuffix("weight") + "bias"
    has_bias = name.endswith("weight") and bias in weights.files
    kind = choice.kind or _kind(name, has_bias, weights.config)
    eps = _eps(kind, weights.config) if choice.eps is None else choice.eps
    offset = choice.offset
    if offset is None:
        offset = float(weights.config.get("model_type") in OFFSET_MODELS)
    gamma = weights.read(name).float() + offset
    norm = FinalNorm(kind, gamma, weights.read(bias) if has_bias else None, eps)
    weight = weights.read(embedding)
    chosen = {"embedding": embedding, "shape": list(weight.shape), "norm": name}
    return weight, norm, chosen | {"norm_kind": kind, "eps": eps, "norm_offset": offset}


def named(option: str, words: Sequence[str]) -> dict[str, Weights]:
    """Return the weights that NAME=FILE[,FILE...] name, looked at but not read.

    Args:
        option: as the user typed it, for errors.
        words: one a model.
    """
    found: dict[str, Weights] = {}
    for word in words:
        name, sign, files = word.partition("=")
        if not (name and sign and all(files.split(","))):
            raise UsageError(
                f"{option}: expected NAME=FILE, such as gpt2=model.safetensors, got {word!r}"
            )
        if name in found:
            raise UsageError(f"{option}: {name} is there twice; put commas between a model's files")
        found[name] = Weights([Path(file) for file in files.split(",")])
    return found


def _names(path: Path) -> list[str]:
    if path.is_dir():
        inside = sorted(p.name for p in path.glob("*.safetensors"))
        hint = f"name the files in it: {_some(inside)}" if inside else "it has no .safetensors"
        raise FileError(f"{path}: expected a safetensors file, got a folder; {hint}")
    if not path.exists():
        raise FileError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except SafetensorError as error:
        raise FileError(f"{path}: not a safetensors file, or a damaged one ({error})") from error


def _config(path: Path) -> dict[str, Any]:
    """Return the model's configuration beside its weights, or nothing."""
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileError(f"{path}: damaged JSON ({error}); mend it or take it away") from error
    if not isinstance(config, dict):
        raise FileError(f"{path}: expected a JSON object, got {type(config).__name__}")
    inner = config.get("text_config")
    return config | inner if isinstance(inner, dict) else config


def _kind(name: str, has_bias: bool, config: dict[str, Any]) -> NormKind:
    if has_bias or re.search(r"ln_f|layer_?norm", name):
        return "layer"
    named = "layer_norm_eps" in config or "layer_norm_epsilon" in config
    return "layer" if named and "rms_norm_eps" not in config else "rms"


def _eps(kind: NormKind, config: dict[str, Any]) -> float:
    keys = ("rms_norm_eps",) if kind == "rms" else ("layer_norm_epsilon", "layer_norm_eps")
    for key in keys:
        if isinstance(config.get(key), (int, float)):
            return float(config[key])
    return 1e-6 if kind == "rms" else 1e-5


def _some(names: Sequence[str] | dict[str, Path], most: int = 12) -> str:
    names = sorted(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + rest
