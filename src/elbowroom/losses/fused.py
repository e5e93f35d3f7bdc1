"""Triton backend: chunks of tokens, one product by the vendor's library, kernels for the rest.

A chunk's raw products exist, in the dtype of the input and within `BUDGET`. `rows.survey_kernel`
reads them and marks the strips of 128 logits in which a token keeps something; what is not marked
is never touched again. From the marks follow lists, made and read on the device:

* of each strip, the tokens that keep something of it: a strip of the weight's gradient is a product
  over these;
* of each block of 128 tokens that keep much, sorted by how much, the strips that any of them needs:
  their hidden gradients are a product over these, cut along the vocabulary where blocks are few;
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
from elbowroom.losses.kernels import settings
from elbowroom.losses.problem import Head, Tokens
from elbowroom.losses.products import Needs
from elbowroom.losses.spec import Spec, TokenStats
from elbowroom.losses.variants import Decoupled, DetachedBelow, Leaky, RareOnly, Softminus

DEVICES = ("cuda",)  # tests that interpret kernels add the CPU
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HAS_TRITON = importlib.util.find_spec("triton") is not None
STRIP = 128
FOUND = 8
LISTS = 48 * 2**20  # bytes left for lists and pieces of products, where there are several chunks
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

    The hidden gradient comes in the dtype of the hidden states, the weight's in that which
    `gradient_dtype` says, the bias's in float32.
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
        self.states = head.hidden[r].detach().contiguous()
        self.matrix = head.weight[r].detach().contiguous()
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
        self.wants_weight = needs.weight
        if self.grading and (needs.weight or needs.bias):
            make = torch.empty if count else torch.zeros
            options: dict[str, Any] = {"device": self.states.device}
            dtype = gradient_dtype(self.matrix.dtype)
            self.weight = make(self.matrix.shape, dtype=dtype, **options)
            self.bias = make(self.vocab, dtype=torch.float32, **options) if needs.bias else None
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
        size = _tokens_at_once(count, self._bytes(), *self._spare())
        # Rows begin at multiples of a strip, so that memory is read in whole words.
        room = self.states.new_empty(size, self.strips * STRIP)
        raw = room[:, : self.vocab]
        second = torch.empty_like(room)[:, : self.vocab] if self._twice else None
        starts = range(0, count, max(1, size))
        self.sums = self.weight
        if self.weight is not None and self.weight.dtype != torch.float32:
            dtype = torch.float32 if self.dense else self.weight.dtype
            alone = len(starts) == 1
            self.sums = None if alone else torch.empty_like(self.weight, dtype=dtype)
        for start in starts:
            chunk = slice(start, min(start + size, count))
            n = chunk.stop - chunk.start
            torch.mm(self.states[chunk], self.matrix.mT, out=raw[:n])
            ends = {"first": start == 0, "last": chunk.stop == count}
            self._chunk(chunk, raw[:n], None if second is None else second[:n], **ends)
        self.sums = None

    def _spare(self) -> tuple[int, int]:
        """Return the bytes that one chunk, and several, may take beyond the budget.

        One spares the weight's sums in float32, and several spare half of them, if the gradient
        itself holds the other half. Lists need some of it.
        """
        half, lists = 0, 0 if self.dense else LISTS
        if self.weight is not None and self.weight.dtype != torch.float32:
            half = self.weight.nbytes
        return max(0, 2 * half - lists), (0 if self.dense else half) - lists

    def _bytes(self) -> int:
        """Return what a token's products take, and a copy of its hidden state (see `_dense`)."""
        copies = 2 if self._twice else 1
        copied = self.width if self.dense else 0
        return (copies * self.strips * STRIP + copied) * self.states.dtype.itemsize

    def _chunk(
        self, chunk: slice, raw: Tensor, second: Tensor | None, *, first: bool, last: bool
    ) -> None:
        from elbowroom.losses.kernels import launch  # imports Triton

        n, device = len(raw), raw.device
        found = torch.empty(n, FOUND, dtype=torch.float32, device=device)
        kept = torch.empty(n, dtype=torch.int64, device=device)
        given = [raw, self.offset, self.target[chunk], self.counted[chunk], self.margin[chunk]]
        given += list(self.masks)
        seen = ([x[chunk] for x in self.stats[:4]], self.stats[4]) if self.stats else None
        results = [self.losses[chunk], found, kept]
        if not self.grading or self.dense:
            launch.survey(given, [*results, None, None, None], seen, self.options, 0)
            if self.grading:
                self._dense(launch, given, found, chunk, first=first, last=last)
            return
        chosen = settings.of(device)
        listed = max(chosen.listed, int(chosen.share * self.vocab))
        listed = listed if self.options["VARIANT"] < 2 else 0
        flags = torch.zeros(n, self.strips, dtype=torch.int8, device=device)
        strips, counts = (torch.empty(s, dtype=torch.int32, device=device) for s in (n * listed, n))
        launch.survey(given, [*results, flags, strips, counts], seen, self.options, listed)
        order, place, blocked = _sorted(counts, kept, self.counted[chunk], listed)
        work = launch.Work(
            strips, counts, *launch.strips(flags, order, blocked), order, place, blocked, listed
        )
        self._products(launch, given, found, work, flags, second, chunk, first=first, last=last)

    def _products(
        self,
        launch: Any,
        given: list[Any],
        found: Tensor,
        work: Any,
        flags: Tensor,
        second: Tensor | None,
        chunk: slice,
        *,
        first: bool,
        last: bool,
    ) -> None:
        """Turn products into gradients where the lists say so, and multiply these."""
        assert self.factor is not None
        raw = given[0]
        listed = launch.grade(given, self.factor[chunk], found, work, second, self.options)
        if self.hidden is not None:
            hidden = self.hidden[chunk]
            if listed is None:
                hidden.zero_()
            launch.blocks(raw, self.matrix, work, self.unit, hidden, self._precision())
            if listed is not None:
                launch.entries(raw, self.matrix, work, listed, self.unit, hidden)
        del listed, work
        if self.weight is not None:
            rest = None if self.sums is self.weight else self.sums
            launch.weight(
                raw if second is None else second, self.states[chunk], flags, self.unit,
                self.weight, rest, self.bias, self._precision(), first=first, last=last,
            )  # fmt: skip

    @property
    def _twice(self) -> bool:
        """Whether the weight sees less than the hidden states do."""
        return bool(self.grading and self.options["VARIANT"] == 2)

    def _dense(
        self,
        launch: Any,
        given: list[Any],
        found: Tensor,
        chunk: slice,
        *,
        first: bool,
        last: bool,
    ) -> None:
        """Turn all products into gradients, and multiply them as a whole."""
        raw, counted = given[0], given[3]
        assert self.factor is not None
        launch.grade(given, self.factor[chunk], found, None, None, self.options)
        if self.hidden is not None:
            torch.mm(raw, self.matrix, out=self.hidden[chunk])
        if self.wants_weight and self.weight is not None:
            # Those of ignored tokens may be anything, NaN too: they must not reach the weight.
            states = self.states[chunk].masked_fill(counted[:, None] == 0, 0.0)
            if self.sums is None:
                torch.mm(raw.mT, states, out=self.weight)
            else:
                _accumulate(self.sums, raw.mT, states, first=first)
                if last and self.sums is not self.weight:
                    self.weight.copy_(self.sums)
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


def gradient_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which the weight's gradient is handed out, summed in float32.

    The factor of the backward pass is not known yet: in float16 a gradient may need it to be seen.
    """
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def scale(gradient: Tensor, factor: Tensor) -> bool:
    """Multiply the gradients of runs in place if the kernels can, and return whether they could."""
    if not takes(gradient) or not gradient.is_contiguous() or torch.compiler.is_compiling():
        return False
    from elbowroom.losses.kernels import launch  # imports Triton

    launch.scale(gradient, factor)
    return True


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
    strips: Int[Tensor, " n"], kept: Int[Tensor, " n"], counted: Tensor, listed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sort tokens: those for blocks first, by the strips they keep; return their number, too."""
    blocked = (kept > listed) if listed else counted != 0
    key = torch.where(blocked, strips, -1)
    order = key.argsort(descending=True, stable=True)
    place = torch.empty_like(strips)
    place[order] = torch.arange(len(order), dtype=torch.int32, device=order.device)
    return order.to(torch.int32), place, blocked.sum(dtype=torch.int32)


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


def _tokens_at_once(count: int, per_token: int, one: int = 0, several: int = 0) -> int:
    """Return the size of even chunks, at least one token.

    Args:
        count: tokens in all.
        per_token: bytes.
        one: bytes beyond the budget that are there for one chunk.
        several: the same for several; where it is negative, bytes of the budget to be left.
    """
    if count <= min(MOST - 1, (BUDGET + one) // max(1, per_token)):
        return count
    most = max(1, min(MOST - 1, max(BUDGET // 2, BUDGET + several) // max(1, per_token)))
    most = most // ALIGNED * ALIGNED or most
    parts = -(-count // most)
    size = -(-count // parts)
    return min(most, -(-size // ALIGNED) * ALIGNED) if most >= ALIGNED else size
