"""AdamW over the rows that were touched, found and gathered; for the CPU.

Reading a list of indices costs nothing there. A block of rows at a time is gathered into a scratch
that stays in cache, moved, and put back; stretches of neighbouring rows are moved where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import torch
from torch import Tensor

from elbowroom.losses.problem import compute_dtype
from elbowroom.optim import native
from elbowroom.optim.gather import GATHERED, Scratch, Shelf
from elbowroom.optim.numbers import Number
from elbowroom.optim.one_count import move_fused, shared_count, whole_count
from elbowroom.optim.rows import At, Rows, Rule, begin
from elbowroom.optim.touched import touched_rows
from elbowroom.optim.update import Coefficients, forget, root_of, update_moments, update_param

STRETCH = 2**20  # elements of an operand in a block that is updated where it lies


def step_touched(rows: Rows, rule: Rule, scratch: Scratch) -> None:
    """Move the rows that were touched; on a CPU."""
    if native.takes(rows, rule):
        native.step_rows(rows, rule)
        return
    found = _find(rows)
    count = whole_count(rows, rule) if found is None else None
    if count is not None:
        values = [rows.grad, rows.param, rows.exp_avg, rows.exp_avg_sq]
        move_fused(values, rows, rule, count)
        _count(rows, slice(None), rows.row_step + 1)
    else:
        _step_rows(rows, rule, slice(0, len(rows)) if found is None else found, scratch)


def _step_rows(rows: Rows, rule: Rule, at: At, scratch: Scratch) -> None:
    dtype, width = compute_dtype(rows.param.dtype), rows.param.shape[1]
    c, missed, step = begin(rows, rule, at, dtype)
    shelves = [Shelf(x, dtype) for x in (rows.grad, rows.param, rows.exp_avg, rows.exp_avg_sq)]
    gathered = isinstance(at, Tensor)
    shared = shared_count(rows, rule, step, dtype) if gathered else None
    count = len(at) if isinstance(at, Tensor) else len(rows)
    size = _block_size(count, GATHERED if gathered else STRETCH, width)
    memory = scratch.take(5 if gathered else 1, size, width, dtype)
    for block, part in _blocks(at, count, size):
        work, *buffers = [x[: part.stop - part.start] for x in memory]
        values = [shelf.load(block, x) for shelf, x in zip_longest(shelves, buffers)]
        if missed is not None:
            forget(values[2], values[3], missed[part], rule.betas)
        if shared is not None and isinstance(block, Tensor):  # a stretch may have any layout
            move_fused(values, rows, rule, shared, c.part(part).decay)
        else:
            _move(values, rule, c.part(part), work)
        for shelf, value in zip(shelves[1:], values[1:], strict=True):
            shelf.store(block, value)
    _count(rows, at, step)


def _count(rows: Rows, at: At, step: Number) -> None:
    rows.row_step[at] = step
    if rows.row_decay is not None:
        rows.row_decay[at] = 1.0


def _find(rows: Rows) -> Tensor | None:
    """Return the indices of the touched rows, None for all."""
    if rows.marks is not None:
        marked = rows.marks.nonzero().squeeze(1)
        if 2 * len(marked) <= len(rows):
            touched = touched_rows(rows.grad, marked)
            return marked if bool(touched.all()) else marked[touched]
    touched = touched_rows(rows.grad)
    if rows.marks is not None:
        touched &= rows.marks
    at = touched.nonzero().squeeze(1)
    return None if len(at) == len(rows) else at


def _block_size(rows: int, elements: int, width: int) -> int:
    """Return how many rows fit: about as many in each block, and in none just a few."""
    blocks = max(1, -(-rows * width // elements))
    return -(-rows // blocks)


def _blocks(at: At, count: int, size: int) -> Iterator[tuple[At, slice]]:
    """Cut rows into blocks; also return each block's place among the rows."""
    parts = [slice(i, min(i + size, count)) for i in range(0, count, max(1, size))]
    if isinstance(at, slice):
        yield from zip(parts, parts, strict=True)
        return
    ends = at[[i for part in parts for i in (part.start, part.stop - 1)]].tolist()
    for part, first, last in zip(parts, ends[::2], ends[1::2], strict=True):
        neighbours = last - first + 1 == part.stop - part.start
        yield slice(first, last + 1) if neighbours else at[part], part


def _move(values: list[Tensor], rule: Rule, c: Coefficients, work: Tensor) -> None:
    grad, param, exp_avg, exp_avg_sq = values
    grad = torch.neg(grad, out=work) if rule.maximize else grad
    update_moments(exp_avg, exp_avg_sq, grad, rule.betas)
    update_param(param, exp_avg, root_of(exp_avg_sq, work), c)
