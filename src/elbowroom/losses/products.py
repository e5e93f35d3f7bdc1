"""The products with the head's matrix, block by block: logits, and the gradients they pass on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elbowroom.losses.entries import Listed
from elbowroom.losses.problem import Head, compute_dtype

TILE = 2**22  # entries of a 16-bit weight converted at a time
LIST_LENGTH = 3 * 2**18  # entries listed before they are summed into the weight's gradient
LIST_ROWS = 1024  # rows of the weight's gradient summed at a time


@dataclass(frozen=True)
class Needs:
    """Which gradients are wanted."""

    hidden: bool
    weight: bool
    bias: bool


@dataclass(frozen=True)
class Part:
    """Runs and tokens of a problem that are worked on at once; tokens as a range or as ids."""

    runs: slice
    tokens: slice | Tensor

    def __len__(self) -> int:
        """Return the number of tokens of a run."""
        if isinstance(self.tokens, slice):
            return int(self.tokens.stop - self.tokens.start)
        return len(self.tokens)

    def ids(self) -> Int[Tensor, " n"]:
        """Return the tokens as ids."""
        if isinstance(self.tokens, slice):
            return torch.arange(self.tokens.start, self.tokens.stop)
        return self.tokens

    def within(self, strip: slice) -> Part:
        """Return some of a range of tokens, counted from its start."""
        assert isinstance(self.tokens, slice)
        start = self.tokens.start
        return Part(self.runs, slice(start + strip.start, start + strip.stop))

    def select(self, mask: Bool[Tensor, " n"]) -> Part:
        """Return the tokens that a mask chooses."""
        return Part(self.runs, self.ids()[mask])

    @staticmethod
    def join(parts: Sequence[Part]) -> Part:
        """Join parts of the same runs, in order; a range where they are one."""
        first, last = parts[0].tokens, parts[-1].tokens
        if all(isinstance(part.tokens, slice) for part in parts):
            return Part(parts[0].runs, slice(first.start, last.stop))  # type: ignore[union-attr]
        return Part(parts[0].runs, torch.cat([part.ids() for part in parts]))

    def cut_runs(self, x: Tensor) -> Tensor:
        """Cut the runs out of ``[R, ...]``, where R may be 1 and broadcasts."""
        return x if x.shape[0] == 1 else x[self.runs]

    def cut(self, x: Tensor) -> Tensor:
        """Cut the part out of ``[R, N, ...]``, where R and N may be 1 and broadcast."""
        x = self.cut_runs(x)
        return x if x.shape[1] == 1 else x[:, self.tokens]

    def store(self, x: Tensor, out: Tensor) -> None:
        """Write ``x`` where the part lies in ``[R, N, ...]``."""
        out[self.runs, self.tokens] = x


class Products:
    """Makes logits and accumulates gradients, in the dtype that sums are kept in.

    Attributes:
        hidden, weight, bias: the gradients so far; None where not wanted.
        may_list: whether `add_listed` can be used.
    """

    def __init__(self, head: Head, needs: Needs, block: int) -> None:
        self.head = head
        self.dtype = compute_dtype(head.hidden.dtype)
        self.hidden = self._zeros(head.hidden) if needs.hidden else None
        self.weight = self._zeros(head.weight) if needs.weight else None
        self.bias = self._zeros(head.weight[..., 0]) if needs.bias else None
        self._buffer = head.hidden.new_empty(block, dtype=self.dtype)
        on_cpu = head.hidden.device.type == "cpu"  # elsewhere a list's length costs a wait
        self.may_list = on_cpu and head.weight.dtype == self.dtype
        self._room = min(LIST_LENGTH, block)  # entries; a list is never longer than a block
        self._list: tuple[Tensor, Tensor, Tensor] | None = None  # token, column, gradient
        self._listed = 0  # so many entries of it
        self._run = 0  # that they belong to

    def _zeros(self, like: Tensor) -> Tensor:
        return torch.zeros(like.shape, dtype=self.dtype, device=like.device)

    def _tiles(self, part: Part) -> Iterator[tuple[slice, Float[Tensor, "r v D"]]]:
        """Yield slices of the vocabulary and their rows, converted where they must be."""
        weight = self.head.weight[part.runs]
        runs, vocab, width = weight.shape
        step = vocab if weight.dtype == self.dtype else max(1, TILE // (runs * max(1, width)))
        for start in range(0, vocab, step):
            tile = slice(start, min(start + step, vocab))
            yield tile, weight[:, tile].to(self.dtype)

    def logits(self, part: Part) -> Float[Tensor, "r n V"]:
        """Return logits in a buffer that the next call reuses."""
        head, hidden = self.head, part.cut(self.head.hidden).to(self.dtype)
        shape = (*hidden.shape[:2], head.vocab_size)
        z = self._buffer[: shape[0] * shape[1] * shape[2]].view(shape)
        for tile, rows in self._tiles(part):
            torch.bmm(hidden, rows.mT, out=z[..., tile])
        if head.bias is not None:
            z += head.bias[part.runs, None].to(self.dtype)
        if head.softcap is not None:
            z.div_(head.softcap).tanh_().mul_(head.softcap)
        return z if head.logit_scale == 1.0 else z.mul_(head.logit_scale)

    def add_dense(
        self, part: Part, raw: Float[Tensor, "r n V"], below: Bool[Tensor, "r n V"] | None
    ) -> None:
        """Add gradients from that of the raw logits; rows get nothing where ``below``."""
        hidden = part.cut(self.head.hidden).to(self.dtype)
        if self.hidden is not None:
            out = torch.zeros_like(hidden)
            for tile, rows in self._tiles(part):
                out.baddbmm_(raw[..., tile], rows)
            part.store(out, self.hidden)
        if below is not None:
            raw.masked_fill_(below, 0.0)
        if self.weight is not None:
            self.weight[part.runs].baddbmm_(raw.mT, hidden)
        if self.bias is not None:
            self.bias[part.runs] += raw.sum(1)

    def add_listed(self, part: Part, raw: Float[Tensor, " K"], entries: Listed) -> None:
        """Add gradients from the listed entries of one run."""
        run = part.runs.start
        if self.hidden is not None:
            self.hidden[run, part.tokens] = F.embedding_bag(
                entries.column,
                self.head.weight[run],
                entries.count.cumsum(0) - entries.count,
                mode="sum",
                per_sample_weights=raw,
            )
        if self.bias is not None:
            self.bias[run].index_add_(0, entries.column, raw)
        if self.weight is None:
            return
        token = part.ids()[entries.row]
        if run != self._run:
            self.finish()
        self._run = run
        for start in range(0, len(raw), self._room):
            piece = slice(start, min(start + self._room, len(raw)))
            self._append(token[piece], entries.column[piece], raw[piece])

    def _append(self, *columns: Tensor) -> None:
        """Append to the list, whose memory is taken once: appending must not fragment it."""
        count = len(columns[0])
        if self._listed + count > self._room:
            self.finish()
        if self._list is None:
            kinds = (torch.int32, torch.int32, self.dtype)
            token, column, raw = (torch.empty(self._room, dtype=kind) for kind in kinds)
            self._list = (token, column, raw)
        for x, out in zip(columns, self._list, strict=True):
            out[self._listed : self._listed + count] = x
        self._listed += count

    def finish(self) -> None:
        """Sum the list into the weight's gradient, row by row: a product with few entries."""
        if self._list is None or self.weight is None or not self._listed:
            return
        token, column, raw = (x[: self._listed] for x in self._list)
        self._listed = 0
        column, order = column.sort(stable=True)
        token, raw = token[order], raw[order]
        del order
        vocab = self.head.vocab_size
        edges = torch.searchsorted(column, torch.arange(vocab + 1, dtype=column.dtype))
        for start in range(0, vocab, LIST_ROWS):
            stop = min(start + LIST_ROWS, vocab)
            first, last = int(edges[start]), int(edges[stop])
            if first == last:
                continue
            rows = F.embedding_bag(
                token[first:last],
                self.head.hidden[self._run],
                (edges[start:stop] - first).to(token.dtype),
                mode="sum",
                per_sample_weights=raw[first:last],
            )
            self.weight[self._run, start:stop].add_(rows)  # not +=, which copies the sum once more
