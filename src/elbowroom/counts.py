"""How often each token occurs: one object for every method that asks.

Frequencies enter in many places: the rows that `protect` and `RareOnly` name, the rivals' gates,
priors and margins, the bins that metrics are reported by. `TokenCounts` holds them, fixed or
counted while training runs, and answers in tensors, so that nothing waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int, Integer, Num
from torch import Tensor, nn

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError

BinSpacing = Literal["log", "mass"]
BIN_SPACINGS = ("log", "mass")
_CHUNK = 1 << 24  # tokens counted at a time, so that int64 copies stay small
_ROUNDING = 1 + 1e-12  # so that 29 of 100 are a share of 0.29, whatever 0.29 * 100 rounds to


class TokenCounts(nn.Module):
    r"""Occurrences :math:`N_i` of each token id, ``[V]``, or ``[R, V]`` for a population of runs.

    Three ways to make one: ``TokenCounts(counts)`` and `from_tokens` are fixed; `running` counts
    what `update` is given, over the last K steps or over all.

    It is a module without parameters: it moves with the model it is part of, and its counts are
    saved in the state dict. Unlike other modules' buffers its counts keep their dtype under
    ``.half()`` or ``.to(torch.bfloat16)``, which could not hold them. Counts are what one process
    saw: where training is distributed, give `update` the gathered targets.

    Args:
        counts: ``[V]`` or ``[R, V]``; integers or floats, at least 0. Copied.

    Example:
        >>> counts = TokenCounts(torch.tensor([90, 9, 1, 0]))
        >>> counts.frequency()
        tensor([0.9000, 0.0900, 0.0100, 0.0000])
        >>> counts.rare(share=0.01)
        tensor([False, False,  True,  True])
    """

    counts: Tensor
    seen: Tensor
    ring: Tensor | None

    def __init__(self, counts: Num[Tensor, "*runs V"]) -> None:
        super().__init__()
        self.steps: int | None = None
        self.is_running = False
        self.register_buffer("counts", _checked(counts))
        self.register_buffer("ring", None)

    @classmethod
    def from_tokens(
        cls, tokens: Integer[Tensor, " *shape"], vocab_size: int, *, ignore_index: int = -100
    ) -> TokenCounts:
        """Count the token ids in ``tokens``, of any shape; ``ignore_index`` does not count.

        Example:
            >>> TokenCounts.from_tokens(torch.tensor([0, 2, 2]), vocab_size=4).counts
            tensor([1, 0, 2, 0])
        """
        flat = checks.is_integer("tokens", tokens).reshape(1, -1)
        vocab_size = checks.integer("vocab_size", vocab_size, at_least=1)
        ignore_index = checks.integer("ignore_index", ignore_index)
        counts = torch.zeros(1, vocab_size, dtype=torch.int64, device=flat.device)
        for chunk in torch.split(flat, _CHUNK, dim=1):
            counts += _count(_ids("tokens", chunk, vocab_size, ignore_index), vocab_size)
        return cls(counts[0])

    @classmethod
    def running(
        cls,
        vocab_size: int,
        *,
        steps: int | None,
        runs: int | None = None,
        device: torch.device | str | None = None,
    ) -> TokenCounts:
        """Start from zero and count what `update` is given.

        Args:
            vocab_size: V.
            steps: how many of the latest updates the counts cover, exactly; None for all of them.
                Steps are remembered as ids, 4 bytes a token: ``4 * steps * tokens`` bytes.
            runs: R, for counts ``[R, V]`` of targets ``[R, ...]``.
            device: where to count; where the targets will be.

        Example:
            >>> counts = TokenCounts.running(3, steps=2)
            >>> for batch in ([0, 0], [1, 1], [1, 2]):
            ...     counts.update(torch.tensor(batch))
            >>> counts.counts
            tensor([0, 3, 1])
        """
        vocab_size = checks.integer("vocab_size", vocab_size, at_least=1)
        leading = () if runs is None else (checks.integer("runs", runs, at_least=1),)
        result = cls(torch.zeros(*leading, vocab_size, dtype=torch.int64, device=device))
        result.is_running = True
        result.register_buffer("seen", torch.zeros((), dtype=torch.int64, device=device))
        if steps is not None:
            result.steps = checks.integer("steps", steps, at_least=1)
            ring = torch.empty(result.steps, runs or 1, 0, dtype=torch.int32, device=device)
            result.register_buffer("ring", ring)
        return result

    @torch.no_grad()
    def update(self, target: Integer[Tensor, " *shape"], ignore_index: int = -100) -> None:
        """Count one step's targets, ``[...]`` or ``[R, ...]``, and forget the step K ago.

        Does not wait for the device. The memory of steps grows when a step is longer than those
        before it; a CUDA graph is therefore captured after the first update.
        """
        self._check_running("to update them")
        checks.is_integer("target", target)
        checks.same_device("target", target, "counts", self.counts)
        runs = self.counts.shape[:-1]
        if target.shape[: len(runs)] != runs:
            expected = f"[R, ...] with R = {runs[0]}, as the counts have runs"
            raise ArgumentValueError("target", expected, f"shape {tuple(target.shape)}")
        flat = target.reshape(math.prod(runs), target.numel() // math.prod(runs))
        ids = _ids("target", flat, self.vocab_size, checks.integer("ignore_index", ignore_index))
        change = _count(ids, self.vocab_size)
        if self.ring is not None:
            change -= self._replace_oldest(ids)
        self.counts += change.view_as(self.counts)
        self.seen += 1

    def _replace_oldest(self, ids: Int[Tensor, "R n"]) -> Int[Tensor, "R V"]:
        """Put a step in the place of the oldest one, and return the counts of that."""
        ring = self.ring
        assert ring is not None
        if ids.shape[1] > ring.shape[2]:  # V stands for "no token"
            wider = ring.new_full((*ring.shape[:2], ids.shape[1]), self.vocab_size)
            wider[:, :, : ring.shape[2]] = ring
            self.ring = ring = wider
        place = (self.seen % ring.shape[0])[None]
        old = _count(ring.index_select(0, place)[0].long(), self.vocab_size)
        row = ring.new_full(ring.shape[1:], self.vocab_size)
        row[:, : ids.shape[1]] = ids
        ring.index_copy_(0, place, row[None])
        return old

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.counts.shape[-1]

    @property
    def total(self) -> Num[Tensor, "*runs"]:
        """All occurrences, ``[]`` or ``[R]``."""
        return self.counts.sum(-1)

    def values(self) -> Float[Tensor, "*runs V"]:
        """Return the counts as floating-point numbers (float32 unless they were float64)."""
        return self.counts if self.counts.is_floating_point() else self.counts.float()

    def frequency(self) -> Float[Tensor, "*runs V"]:
        """Return each token's share of all occurrences; 0 where nothing was counted yet."""
        total = self.total.to(self.values().dtype)[..., None]
        return self.values() / torch.where(total == 0, torch.ones_like(total), total)

    def rate(self) -> Float[Tensor, "*runs V"]:
        """Return occurrences a step, over the steps that running counts cover so far."""
        self._check_running("to know the number of steps")
        covered = self.seen if self.steps is None else self.seen.clamp(max=self.steps)
        return self.values() / covered.clamp(min=1)

    def mean(self) -> Float[Tensor, "*runs"]:
        """Return the average count of a token, seen or not."""
        return self.values().mean(-1)

    def log_prior(self, smoothing: float = 1.0) -> Float[Tensor, "*runs V"]:
        r"""Return :math:`\log((N_i + s) / \sum_j (N_j + s))`.

        Args:
            smoothing: the s added to every count; with 0 the prior of an unseen token is -inf.

        Example:
            >>> TokenCounts(torch.tensor([2, 0])).log_prior().exp()
            tensor([0.7500, 0.2500])
        """
        smoothed = self.values() + checks.number("smoothing", smoothing, at_least=0.0)
        total = smoothed.sum(-1, keepdim=True)
        return smoothed.log() - torch.where(total == 0, torch.ones_like(total), total).log()

    def rare(
        self,
        *,
        at_most: int | float | None = None,
        share: float | None = None,
        quantile: float | None = None,
        group_of_token: Int[Tensor, " V"] | None = None,
        groups: Sequence[int] | None = None,
        language_share: float | None = None,
    ) -> Bool[Tensor, "*runs V"]:
        """Return which tokens are rare, by exactly one criterion; equal counts fare alike.

        Args:
            at_most: those that occur at most so often.
            share: the rarest tokens that together make up at most this share of all occurrences
                (unseen tokens always do).
            quantile: the rarest ``floor(quantile * V)`` tokens, and those as rare as the last.
            group_of_token: the group, such as a language, of each token id; negative for none.
                Comes with one of:
            groups: all tokens of these groups.
            language_share: all tokens of the groups that make up less than this share of all
                occurrences.

        Example:
            >>> counts = TokenCounts(torch.tensor([60, 38, 2, 0]))
            >>> counts.rare(at_most=2)
            tensor([False, False,  True,  True])
            >>> language = torch.tensor([0, 0, 1, 1])
            >>> counts.rare(group_of_token=language, language_share=0.05)
            tensor([False, False,  True,  True])
        """
        given = {
            "at_most": at_most,
            "share": share,
            "quantile": quantile,
            "groups": groups,
            "language_share": language_share,
        }
        _check_criteria(given, group_of_token)
        if at_most is not None:
            return self.counts <= checks.number("at_most", at_most, at_least=0.0)
        if share is not None:
            share = checks.number("share", share, at_least=0.0, at_most=1.0)
            _, mass = _mass_around(self.values().double())
            return mass <= share * self.total.double()[..., None] * _ROUNDING
        if quantile is not None:
            quantile = checks.number("quantile", quantile, at_least=0.0, at_most=1.0)
            k = math.floor(quantile * self.vocab_size * _ROUNDING)
            if k == 0:
                return torch.zeros_like(self.counts, dtype=torch.bool)
            return self.counts <= self.counts.kthvalue(k, dim=-1, keepdim=True).values
        assert group_of_token is not None
        group = self._checked_groups(group_of_token)
        if groups is not None:
            chosen = torch.tensor(_group_ids(groups), dtype=torch.int64, device=group.device)
            return (torch.isin(group, chosen) & (group >= 0)).expand_as(self.counts)
        assert language_share is not None
        bound = checks.number("language_share", language_share, at_least=0.0, at_most=1.0)
        sums = self._count_of_group(group).double()
        return (sums * _ROUNDING < bound * self.total.double()[..., None]) & (group >= 0)

    def _check_running(self, purpose: str) -> None:
        if not self.is_running:
            fix = "make them with TokenCounts.running(vocab_size, steps=...)"
            raise ArgumentTypeError("counts", f"running counts, {purpose}", "fixed ones", fix)

    def _checked_groups(self, group_of_token: Tensor) -> Int[Tensor, " V"]:
        checks.is_integer("group_of_token", group_of_token)
        checks.has_shape("group_of_token", group_of_token, [self.vocab_size], "a group a token id")
        checks.same_device("group_of_token", group_of_token, "counts", self.counts)
        return group_of_token.long()

    def _count_of_group(self, group: Int[Tensor, " V"]) -> Num[Tensor, "*runs V"]:
        """Return the occurrences of each token's group as a whole."""
        # Groups are numbered anew, from 0 to at most V - 1, so that no size depends on the ids.
        local = torch.searchsorted(group.sort().values, group)
        sums = torch.zeros_like(self.counts).index_add_(-1, local, self.counts)
        return sums.index_select(-1, local)

    def bins(self, k: int, *, spacing: BinSpacing = "log") -> Int[Tensor, "*runs V"]:
        r"""Return the frequency bin of each token id, 0 (rarest) to ``k - 1``; equal counts share.

        Args:
            k: how many bins; some may be empty.
            spacing: "log" cuts the range from the smallest count above 0 to the largest into k
                equal ratios, unseen tokens being in bin 0, so that the tail is spread out;
                "mass" gives every bin about the same share of all occurrences, so that averages
                over bins are equally certain.

        Example:
            >>> counts = TokenCounts(torch.tensor([0, 1, 10, 100, 1000]))
            >>> counts.bins(3)
            tensor([0, 0, 1, 2, 2])
            >>> counts.bins(3, spacing="mass")
            tensor([0, 0, 0, 0, 1])
        """
        k = checks.integer("k", k, at_least=1)
        checks.choice("spacing", spacing, BIN_SPACINGS)
        counts = self.values().double()
        if spacing == "mass":
            below, upto = _mass_around(counts)
            total = counts.sum(-1, keepdim=True)
            position = (below + upto) / 2 / torch.where(total == 0, torch.ones_like(total), total)
        else:
            logs = counts.log()
            smallest = logs.masked_fill(counts == 0, math.inf).amin(-1, keepdim=True)
            width = logs.amax(-1, keepdim=True) - smallest
            position = (logs - smallest) / torch.where(width > 0, width, torch.ones_like(width))
            position = position.nan_to_num(0.0, neginf=0.0)
        # A count at an edge, such as 10 between 1 and 1000, belongs above it whatever the rounding.
        return (position * k + 1e-9).floor().long().clamp(0, k - 1)

    def extra_repr(self) -> str:
        """Describe the shape and the window, for ``print``."""
        window = f", running over {self.steps or 'all'} steps" if self.is_running else ""
        return f"{', '.join(map(str, self.counts.shape))}{window}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TokenCounts:
        def move_only(t: Tensor) -> Tensor:
            return fn(t) if t.is_meta else t.to(fn(t.new_empty(0)).device)

        super()._apply(move_only, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        saved = state_dict.get(f"{prefix}ring")
        ring = self.ring
        if ring is not None and saved is not None and saved.shape[:2] == ring.shape[:2]:
            self.ring = ring.new_empty(saved.shape)  # as wide as the longest step of the past
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _checked(counts: Tensor) -> Tensor:
    checks.is_tensor("counts", counts, "pass torch.tensor(counts)")
    if counts.dtype == torch.bool or counts.is_complex():
        raise ArgumentTypeError("counts", "integers or floats", checks.describe(counts))
    if counts.ndim not in (1, 2) or counts.shape[-1] == 0:
        raise ArgumentValueError("counts", "[V] or [R, V], V at least 1", tuple(counts.shape))
    valid = (counts >= 0) & (counts < math.inf)
    checks.all_true(valid, "counts", "finite numbers, at least 0", "others among them")
    floating = torch.float64 if counts.dtype == torch.float64 else torch.float32
    dtype = floating if counts.is_floating_point() else torch.int64
    return counts.detach().to(dtype, copy=True)


def _ids(name: str, tokens: Tensor, vocab_size: int, ignore_index: int) -> Int[Tensor, "R n"]:
    """Return token ids as int64, V where they do not count."""
    ids = tokens.long()
    counted = ids != ignore_index
    checks.all_true(
        ~counted | ((ids >= 0) & (ids < vocab_size)),
        name,
        f"values from 0 to {vocab_size - 1}, or ignore_index ({ignore_index})",
        "a value outside",
        "compare its maximum with vocab_size",
    )
    return ids.masked_fill(~counted, vocab_size)


def _count(ids: Int[Tensor, "R n"], vocab_size: int) -> Int[Tensor, "R V"]:
    counts = ids.new_zeros(ids.shape[0], vocab_size + 1)
    return counts.scatter_add_(1, ids, torch.ones_like(ids))[:, :vocab_size]


def _group_ids(groups: object) -> list[int]:
    if isinstance(groups, Tensor):
        groups = checks.is_integer("groups", groups).flatten().tolist()
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise ArgumentTypeError("groups", "a sequence of groups", checks.describe(groups))
    return [checks.integer("groups", group) for group in groups]


def _mass_around(
    counts: Float[Tensor, "*runs V"],
) -> tuple[Float[Tensor, "*runs V"], Float[Tensor, "*runs V"]]:
    """Return the occurrences of all rarer tokens, and of those and the equally frequent."""
    order = counts.sort(dim=-1).values.contiguous()
    running = torch.cat([torch.zeros_like(order[..., :1]), order.cumsum(-1)], dim=-1)
    below = torch.searchsorted(order, counts.contiguous(), right=False)
    upto = torch.searchsorted(order, counts.contiguous(), right=True)
    return running.gather(-1, below), running.gather(-1, upto)


def _check_criteria(given: Mapping[str, object], group_of_token: Tensor | None) -> None:
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        options = "exactly one of at_most, share, quantile, groups and language_share"
        raise ArgumentValueError("rare", options, " and ".join(names) or "none of them")
    if (group_of_token is not None) != (names[0] in ("groups", "language_share")):
        if group_of_token is None:
            raise ArgumentValueError("group_of_token", f"a tensor [V], for {names[0]}", None)
        fix = "pass groups= or language_share= with it"
        raise ArgumentValueError("group_of_token", f"None with {names[0]}", "a tensor", fix)
