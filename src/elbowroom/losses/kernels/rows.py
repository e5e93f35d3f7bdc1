# mypy: ignore-errors
# Triton has no types, and reads a kernel's annotations in a way of its own.
"""The equations on a token's logits, as Triton kernels: one program a token.

``raw [n, V]`` holds the head's products, in the dtype of its input. `survey_kernel` reads them
once: thresholds, sums of exponentials, losses, statistics, and which strips of `STRIP` logits keep
something. `grade_kernel` turns them into gradients by the raw products, where they lie, only in
the strips that somebody will read. Notation and derivatives are those of `losses.entries`:

    z = logit_scale cap(raw + bias),    theta = z_y - margin
    below = z < theta and not y,        dropped = protect and not protect[y]

Sums run in float32 in a fixed order. The running maximum starts at the target's logit, which is in
every sum, so that nothing empty is ever exponentiated.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

# A checker of types must not wrap a kernel: Triton reads its source, and the names around it.

STRIP = tl.constexpr(128)  # logits of one token that are kept or skipped together
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
    raw, bias, at, i, inside, scale, cap, BIAS: tl.constexpr, CAP: tl.constexpr
):  # pragma: no cover
    """Return z, and tanh of the capped product (or z again, where nothing is capped)."""
    x = tl.load(raw + at, mask=inside, other=0).to(tl.float32)
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
    """Add exponentials of kept entries to a sum ``s exp(m)``; NaN among them shows in the sum."""
    largest = tl.max(tl.where(keep, x, float("-inf")), axis=0)
    new = tl.maximum(m, largest)
    return new, s * tl.where(m == new, 1.0, tl.exp(m - new)) + tl.sum(
        tl.where(keep, tl.exp(x - new), 0.0), axis=0
    )


@triton.jit
@no_type_check
def survey_kernel(
    raw, bias, target, counted, margin, protect, rare,
    losses, found, flags, touched, log_probability, rank, argmax, kept,
    V, S, scale, cap, fade, leak, smoothing, z_loss,
    BIAS: tl.constexpr, CAP: tl.constexpr, PROTECT: tl.constexpr, RARE: tl.constexpr,
    VARIANT: tl.constexpr, SMOOTH: tl.constexpr, STATS: tl.constexpr, GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """A token's loss and what its gradient needs; statistics if wanted.

    ``flags [n, S]`` starts at zero; a strip is marked where some entry of it has a gradient.
    """
    token = tl.program_id(0).to(tl.int64)
    y = tl.load(target + token)
    limit = tl.where(tl.load(counted + token) != 0, V, 0)
    row = token * V
    zy, _ty = _logits(raw, bias, row + y, y, y < limit, scale, cap, BIAS, CAP)
    theta = zy - tl.load(margin + token)
    shielded = tl.load(protect + y) if PROTECT else 0
    # The first entry of each sum is the target, whose exponential the blocks add.
    first = zy
    if VARIANT == FADE:
        first, _steep = _faded(zy, theta, fade)
    zero, none = tl.full((), 0, tl.float32), tl.full((), 0, tl.int32)
    km, ks, am, as_, fm, fs = first, zero, zy, zero, zy, zero
    k_count, a_count, k_sum, a_sum, greater, equal = none, none, zero, zero, none, none
    best, where, nowhere = zy, y.to(tl.int32), tl.full((), 0, tl.int32) + V
    for start in range(0, limit, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < V
        z, _t = _logits(raw, bias, row + i, i, inside, scale, cap, BIAS, CAP)
        below, present = _masks(
            z, i, y, theta, inside, protect, rare, shielded, PROTECT, RARE
        )  # fmt: skip
        keep = present & (below == 0)
        x = z
        if VARIANT == FADE:
            x, _slope = _faded(z, theta, fade)
        km, ks = _add(km, ks, x, keep)
        k_count += tl.sum(keep.to(tl.int32), axis=0)
        if SMOOTH:
            k_sum += tl.sum(tl.where(keep, x, 0.0), axis=0)
        if (VARIANT == DETACH) | (VARIANT == DECOUPLE) | (VARIANT == LEAK):
            am, as_ = _add(am, as_, z, present)
            a_count += tl.sum(present.to(tl.int32), axis=0)
            if SMOOTH:
                a_sum += tl.sum(tl.where(present, z, 0.0), axis=0)
        graded = keep
        if (VARIANT == LEAK) | (VARIANT == DECOUPLE):
            graded = present
        if GRADIENT:
            strips = tl.max(tl.reshape(graded.to(tl.int32), (BLOCK // STRIP, STRIP)), axis=1)
            at = start // STRIP + tl.arange(0, BLOCK // STRIP)
            tl.store(flags + token * S + at, strips.to(tl.int8), mask=at < S)
        if STATS:
            fm, fs = _add(fm, fs, z, inside)
            greater += tl.sum((inside & (z > zy)).to(tl.int32), axis=0)
            equal += tl.sum((inside & (z == zy)).to(tl.int32), axis=0)
            top = tl.max(tl.where(inside, z, float("-inf")), axis=0)
            at = tl.min(tl.where(inside & (z == top), i, V), axis=0)
            better = (top > best) | ((top == best) & (at < where))
            where = tl.where(better, at, where)
            best = tl.maximum(best, top)
            nowhere = tl.minimum(nowhere, tl.min(tl.where(inside & (z != z), i, V), axis=0))
            if VARIANT == DECOUPLE:
                graded = keep
            tl.store(touched + i, tl.full(i.shape, 1, tl.int8), mask=graded)
    if limit == 0:
        ks = zero + 1
        as_ = zero + 1
        fs = zero + 1
    k_log = tl.log(ks)
    k_lse = km + k_log
    a_lse = k_lse
    loss = (km - first) + k_log
    if SMOOTH:
        mean = tl.where(k_count > 0, k_sum / k_count, 0.0)
        loss = (1 - smoothing) * (km - first) + smoothing * (km - mean) + k_log
    loss += z_loss * k_lse * k_lse
    if (VARIANT == DETACH) | (VARIANT == DECOUPLE) | (VARIANT == LEAK):
        a_log = tl.log(as_)
        a_lse = am + a_log
        whole = (am - zy) + a_log
        if SMOOTH:
            mean = tl.where(a_count > 0, a_sum / a_count, 0.0)
            if VARIANT == DETACH:
                mean = tl.where(k_count > 0, k_sum / k_count, 0.0)
            whole = (1 - smoothing) * (am - zy) + smoothing * (am - mean) + a_log
        whole += z_loss * a_lse * a_lse
        if VARIANT == LEAK:
            loss = (1 - leak) * loss + leak * whole
        else:
            loss = whole
    counts = limit > 0
    tl.store(losses + token, tl.where(counts, loss, 0.0))
    tl.store(found + token * FOUND + KEPT_LSE, k_lse)
    tl.store(found + token * FOUND + ALL_LSE, a_lse)
    tl.store(found + token * FOUND + KEPT_COUNT, k_count.to(tl.float32))
    tl.store(found + token * FOUND + ALL_COUNT, a_count.to(tl.float32))
    tl.store(kept + token, k_count.to(tl.int64))
    if STATS:
        # PyTorch's way: NaN is the largest of all, and next to infinity all else is impossible
        broken = nowhere < V
        where = tl.where(broken, nowhere, where)
        log_p = (zy - fm) - tl.where(fm == float("inf"), 0.0, tl.log(fs))
        log_p = tl.where(broken, float("nan"), log_p)
        place = 1 + greater.to(tl.float32) + tl.maximum(equal - 1, 0).to(tl.float32) / 2
        place = tl.where(log_p != log_p, log_p, place)
        tl.store(log_probability + token, tl.where(counts, log_p, 0.0))
        tl.store(rank + token, tl.where(counts, place, 0.0))
        tl.store(argmax + token, tl.where(counts, where, -1).to(tl.int64))


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
def grade_kernel(
    raw, bias, target, counted, margin, protect, rare, coefficient, found,
    flags, needed, place, blocks, second, entry_column, entry_value, entries,
    V, S, TOKENS, scale, cap, fade, leak, smoothing, z_loss,
    BIAS: tl.constexpr, CAP: tl.constexpr, PROTECT: tl.constexpr, RARE: tl.constexpr,
    VARIANT: tl.constexpr, DETACHED: tl.constexpr, LISTED: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """Turn a token's products into gradients by them, in the strips that are needed.

    These are the token's own (``flags``), and those of its block of ``TOKENS`` (``needed``), where
    it has one: ``place`` is its place among the sorted tokens, the first ``blocks`` of which are in
    blocks. Other tokens have their entries listed, at most ``LISTED`` of them. ``second`` gets what
    the weight sees, where that is less than what the hidden state sees. With ``WHOLE`` all strips
    of all tokens are needed.
    """
    token = tl.program_id(0).to(tl.int64)
    y = tl.load(target + token)
    limit = tl.where(tl.load(counted + token) != 0, V, 0)
    row = token * V
    zy, ty = _logits(raw, bias, row + y, y, y < limit, scale, cap, BIAS, CAP)
    theta = zy - tl.load(margin + token)
    shielded = tl.load(protect + y) if PROTECT else 0
    c = tl.load(coefficient + token)
    k_lse = tl.load(found + token * FOUND + KEPT_LSE)
    a_lse = tl.load(found + token * FOUND + ALL_LSE)
    k_count = tl.load(found + token * FOUND + KEPT_COUNT)
    a_count = tl.load(found + token * FOUND + ALL_COUNT)
    listed, through = tl.full((), 0, tl.int32), tl.full((), 0, tl.float32)
    if WHOLE:
        blocked = limit >= 0
    else:
        mine = tl.load(place + token)
        blocked = mine < tl.load(blocks)
        own = flags + token * S
        theirs = needed + (mine // TOKENS).to(tl.int64) * S
    limit = tl.where(blocked, V, limit)  # blocks and wholes are read, counted or not
    for start in range(0, limit, BLOCK):
        strip = start // STRIP + tl.arange(0, BLOCK // STRIP)
        if WHOLE:
            wanted = tl.full(strip.shape, 1, tl.int8)
        else:
            wanted = tl.load(own + strip, mask=strip < S, other=0)
            wanted = wanted | tl.load(theirs + strip, mask=(strip < S) & blocked, other=0)
        if tl.max(wanted.to(tl.int32), axis=0) != 0:
            i = start + tl.arange(0, BLOCK)
            write = tl.reshape(
                tl.broadcast_to(wanted[:, None], (BLOCK // STRIP, STRIP)), (BLOCK,)
            ) != 0  # fmt: skip
            inside = (i < V) & write
            z, t = _logits(raw, bias, row + i, i, inside, scale, cap, BIAS, CAP)
            below, present = _masks(
                z, i, y, theta, inside, protect, rare, shielded, PROTECT, RARE
            )  # fmt: skip
            keep = present & (below == 0)
            hit = i == y
            slope = tl.full(z.shape, 1.0, tl.float32)
            if VARIANT == DROP:
                g = tl.where(keep, _graded(z, k_lse, hit, keep, k_count, smoothing, z_loss), 0.0)
            elif VARIANT == FADE:
                x, slope = _faded(z, theta, fade)
                g = tl.where(keep, _graded(x, k_lse, hit, keep, k_count, smoothing, z_loss), 0.0)
                through += tl.sum(tl.where(keep, (slope - 1) * g, 0.0), axis=0)
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
            g = tl.where(c == 0, 0.0, g)  # not NaN of a token that does not count
            g = g.to(raw.dtype.element_ty)
            tl.store(raw + row + i, g, mask=inside)
            if VARIANT == DECOUPLE:
                tl.store(second + row + i, tl.where(keep, g, 0.0).to(g.dtype), mask=inside)
            if LISTED > 0:
                if blocked == 0:
                    at = listed + tl.cumsum(keep.to(tl.int32), axis=0) - 1
                    fits = keep & (at < LISTED)
                    tl.store(entry_column + token * LISTED + at, i, mask=fits)
                    tl.store(entry_value + token * LISTED + at, g.to(tl.float32), mask=fits)
                    listed += tl.sum(keep.to(tl.int32), axis=0)
    if LISTED > 0:
        tl.store(entries + token, tl.minimum(listed, LISTED))
    if (VARIANT == FADE) & (DETACHED == 0):
        # What reaches the target through the threshold; all have written before it is added.
        part = -through * c * scale
        if CAP:
            part *= 1 - ty * ty
        tl.debug_barrier()
        own_entry = tl.load(raw + row + y, mask=limit > 0, other=0).to(tl.float32)
        tl.store(
            raw + row + y, (own_entry + part).to(raw.dtype.element_ty), mask=(limit > 0) & (c != 0)
        )
