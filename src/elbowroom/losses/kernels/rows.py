# mypy: ignore-errors
# Triton has no types, and reads a kernel's annotations in a way of its own.
"""The equations on a token's logits, as Triton kernels: one program a token.

``raw [n, V]`` holds the head's products, in the dtype of its input, with rows ``STRIDE`` apart, so
that all begin where memory is read in whole words. `survey_kernel` reads them
once: thresholds, sums of exponentials, losses, statistics, and which strips of `STRIP` logits keep
something. `grade_kernel` turns them into gradients by the raw products, where they lie, only in
the strips that somebody will read. Notation and derivatives are those of `losses.entries`:

    z = logit_scale cap(raw + bias),    theta = z_y - margin
    below = z < theta and not y,        dropped = protect and not protect[y]

Sums run in float32 in a fixed order: each place of a block has its own, and these are summed at the
end. The running maximum starts at the target's logit, which is in every sum, so that nothing empty
is ever exponentiated.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

# A checker of types must not wrap a kernel: Triton reads its source, and the names around it.

LOWEST = tl.constexpr(-3.0e38)  # where a sum of exponentials starts, if not higher
STRIP = tl.constexpr(128)  # logits of one token that are kept or skipped together
LOOK = tl.constexpr(1024)  # strips looked at at once
SMALLEST_FACTOR = tl.constexpr(1e-9)  # of softminus, as in `reference`

# What a variant does with entries below the threshold.
DROP, DETACH, DECOUPLE, LEAK, FADE = (tl.constexpr(i) for i in range(5))

# Columns of what is found of a token: of the kept entries and of all that are not dropped.
KEPT_LSE, ALL_LSE, KEPT_COUNT, ALL_COUNT, TARGET = (tl.constexpr(i) for i in range(5))
FOUND = tl.constexpr(8)


@triton.jit
@no_type_check
def _tanh(x):  # pragma: no cover
    """Return tanh, exactly odd, without overflow."""
    e = tl.exp(-2 * tl.abs(x))
    y = (1 - e) / (1 + e)
    q = x * x  # the series, where the difference would lose digits
    series = 1 - q / 3 * (1 - q * 2 / 5 * (1 - q * 17 / 42 * (1 - q * 62 / 153)))
    y = tl.where(q < 0.09, tl.abs(x) * series, y)
    return tl.where(x < 0, -y, y)


@triton.jit
@no_type_check
def _logits(
    raw, bias, at, i, held, inside, scale, cap, BIAS: tl.constexpr, CAP: tl.constexpr
):  # pragma: no cover
    """Return z, and tanh of the capped product (or z again, where nothing is capped).

    What is ``held`` may be read, also beyond the vocabulary: there anything may lie.
    """
    x = tl.load(raw + at, mask=held, other=0).to(tl.float32)
    if BIAS:
        x += tl.load(bias + i, mask=inside, other=0).to(tl.float32)
    t = x
    if CAP:
        t = _tanh(x / cap)
        x = cap * t
    return x * scale, t


@triton.jit
@no_type_check
def _masks(
    z, i, y, theta, inside, protect, rare, shielded, PROTECT: tl.constexpr, RARE: tl.constexpr
):  # fmt: skip  # pragma: no cover
    """Return which entries are below the threshold, and which are not dropped."""
    below = (z < theta) & (i != y)
    if RARE:
        below = below & (tl.load(rare + i, mask=inside, other=0) != 0)
    present = inside
    if PROTECT:
        present = present & ((tl.load(protect + i, mask=inside, other=0) == 0) | (shielded != 0))
    return below, present


@triton.jit
@no_type_check
def _faded(z, theta, c):  # pragma: no cover
    """Return softminus of z, and its slope; nothing comes of -inf."""
    nothing = z == float("-inf")
    u = tl.where(nothing, -1.0, (theta - z) / c)
    # 1 - exp(u) for u <= 0, by its series where the difference would lose digits
    series = 1 + u / 9
    for k in tl.static_range(8, 1, -1):
        series = 1 + u / k * series
    factor = tl.where(u > -0.5, -u * series, 1 - tl.exp(u))
    slope = tl.where(factor >= SMALLEST_FACTOR, 1 / factor, 1.0)
    return z + c * tl.log(tl.maximum(factor, SMALLEST_FACTOR)), slope


@triton.jit
@no_type_check
def _add(m, s, x, keep):  # pragma: no cover
    """Add exponentials of kept entries to sums ``s exp(m)``, one for each place of a block.

    One exponential an entry, and no place waits for another. NaN and infinity show in the sum.
    """
    d = x - m
    e = tl.exp(-tl.abs(d))
    more = keep & (d > 0)
    return tl.where(more, x, m), tl.where(more, s * e + 1, tl.where(keep, s + e, s))


@triton.jit
@no_type_check
def _total(m, s):  # pragma: no cover
    """Return all places' sums as one."""
    largest = tl.max(m, axis=0)
    return largest, tl.sum(s * tl.exp(m - largest), axis=0)


@triton.jit
@no_type_check
def _list_strips(flags, strips, counts, S, LISTED):  # pragma: no cover
    """List a token's marked strips, at most ``LISTED`` of them, and count them all."""
    total = tl.full((), 0, tl.int32)
    for start in range(0, S, LOOK):
        strip = start + tl.arange(0, LOOK)
        marks = (tl.load(flags + strip, mask=strip < S, other=0) != 0).to(tl.int32)
        at = total + tl.cumsum(marks, axis=0) - 1
        tl.store(strips + at, strip, mask=(marks != 0) & (at < LISTED))
        total += tl.sum(marks, axis=0)
    tl.store(counts, total)


@triton.jit(do_not_specialize=["V", "S", "LISTED"])
@no_type_check
def survey_kernel(
    raw, bias, target, counted, margin, protect, rare,
    losses, found, flags, strips, counts, touched, log_probability, rank, argmax, kept,
    V, S, STRIDE, LISTED, scale, cap, fade, leak, smoothing, z_loss,
    BIAS: tl.constexpr, CAP: tl.constexpr, PROTECT: tl.constexpr, RARE: tl.constexpr,
    VARIANT: tl.constexpr, SMOOTH: tl.constexpr, STATS: tl.constexpr, GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """A token's loss and what its gradient needs; statistics if wanted.

    ``flags [n, S]`` starts at zero; a strip is marked where some entry of it has a gradient. The
    first ``LISTED`` of these strips are listed in ``strips [n, LISTED]``, all are counted.
    """
    token = tl.program_id(0).to(tl.int64)
    y = tl.load(target + token)
    limit = tl.where(tl.load(counted + token) != 0, V, 0)
    row = token * STRIDE
    zy, _ty = _logits(raw, bias, row + y, y, y < limit, y < limit, scale, cap, BIAS, CAP)
    y = y.to(tl.int32)
    theta = zy - tl.load(margin + token)
    shielded = tl.load(protect + y) if PROTECT else 0
    # Sums start at the target's logit without it: the blocks add it.
    first = zy
    if VARIANT == FADE:
        first, _steep = _faded(zy, theta, fade)
    zero, none = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.int32)
    km, ks, k_count, k_sum = zero + tl.maximum(first, LOWEST), zero, none, zero
    am, as_, a_count, a_sum = km, zero, none, zero
    fm, fs, greater, equal = km, zero, none, none
    best, where, nowhere = zero + zy, none + y, none + V
    for start in tl.range(0, limit, BLOCK, num_stages=STAGES):
        i = start + tl.arange(0, BLOCK)
        inside = i < V
        z, _t = _logits(raw, bias, row + i, i, i < STRIDE, inside, scale, cap, BIAS, CAP)
        below, present = _masks(
            z, i, y, theta, inside, protect, rare, shielded, PROTECT, RARE
        )  # fmt: skip
        keep = present & (below == 0)
        graded = keep
        if (VARIANT == LEAK) | (VARIANT == DECOUPLE):
            graded = present
        some = tl.full((), 1, tl.int32)
        if (VARIANT == DROP) | (VARIANT == FADE):
            some = tl.max(keep.to(tl.int32), axis=0)
        if some != 0:  # most blocks keep nothing: they are looked at, and that is all
            x = z
            if VARIANT == FADE:
                x, _slope = _faded(z, theta, fade)
            km, ks = _add(km, ks, x, keep)
            k_count += keep.to(tl.int32)
            if SMOOTH:
                k_sum += tl.where(keep, x, 0.0)
            if (VARIANT == DETACH) | (VARIANT == DECOUPLE) | (VARIANT == LEAK):
                am, as_ = _add(am, as_, z, present)
                a_count += present.to(tl.int32)
                if SMOOTH:
                    a_sum += tl.where(present, z, 0.0)
            if GRADIENT:
                marks = tl.max(tl.reshape(graded.to(tl.int32), (BLOCK // STRIP, STRIP)), axis=1)
                strip = start // STRIP + tl.arange(0, BLOCK // STRIP)
                tl.store(flags + token * S + strip, marks.to(tl.int8), mask=strip < S)
        if STATS:
            fm, fs = _add(fm, fs, z, inside)
            greater += (inside & (z > zy)).to(tl.int32)
            equal += (inside & (z == zy)).to(tl.int32)
            better = inside & ((z > best) | ((z == best) & (i < where)))
            where = tl.where(better, i, where)
            best = tl.where(better, z, best)
            nowhere = tl.minimum(nowhere, tl.where(inside & (z != z), i, V))
            if VARIANT == DECOUPLE:
                graded = keep
            tl.store(touched + i, tl.full(i.shape, 1, tl.int8), mask=graded)
    counts_here = limit > 0
    _store_loss(
        losses, found, kept, token, counts_here, first, zy, km, ks, k_count, k_sum,
        am, as_, a_count, a_sum, leak, smoothing, z_loss, VARIANT, SMOOTH,
    )  # fmt: skip
    if GRADIENT:
        tl.debug_barrier()  # all marks are written before they are read
        _list_strips(flags + token * S, strips + token * LISTED, counts + token, S, LISTED)
    if STATS:
        fm, fs = _total(fm, fs)
        top = tl.max(best, axis=0)
        where = tl.min(tl.where(best == top, where, V), axis=0)
        nowhere = tl.min(nowhere, axis=0)
        # PyTorch's way: NaN is the largest of all, and next to infinity all else is impossible
        broken = nowhere < V
        where = tl.where(broken, nowhere, where)
        log_p = (zy - fm) - tl.where(fm == float("inf"), 0.0, tl.log(fs))
        log_p = tl.where(broken, float("nan"), log_p)
        same = tl.sum(equal, axis=0)
        place = 1 + tl.sum(greater, axis=0).to(tl.float32)
        place += tl.maximum(same - 1, 0).to(tl.float32) / 2
        place = tl.where(log_p != log_p, log_p, place)
        tl.store(log_probability + token, tl.where(counts_here, log_p, 0.0))
        tl.store(rank + token, tl.where(counts_here, place, 0.0))
        tl.store(argmax + token, tl.where(counts_here, where, -1).to(tl.int64))


@triton.jit
@no_type_check
def _store_loss(
    losses, found, kept, token, counts, first, zy, km, ks, k_count, k_sum,
    am, as_, a_count, a_sum, leak, smoothing, z_loss, VARIANT: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """Sum up a token's sums, and store its loss and what its gradient needs."""
    km, ks = _total(km, ks)
    k_count = tl.sum(k_count, axis=0)
    a_count = tl.sum(a_count, axis=0)
    ks = tl.where(counts, ks, 1.0)
    k_log = tl.log(ks)
    k_lse = km + k_log
    a_lse = k_lse
    k_mean = tl.where(k_count > 0, tl.sum(k_sum, axis=0) / k_count, 0.0)
    loss = (km - first) + k_log
    if SMOOTH:
        loss = (1 - smoothing) * (km - first) + smoothing * (km - k_mean) + k_log
    loss += z_loss * k_lse * k_lse
    if (VARIANT == DETACH) | (VARIANT == DECOUPLE) | (VARIANT == LEAK):
        am, as_ = _total(am, as_)
        a_log = tl.log(tl.where(counts, as_, 1.0))
        a_lse = am + a_log
        whole = (am - zy) + a_log
        if SMOOTH:
            mean = tl.where(a_count > 0, tl.sum(a_sum, axis=0) / a_count, 0.0)
            if VARIANT == DETACH:
                mean = k_mean
            whole = (1 - smoothing) * (am - zy) + smoothing * (am - mean) + a_log
        whole += z_loss * a_lse * a_lse
        if VARIANT == LEAK:
            loss = (1 - leak) * loss + leak * whole
        else:
            loss = whole
    tl.store(losses + token, tl.where(counts, loss, 0.0))
    tl.store(found + token * FOUND + KEPT_LSE, k_lse)
    tl.store(found + token * FOUND + ALL_LSE, a_lse)
    tl.store(found + token * FOUND + KEPT_COUNT, k_count.to(tl.float32))
    tl.store(found + token * FOUND + ALL_COUNT, a_count.to(tl.float32))
    tl.store(kept + token, k_count.to(tl.int64))


@triton.jit
@no_type_check
def _graded(z, lse, hit, among, count, smoothing, z_loss):  # pragma: no cover
    """Return the derivative of one cross-entropy by the logits in its sum."""
    # What is subtracted is summed first: for a token that keeps its target alone it is exactly 1.
    wanted = tl.where(hit, 1 - smoothing, 0.0)
    wanted += tl.where(among, smoothing / tl.maximum(count, 1.0), 0.0)
    return tl.exp(z - lse) * (1 + 2 * z_loss * lse) - wanted


@triton.jit
@no_type_check
def _slopes(
    z, t, below, present, i, y, theta, c, k_lse, a_lse, k_count, a_count,
    scale, fade, leak, smoothing, z_loss, CAP: tl.constexpr, VARIANT: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """Return derivatives by raw products, and of `Softminus` what goes through the threshold."""
    keep = present & (below == 0)
    hit = i == y
    through = tl.zeros(z.shape, tl.float32)
    if VARIANT == DROP:
        g = tl.where(keep, _graded(z, k_lse, hit, keep, k_count, smoothing, z_loss), 0.0)
    elif VARIANT == FADE:
        x, slope = _faded(z, theta, fade)
        g = tl.where(keep, _graded(x, k_lse, hit, keep, k_count, smoothing, z_loss), 0.0)
        through = tl.where(keep, (slope - 1) * g, 0.0)
        g *= slope
    elif VARIANT == DETACH:
        g = tl.where(keep, _graded(z, a_lse, hit, keep, k_count, smoothing, z_loss), 0.0)
    elif VARIANT == DECOUPLE:
        g = _graded(z, a_lse, hit, present, a_count, smoothing, z_loss)
        g = tl.where(present, g, 0.0)
    else:
        near = _graded(z, k_lse, hit, keep, k_count, smoothing, z_loss)
        far = _graded(z, a_lse, hit, present, a_count, smoothing, z_loss)
        g = tl.where(keep, (1 - leak) * near, 0.0) + tl.where(present, leak * far, 0.0)
    g *= c * scale
    if CAP:
        g *= 1 - t * t
    # Not NaN of a token that does not count, nor of what lies beyond the vocabulary.
    return tl.where(present, tl.where(c == 0, 0.0, g), 0.0), through


@triton.jit(do_not_specialize=["V", "S", "LISTED", "TOKENS"])
@no_type_check
def grade_kernel(
    raw, bias, target, counted, margin, protect, rare, coefficient, found,
    strips, counts, block_strips, block_counts, place, blocks, second, entry_column, entries,
    V, S, STRIDE, LISTED, TOKENS, scale, cap, fade, leak, smoothing, z_loss,
    BIAS: tl.constexpr, CAP: tl.constexpr, PROTECT: tl.constexpr, RARE: tl.constexpr,
    VARIANT: tl.constexpr, DETACHED: tl.constexpr, LISTS: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """Turn a token's products into gradients by them, in the strips that somebody will read.

    A token in a block of ``TOKENS`` has those of the block: ``place`` is its place among the sorted
    tokens, the first ``blocks`` of which are in blocks. Another has its own, and its entries are
    listed (with ``LISTS``), at most ``LISTED`` of them. ``second`` gets what the weight sees, where
    that is less than what the hidden state sees. With ``WHOLE`` each token has all strips.
    """
    token = tl.program_id(0).to(tl.int64)
    y = tl.load(target + token)
    limit = tl.where(tl.load(counted + token) != 0, V, 0)
    row = token * STRIDE
    zy, ty = _logits(raw, bias, row + y, y, y < limit, y < limit, scale, cap, BIAS, CAP)
    target_at = row + y
    y = y.to(tl.int32)
    # All threads have read the target's product before one of them writes its gradient there.
    tl.debug_barrier()
    theta = zy - tl.load(margin + token)
    shielded = tl.load(protect + y) if PROTECT else 0
    c = tl.load(coefficient + token)
    k_lse = tl.load(found + token * FOUND + KEPT_LSE)
    a_lse = tl.load(found + token * FOUND + ALL_LSE)
    k_count = tl.load(found + token * FOUND + KEPT_COUNT)
    a_count = tl.load(found + token * FOUND + ALL_COUNT)
    listed, through = tl.full((), 0, tl.int32), tl.full((), 0, tl.float32)
    if WHOLE:
        number = tl.full((), 0, tl.int32) + S
    else:
        mine = tl.load(place + token)
        blocked = mine < tl.load(blocks)
        names, number = strips + token * LISTED, tl.load(counts + token)
        if blocked:
            block = (mine // TOKENS).to(tl.int64)
            names, number = block_strips + block * S, tl.load(block_counts + block)
    for start in tl.range(0, number, BLOCK // STRIP, num_stages=STAGES):
        strip = start + tl.arange(0, BLOCK // STRIP)
        wanted = strip < number
        if WHOLE == 0:
            strip = tl.load(names + strip, mask=wanted, other=0)
        i = strip[:, None] * STRIP + tl.arange(0, STRIP)[None, :]
        inside = wanted[:, None] & (i < V)
        held = wanted[:, None] & (i < STRIDE)  # whole strips, with nothing after the last logit
        z, t = _logits(raw, bias, row + i, i, held, inside, scale, cap, BIAS, CAP)
        below, present = _masks(
            z, i, y, theta, inside, protect, rare, shielded, PROTECT, RARE
        )  # fmt: skip
        g, more = _slopes(
            z, t, below, present, i, y, theta, c, k_lse, a_lse, k_count, a_count,
            scale, fade, leak, smoothing, z_loss, CAP, VARIANT,
        )  # fmt: skip
        if VARIANT == FADE:
            through += tl.sum(tl.sum(more, axis=1), axis=0)
        tl.store(raw + row + i, g.to(raw.dtype.element_ty), mask=held)
        keep = present & (below == 0)
        if VARIANT == DECOUPLE:
            seen = tl.where(keep, g, 0.0).to(second.dtype.element_ty)
            tl.store(second + row + i, seen, mask=held)
        if LISTS:
            if blocked == 0:
                one = keep.to(tl.int32)
                each = tl.sum(one, axis=1)
                before = listed + tl.cumsum(each, axis=0) - each
                at = before[:, None] + tl.cumsum(one, axis=1) - 1
                tl.store(entry_column + token * LISTED + at, i, mask=keep & (at < LISTED))
                listed += tl.sum(each, axis=0)
    if LISTS:
        tl.store(entries + token, tl.minimum(listed, LISTED))
    if (VARIANT == FADE) & (DETACHED == 0):
        # What reaches the target through the threshold; all have written before it is added.
        part = -through * c * scale
        if CAP:
            part *= 1 - ty * ty
        tl.debug_barrier()
        counts_here = (limit > 0) & (c != 0)
        own_entry = tl.load(raw + target_at, mask=counts_here, other=0).to(tl.float32)
        tl.store(raw + target_at, (own_entry + part).to(raw.dtype.element_ty), mask=counts_here)
