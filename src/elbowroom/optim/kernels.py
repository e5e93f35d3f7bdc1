# mypy: ignore-errors
# Triton has no types, and reads a kernel's annotations in a way of its own.
"""AdamW in one pass, as Triton kernels; `fused` launches them.

Memory is what a step costs, so each element is read once and written once, and a row that is not
touched costs its mark or, where there are no marks, its gradient. Elements are stored in any
floating dtype up to float32 and computed with in float32. The formulas are those of `update`.

Kernels work on what one program owns, in a fixed order: results do not depend on the schedule.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

# A checker of types must not wrap a kernel: Triton reads its source, and the names around it.


@triton.jit
@no_type_check
def _correction(step, log_beta):  # pragma: no cover
    """Return ``1 - beta^step``; by its series where the difference would lose digits."""
    x = step * log_beta
    near = tl.maximum(x, -0.5)
    series = near * 0 + 1
    for i in tl.static_range(8):
        series = 1 + series * near / (9 - i)
    return tl.where(x > -0.5, -near * series, 1 - tl.exp(x))


@triton.jit
@no_type_check
def _numbers(step, lr, log_first, log_second, eps):  # pragma: no cover
    """Return the size of a step and what is added to the root of the second moment."""
    root = tl.sqrt_rn(_correction(step, log_second))
    return tl.div_rn(lr * root, _correction(step, log_first)), eps * root


@triton.jit
@no_type_check
def _moments(g, m, v, first, second, rest_first, rest_second):  # pragma: no cover
    return first * m + rest_first * g, second * v + rest_second * g * g


@triton.jit
@no_type_check
def _moved(p, m, v, size, eps, shrink):  # pragma: no cover
    """Decay and move a parameter; ``p - shrink p`` keeps digits that ``(1 - shrink) p`` loses."""
    return p - shrink * p - size * tl.div_rn(m, tl.sqrt_rn(v) + eps)


@triton.jit
@no_type_check
def _gradient(grad, at, inside, maximize: tl.constexpr):  # pragma: no cover
    g = tl.load(grad + at, mask=inside, other=0).to(tl.float32)
    return -g if maximize else g


@triton.jit
@no_type_check
def _load(pointer, at, inside):  # pragma: no cover
    return tl.load(pointer + at, mask=inside, other=0).to(tl.float32)


@triton.jit
@no_type_check
def _load_state(param, exp_avg, exp_avg_sq, at, inside):  # pragma: no cover
    return _load(param, at, inside), _load(exp_avg, at, inside), _load(exp_avg_sq, at, inside)


@triton.jit
@no_type_check
def _store_state(param, exp_avg, exp_avg_sq, at, inside, p, m, v):  # pragma: no cover
    tl.store(param + at, p.to(param.dtype.element_ty), mask=inside)
    tl.store(exp_avg + at, m.to(exp_avg.dtype.element_ty), mask=inside)
    tl.store(exp_avg_sq + at, v.to(exp_avg_sq.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def runs_kernel(
    param, grad, exp_avg, exp_avg_sq, steps, lrs, decays, step, lr, weight_decay,
    size, blocks, lr_stride, decay_stride,
    log_first, log_second, first, second, rest_first, rest_second, eps,
    MAXIMIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """A block of one run's elements of an ordinary parameter ``[R, ...]``.

    ``steps``, ``lrs`` and ``decays`` point at numbers on the device, the last two strided by run.
    Where one is missing, ``step``, ``lr`` or ``weight_decay`` is the number.
    """
    program = tl.program_id(0)
    run = program // blocks
    within = (program % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = run.to(tl.int64) * size + within
    inside = within < size
    g = _gradient(grad, at, inside, MAXIMIZE)
    p, m, v = _load_state(param, exp_avg, exp_avg_sq, at, inside)
    one = tl.full((), 1, tl.float32)
    count = one * (step if steps is None else tl.load(steps).to(tl.float32))
    rate = one * (lr if lrs is None else tl.load(lrs + run * lr_stride))
    shrink = rate * (weight_decay if decays is None else tl.load(decays + run * decay_stride))
    length, added = _numbers(count, rate, log_first, log_second, eps)
    m, v = _moments(g, m, v, first, second, rest_first, rest_second)
    p = _moved(p, m, v, length, added, shrink)
    _store_state(param, exp_avg, exp_avg_sq, at, inside, p, m, v)


@triton.jit
@no_type_check
def _row_numbers(
    rows, look, row_step, row_decay, missed, kept, lrs, decays, lr, weight_decay,
    n, lr_stride, decay_stride, log_first, log_second, eps,
):  # fmt: skip  # pragma: no cover
    """Return each row's new count, its size of step, eps and decay, and what is kept of moments."""
    count = tl.load(row_step + rows, mask=look, other=0) + 1
    one = tl.full(rows.shape, 1, tl.float32)
    rate = one * (lr if lrs is None else tl.load(lrs + rows * lr_stride, mask=look, other=0))
    kept_first, kept_second = one, one
    if row_decay is not None:
        count += tl.load(missed + rows, mask=look, other=0)
        kept_first = tl.load(kept + rows, mask=look, other=0)
        kept_second = tl.load(kept + n + rows, mask=look, other=0)
        shrink = (1 - tl.load(row_decay + rows, mask=look, other=0)).to(tl.float32)
    elif decays is not None:
        shrink = rate * tl.load(decays + rows * decay_stride, mask=look, other=0)
    else:
        shrink = rate * weight_decay
    size, added = _numbers(count, rate, log_first, log_second, eps)
    return (
        count, size[:, None], added[:, None], shrink[:, None],
        kept_first[:, None], kept_second[:, None],
    )  # fmt: skip


@triton.jit
@no_type_check
def _found(grad, start, D, WIDTH: tl.constexpr):  # pragma: no cover
    """Return whether a long row holds anything but zeros; reading stops where that is known."""
    found = 0
    begin = 0
    while (begin < D) & (found == 0):
        columns = begin + tl.arange(0, WIDTH)[None, :]
        g = _gradient(grad, start + columns, columns < D, False)
        found = tl.max(tl.max((g != 0).to(tl.int32), axis=1), axis=0)
        begin += WIDTH
    return found


@triton.jit
@no_type_check
def rows_kernel(
    param, grad, exp_avg, exp_avg_sq, row_step, marks, row_decay, missed, kept,
    lrs, decays, lr, weight_decay, n, D, lr_stride, decay_stride,
    log_first, log_second, first, second, rest_first, rest_second, eps,
    MAXIMIZE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """The touched ones among ``TILES`` times ``ROWS`` rows of a matrix ``[n, D]``.

    ``marks`` may be missing, as may what catching up needs: ``row_decay``, ``missed``, and the
    shares of both moments that are ``kept``, ``[2, n]``. Rates are as in `runs_kernel`,
    by row. A tile is ``WIDTH`` wide: whole rows if ``WHOLE``, else part of one, searched before.
    """
    columns = tl.arange(0, WIDTH)[None, :]
    for i in range(TILES):
        rows = (tl.program_id(0).to(tl.int64) * TILES + i) * ROWS + tl.arange(0, ROWS)
        look = rows < n
        if marks is not None:
            look = look & (tl.load(marks + rows, mask=look, other=0) != 0)
        if tl.max(look.to(tl.int32), axis=0) != 0:
            count, size, added, shrink, kept_first, kept_second = _row_numbers(
                rows, look, row_step, row_decay, missed, kept, lrs, decays, lr, weight_decay,
                n, lr_stride, decay_stride, log_first, log_second, eps,
            )  # fmt: skip
            start = rows[:, None] * D
            inside = look[:, None] & (columns < D)
            if WHOLE:
                g = _gradient(grad, start + columns, inside, MAXIMIZE)
                if marks is not None:  # most marked rows move: ask for everything at once
                    p, m, v = _load_state(param, exp_avg, exp_avg_sq, start + columns, inside)
                touched = look & (tl.max((g != 0).to(tl.int32), axis=1) != 0)
                inside = inside & touched[:, None]
                if tl.max(touched.to(tl.int32), axis=0) != 0:
                    if marks is None:
                        p, m, v = _load_state(param, exp_avg, exp_avg_sq, start + columns, inside)
                    m, v = _moments(
                        g, m * kept_first, v * kept_second, first, second, rest_first, rest_second
                    )
                    p = _moved(p, m, v, size, added, shrink)
                    _store_state(param, exp_avg, exp_avg_sq, start + columns, inside, p, m, v)
            else:
                touched = look & (_found(grad, start, D, WIDTH) != 0)
                if tl.max(touched.to(tl.int32), axis=0) != 0:
                    for begin in range(0, D, WIDTH):
                        at = start + begin + columns
                        inside = begin + columns < D
                        g = _gradient(grad, at, inside, MAXIMIZE)
                        p, m, v = _load_state(param, exp_avg, exp_avg_sq, at, inside)
                        m, v = _moments(
                            g, m * kept_first, v * kept_second,
                            first, second, rest_first, rest_second,
                        )  # fmt: skip
                        p = _moved(p, m, v, size, added, shrink)
                        _store_state(param, exp_avg, exp_avg_sq, at, inside, p, m, v)
            # Several threads read a row's numbers: none may write before all have read.
            tl.debug_barrier()
            tl.store(row_step + rows, count, mask=touched)
            if row_decay is not None:
                tl.store(row_decay + rows, tl.full(rows.shape, 1, tl.float64), mask=touched)
