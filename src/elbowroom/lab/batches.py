"""Batches for a population: which windows of which language a run sees at a step.

A window's language and place are functions of the run's data seed, the step and the window's
number (see `elbowroom.lab.random`): the order of data depends on nothing else, and resuming needs
no replay. Two runs with one data seed and one sampling see the same windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentValueError
from elbowroom.lab import random

if TYPE_CHECKING:
    from elbowroom.lab.tokens import Corpus, Stream

LANGUAGE = random.stream("language of a window")
PLACE = random.stream("place of a window")
STREAMS = {  # of random numbers, by the split of the text
    "train": (LANGUAGE, PLACE),
    "validation": tuple(map(random.stream, ("language of a check", "place of a check"))),
}
Split = Literal["train", "validation"]
RESIDENT = 2**32  # bytes of text that are moved to an accelerator; more stays mapped on the host


@dataclass(frozen=True)
class Batch:
    """Windows of text: ``ids`` go in, ``target`` is each one's next token."""

    ids: Int[Tensor, "R B T"]
    target: Int[Tensor, "R B T"]
    language: Int[Tensor, "R B"]


class Windows:
    """All streams of a split, from which windows of ``context`` tokens are cut.

    Args:
        streams: one a language.
        context: T.
        device: where windows are wanted. The text lies there too unless it is large.
    """

    def __init__(self, streams: Sequence[Stream], context: int, device: torch.device) -> None:
        self.context, self.device = context, device
        distinct: dict[int, tuple[int, np.ndarray]] = {}  # shared texts lie once
        total = 0
        starts = []
        for stream in streams:
            if id(stream.tokens) not in distinct:
                distinct[id(stream.tokens)] = (total, stream.tokens)
                total += len(stream.tokens)
            starts.append(distinct[id(stream.tokens)][0])
        texts = [tokens for _, tokens in distinct.values()]
        size = sum(tokens.nbytes for tokens in texts)
        self._text = texts
        self._resident: Tensor | None = None
        if device.type != "cpu" and size <= RESIDENT:
            self._resident = self.joined().to(device)
        self._bounds = np.cumsum([0] + [len(tokens) for tokens in texts])
        length = [len(stream.tokens) for stream in streams]
        self.start = torch.tensor(starts, device=device)
        self.places = torch.tensor(length, device=device) - context  # windows have a next token
        self.offset = torch.tensor([stream.offset for stream in streams], device=device)
        if min(length, default=0) <= context:
            expected = f"more than {context} tokens of each language"
            raise ArgumentValueError("context", expected, f"a text of {min(length)} tokens")

    @property
    def on_device(self) -> bool:
        """Whether cutting windows waits for nothing, so that a CUDA graph can hold it."""
        return self._resident is not None

    def cut(
        self, language: Int[Tensor, "*n"], place: Int[Tensor, "*n"]
    ) -> tuple[Int[Tensor, "*n T"], Int[Tensor, "*n T"]]:
        """Return the tokens of windows and their next tokens.

        Args:
            language: of each window.
            place: where it begins in its language's text.
        """
        first = (self.start[language] + place)[..., None]
        index = first + torch.arange(self.context + 1, device=self.device)
        tokens = self._take(index) + self.offset[language][..., None]
        return tokens[..., :-1], tokens[..., 1:]

    def joined(self) -> Int[Tensor, " m"]:
        """Return all text, one after the other, of a type that torch can gather."""
        tokens = np.concatenate(self._text)
        wide = {"uint8": np.uint8, "uint16": np.int32, "uint32": np.int64}[tokens.dtype.name]
        return torch.from_numpy(tokens.astype(wide))

    def _take(self, index: Int[Tensor, "*n W"]) -> Int[Tensor, "*n W"]:
        if self._resident is not None:
            return self._resident[index].long()
        flat = index.reshape(-1, index.shape[-1]).cpu().numpy()
        out = np.empty(flat.shape, dtype=np.int64)
        for row, at in zip(out, flat, strict=True):  # a window lies within one text
            text = int(np.searchsorted(self._bounds, at[0], side="right")) - 1
            begin = at[0] - self._bounds[text]
            row[:] = self._text[text][begin : begin + len(at)]
        return torch.from_numpy(out).to(self.device).view(index.shape)


class Batches:
    """Random windows of a text, for R runs: of the training text unless told otherwise.

    Args:
        corpus: the texts.
        shares: ``[R, L]``, how often each language is drawn.
        data_seeds: ``[R]``.
        batch: windows a step, B.
        context: T.
        device: where batches are wanted.
        rank: with `world`, of the processes that share each batch, which this is.
        world: how many share each batch.
        split: of the texts. Each has random numbers of its own.
    """

    def __init__(
        self,
        corpus: Corpus,
        shares: Float[Tensor, "R L"],
        data_seeds: Sequence[int],
        *,
        batch: int,
        context: int,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
        split: Split = "train",
    ) -> None:
        checks.has_shape(
            "shares", shares, (len(data_seeds), len(corpus.languages)), "a share a language"
        )
        if batch % world:
            raise ArgumentValueError("batch", f"a multiple of {world} processes", batch)
        texts = corpus.train if split == "train" else corpus.validation
        self.windows = Windows(texts, context, device)
        self._language, self._place = STREAMS[split]
        self._seed = torch.tensor(list(data_seeds), device=device)[:, None]
        upto = shares.double().cumsum(-1) / shares.double().sum(-1, keepdim=True)
        self._upto = upto[:, None, :-1].to(device, torch.float32)
        own = batch // world
        self._everyone = torch.arange(batch, device=device)
        self._number = self._everyone[rank * own : rank * own + own]

    def draw(
        self, step: Int[Tensor, ""], part: slice = slice(None), *, everyone: bool = False
    ) -> Batch:
        """Return the windows of a step, or some of them.

        Args:
            step: 0-d, on the device; counts from 0.
            part: which windows of the batch.
            everyone: of the batch of all processes, not of this one's share.
        """
        number = (self._everyone if everyone else self._number)[part]
        u = random.uniform(self._seed, self._language, step, number)
        language = (u[..., None] >= self._upto).sum(-1)
        place = random.below(self.windows.places[language], self._seed, self._place, step, number)
        ids, target = self.windows.cut(language, place)
        return Batch(ids, target, language)
