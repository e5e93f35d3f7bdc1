"""Triton backend: chunks of tokens, one product by the vendor's library, kernels for the rest.

A chunk's raw products exist, in the dtype of the input and within `BUDGET`. `rows.survey_kernel`
reads them and marks the strips of 128 logits in which a token keeps something; what is not marked
is never touched again. From the marks follow lists, made and read on the device:

* of each strip, the tokens that keep something of it: a strip of the weight's gradient is a product
  over these;
* of each block of 128 tokens that keep much, sorted by how much, the strips that any of them needs:
  their hidden gradients are a product over these;
* of each token that keeps little, its entries: its hidden gradient is a weighted sum of rows.

Where it is known beforehand that everything is kept, as for ordinary cross-entropy, the products
are the library's. Nothing waits for the device.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom.errors import ArgumentValueError
from elbowroom.losses.chunked import Swept
from elbowroom.losses.problem import Head, Tokens
from elbowroom.losses.products import Needs
from elbowroom.losses.spec import Spec, TokenStats
from elbowroom.losses.variants import Decoupled, DetachedBelow, Leaky, RareOnly, Softminus

DEVICES = ("cuda",)  # tests that interpret kernels add the CPU
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HAS_TRITON = importlib.util.find_spec("triton") is not None
STRIP = 128
FOUND = 8
# A token's hidden gradient is a sum of rows where it keeps so many entries at most, or so small a
# share of the vocabulary: reading a row for each costs less than a block's product over all strips.
LISTED, LISTED_SHARE = 128, 1 / 500
TOKENS = 128  # of a block
ALIGNED = 128  # chunks are whole multiples of so many tokens, where that is possible
MOST = 2**15  # tokens of a chunk: lists number them in 16 bits
EXACT = "ieee"  # how float32 is multiplied where TF32 is not allowed


def _budget() -> int:
    """Return the bytes that a chunk's products may take: 1003 MiB, or what the user says."""
    name = "ELBOWROOM_LOGITS_MIB"
    text = os.environ.get(name, "1003")
    if not text.isdigit() or int(text) == 0:
        raise ArgumentValueError(name, "a number of MiB, at least 1", repr(text), "unset it")
    return int(text) * 2**20


BUDGET = _budget()


def takes(hidden: Tensor) -> bool:
    """Return whether the kernels serve hidden states of this device and dtype."""
    return HAS_TRITON and hidden.device.type in DEVICES and hidden.dtype in DTYPES


def why_not(head: Head) -> str:
    """Return why the kernels do not serve a head, and what does."""
    x = head.hidden
    if not HAS_TRITON:
        reason = "Triton is not installed"
    elif x.device.type not in DEVICES:
        reason = f"the tensors are on {x.device}, not on a GPU"
    else:
        reason = f"{x.dtype} is none of float32, bfloat16 and float16"
    return f"backend: 'triton' cannot run here: {reason}; pass 'auto', 'chunked' or 'reference'"


def sweep(
    head: Head,
    tokens: Tokens,
    spec: Spec,
    coefficient: Float[Tensor, "R N"] | None,
    needs: Needs,
    *,
    stats: bool,
) -> Swept:
    """Return losses, and gradients of ``sum_n coefficient_n * loss_n`` if there are coefficients.

    The hidden gradient comes in the dtype of the hidden states, the others in float32.
    """
    done = [
        Sweep(head, tokens, spec, coefficient, needs, r, stats=stats)
        for r in range(len(head.hidden))
    ]

    def joined(name: str) -> Any:
        parts = [getattr(sweep, name) for sweep in done]
        return (
            None if parts[0] is None else parts[0][None] if len(parts) == 1 else torch.stack(parts)
        )

    found = None
    if stats:
        parts = zip(*(sweep.stats for sweep in done), strict=True)
        found = TokenStats(*(torch.stack(list(part)) for part in parts))
    return Swept(joined("losses"), joined("hidden"), joined("weight"), joined("bias"), found)


class Sweep:
    """One run's pass over all chunks.

    Attributes:
        losses: ``[N]``, 0 where ignored.
        hidden, weight, bias: gradients; None where not wanted.
        stats: log-probability, rank, argmax, kept, touched; empty if not wanted.
    """

    def __init__(
        self,
        head: Head,
        tokens: Tokens,
        spec: Spec,
        coefficient: Float[Tensor, "R N"] | None,
        needs: Needs,
        r: int,
        *,
        stats: bool,
    ) -> None:
        self.states, self.matrix = head.hidden[r].detach(), head.weight[r].detach().contiguous()
        self.offset = None if head.bias is None else head.bias[r].detach().contiguous()
        count, self.width = self.states.shape
        self.vocab, self.strips = len(self.matrix), -(-len(self.matrix) // STRIP)
        self.target = tokens.target[r].contiguous()
        self.counted = tokens.counted[r].contiguous().view(torch.uint8)
        self.margin = _of_run(spec.margin, r).float().expand(count).contiguous()
        self.options, self.masks = _options(head, spec, r)
        self.dense = spec.keeps_all
        self.grading = coefficient is not None and any((needs.hidden, needs.weight, needs.bias))
        self.unit = self.factor = None
        if self.grading:
            assert coefficient is not None
            self.unit = _unit(coefficient[r].float(), self.states.dtype)
            self.factor = (coefficient[r].float() / self.unit).contiguous()
        new = self.states.new_empty
        self.losses = new(count, dtype=torch.float32)
        self.hidden = new(self.states.shape) if needs.hidden and self.grading else None
        self.weight = self.bias = None
        if self.grading and (needs.weight or needs.bias):
            make = torch.empty if count else torch.zeros
            options: dict[str, Any] = {"dtype": torch.float32, "device": self.states.device}
            self.weight = make(self.matrix.shape, **options)
            self.bias = make(self.vocab, **options) if needs.bias else None
        self.stats = self._statistics(count) if stats else ()
        self._chunks(count)
        if self.grading and self.dense and self.states.dtype == torch.float16:
            assert self.unit is not None
            for x in (self.hidden, self.weight, self.bias):  # elsewhere kernels do this
                if x is not None:
                    x.mul_(self.unit)
        if not needs.weight:
            self.weight = None

    def _statistics(self, count: int) -> tuple[Tensor, ...]:
        new, long = self.losses.new_empty, torch.int64
        touched = self.losses.new_zeros(self.vocab, dtype=torch.bool)
        numbers = new(count, dtype=long), new(count, dtype=long)
        return new(count), new(count), *numbers, touched

    def _chunks(self, count: int) -> None:
        size = _tokens_at_once(count, self.vocab, self._bytes())
        raw = self.states.new_empty(size * self.vocab)
        second = raw.new_empty(raw.shape if self._twice else 1)
        for number, start in enumerate(range(0, count, max(1, size))):
            chunk = slice(start, min(start + size, count))
            n = chunk.stop - chunk.start
            made = raw[: n * self.vocab].view(n, self.vocab)
            torch.mm(self.states[chunk], self.matrix.mT, out=made)
            self._chunk(chunk, made, second, first=number == 0)

    def _bytes(self) -> int:
        """Return what a token's products take, and a copy of its hidden state (see `_dense`)."""
        copies = 2 if self._twice else 1
        copied = self.width if self.dense else 0
        return (copies * self.vocab + copied) * self.states.dtype.itemsize

    def _chunk(self, chunk: slice, raw: Tensor, second: Tensor, *, first: bool) -> None:
        from elbowroom.losses.kernels import launch  # imports Triton

        n, device = len(raw), raw.device
        flags = torch.zeros(n, self.strips, dtype=torch.int8, device=device)
        kept = torch.empty(n, dtype=torch.int64, device=device)
        found = torch.empty(n, FOUND, dtype=torch.float32, device=device)
        given = [raw, self.offset, self.target[chunk], self.counted[chunk], self.margin[chunk]]
        given += list(self.masks)
        seen = [x[chunk] for x in self.stats[:4]]
        launch.survey(
            given,
            [self.losses[chunk], found, flags, kept],
            (seen, self.stats[4]) if self.stats else None,
            self.options,
            grading=self.grading and not self.dense,
        )
        if not self.grading:
            return
        assert self.factor is not None
        assert self.unit is not None
        hidden = None if self.hidden is None else self.hidden[chunk]
        factor = self.factor[chunk]
        if self.dense:
            self._dense(launch, given, factor, found, chunk, first=first)
            return
        most = max(LISTED, int(LISTED_SHARE * self.vocab))
        listed = most if self.options["VARIANT"] < 2 else 0
        order, place, blocks = _sorted(flags, kept, self.counted[chunk], listed)
        needed, steps, step_counts = launch.strips(flags, order, blocks, TOKENS)
        entries = launch.grade(
            given, factor, found, flags, needed, place, blocks, second, self.options, listed, TOKENS
        )
        if hidden is not None:
            if not listed:
                hidden.zero_()
            launch.blocks(
                raw, self.matrix, order, blocks, steps, step_counts, self.unit, hidden, TOKENS,
                self._precision(),
            )  # fmt: skip
            if listed:
                launch.entries(self.matrix, place, blocks, entries, self.unit, hidden, listed)
        if self.weight is not None:
            gradient = second.view(-1)[: raw.numel()].view(raw.shape) if self._twice else raw
            lists = launch.tokens(flags)
            launch.weight(
                gradient, self.states[chunk].contiguous(), lists, self.unit, self.weight, self.bias,
                self._precision(), first=first,
            )  # fmt: skip

    @property
    def _twice(self) -> bool:
        """Whether the weight sees less than the hidden states do."""
        return bool(self.options["VARIANT"] == 2)

    def _dense(
        self,
        launch: Any,
        given: list[Any],
        factor: Tensor,
        found: Tensor,
        chunk: slice,
        *,
        first: bool,
    ) -> None:
        """Turn all products into gradients, and multiply them as a whole."""
        raw, counted = given[0], given[3]
        # Hidden states of ignored tokens may be anything, NaN too: they must not reach the weight.
        states = self.states[chunk].masked_fill(counted[:, None] == 0, 0.0)
        launch.grade_all(given, factor, found, self.options)
        if self.hidden is not None:
            torch.mm(raw, self.matrix, out=self.hidden[chunk])
        if self.weight is not None:
            _accumulate(self.weight, raw.mT, states, first=first)
        if self.bias is not None:
            sums = raw.sum(0, dtype=torch.float32)
            self.bias.copy_(sums) if first else self.bias.add_(sums)

    def _precision(self) -> str:
        return "tf32" if torch.get_float32_matmul_precision() != "highest" else EXACT


def _unit(coefficient: Float[Tensor, " N"], dtype: torch.dtype) -> Float[Tensor, ""]:
    """Return what gradients are divided by until they are summed, so that float16 holds them."""
    one = coefficient.new_ones(())
    if dtype != torch.float16 or not len(coefficient):
        return one
    largest = coefficient.abs().amax()
    return torch.where(largest > 0, largest, one)


def _accumulate(out: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """Add ``a @ b`` to a float32 sum."""
    if a.dtype != torch.float32 and out.device.type == "cuda":
        if first:
            torch.mm(a, b, out_dtype=torch.float32, out=out)
        else:
            torch.addmm(out, a, b, out_dtype=torch.float32, out=out)
    elif first:
        torch.mm(a.float(), b.float(), out=out)
    else:
        out.addmm_(a.float(), b.float())


def _sorted(
    flags: Int[Tensor, "n S"], kept: Int[Tensor, " n"], counted: Tensor, listed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sort tokens: those for blocks first, by the strips they keep; return their number, too."""
    blocked = (kept > listed) if listed else counted != 0
    key = torch.where(blocked, flags.sum(-1, dtype=torch.int32), -1)
    order = key.argsort(descending=True, stable=True).to(torch.int32)
    place = torch.empty_like(order)
    place[order.long()] = torch.arange(len(order), dtype=torch.int32, device=order.device)
    return order, place, blocked.sum(dtype=torch.int32)


def _of_run(x: Tensor, r: int) -> Tensor:
    return x[0 if len(x) == 1 else r]


def _options(head: Head, spec: Spec, r: int) -> tuple[dict[str, Any], tuple[Any, Any]]:
    """Return the kernels' numbers and switches, and the masks of rows that they read."""
    variant = spec.variant
    kinds = (type(None), DetachedBelow, Decoupled, Leaky, Softminus)
    plain = None if isinstance(variant, RareOnly) else variant
    options: dict[str, Any] = {
        "scale": float(head.logit_scale),
        "cap": float(head.softcap or 0.0),
        "fade": float(variant.c) if isinstance(variant, Softminus) else 1.0,
        "leak": float(variant.weight) if isinstance(variant, Leaky) else 0.0,
        "smoothing": float(spec.label_smoothing),
        "z_loss": float(spec.z_loss),
        "CAP": head.softcap is not None,
        "BIAS": head.bias is not None,
        "PROTECT": spec.protect is not None,
        "RARE": isinstance(variant, RareOnly),
        "VARIANT": kinds.index(type(plain)),
        "DETACHED": isinstance(variant, Softminus) and variant.detach_threshold,
    }
    protect = None if spec.protect is None else _bytes(_of_run(spec.protect, r))
    rare = _bytes(_of_run(variant.rows.view(-1, head.vocab_size), r)) if options["RARE"] else None  # type: ignore[union-attr]
    return options, (protect, rare)


def _bytes(mask: Tensor) -> Tensor:
    return mask.contiguous().view(torch.uint8)


def _tokens_at_once(count: int, vocab: int, per_token: int) -> int:
    """Return the size of even chunks within the budget, at least one token."""
    most = max(1, min(MOST - 1, BUDGET // max(1, per_token)))
    if count <= most:
        return count
    most = most // ALIGNED * ALIGNED or most
    parts = -(-count // most)
    size = -(-count // parts)
    return min(most, -(-size // ALIGNED) * ALIGNED) if most >= ALIGNED else size
