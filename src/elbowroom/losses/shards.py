"""A head whose rows are spread over the ranks of a process group: who has which of them.

Each rank sees the logits of its own rows. What a token needs of all of them is a handful of
numbers, summed or compared over the ranks: the target's logit, the largest logit, sums. All ranks
cut the tokens into the same blocks and treat them in the same order, so that their calls match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError, BackendError
from elbowroom.losses.entries import WHOLE, Whole
from elbowroom.losses.spec import Spec
from elbowroom.losses.variants import RareOnly


class Shard(Whole):
    """The rows of one rank: ``mine`` of the vocabulary, at most ``most`` on any rank.

    The masks of a `Spec` are those of the whole vocabulary, and targets are global ids.
    """

    parted = True

    def __init__(self, group: dist.ProcessGroup, mine: slice, most: int) -> None:
        self.group, self.mine, self.most = group, mine, most

    def widest(self, vocab: int) -> int:
        """Return the most rows that a rank has."""
        return self.most

    def local(self, target: Int[Tensor, "R n"]) -> Int[Tensor, "R n"]:
        """Return targets as rows that are here, -1 where another rank has them."""
        here = (target >= self.mine.start) & (target < self.mine.stop)
        return torch.where(here, target - self.mine.start, -1)

    def masks(
        self, z: Float[Tensor, "R n V"], target: Int[Tensor, "R n"], spec: Spec
    ) -> tuple[Bool[Tensor, "R n V"], Bool[Tensor, "R n V"]]:
        """Do as `reference.masks`, with the target's logit from the rank that has it."""
        local = self.local(target)
        elsewhere, place = local < 0, local.clamp(min=0)[..., None]
        at_target = self.sum(z.gather(-1, place)[..., 0].masked_fill(elsewhere, 0.0))
        below = z < (at_target - spec.margin)[..., None]
        if isinstance(spec.variant, RareOnly):
            below &= spec.variant.rows[:, None, self.mine]
        below.scatter_(-1, place, below.gather(-1, place) & elsewhere[..., None])
        if spec.protect is None:
            return below, torch.zeros_like(below)
        protect = spec.protect.expand(z.shape[0], -1)
        return below, protect[:, None, self.mine] & ~protect.gather(-1, target)[..., None]

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks, the same bits on each."""
        x = x.contiguous()
        dist.all_reduce(x, group=self.group)
        return x

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest of all ranks; a NaN may be lost here, but the sums have it."""
        x = x.contiguous()
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x

    def all(self, x: Bool[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Return what is true on all ranks."""
        y = x.to(torch.int32)
        dist.all_reduce(y, dist.ReduceOp.MIN, group=self.group)
        return y.bool()


@dataclass(frozen=True)
class Ranks:
    """Who shares a head: a process group, whose ranks have its rows in order, or None: this one."""

    group: dist.ProcessGroup | None

    @staticmethod
    def of(group: object, weight: object) -> Ranks:
        """Take the group of a DTensor's mesh, the one that was given, or the default group."""
        mesh = _mesh("weight", weight)
        if mesh is not None:
            if group is not None:
                expected = "None for a DTensor weight, whose mesh says who has which rows"
                raise ArgumentValueError("group", expected, checks.describe(group), "leave it out")
            return Ranks(mesh.get_group())
        if group is None and not (dist.is_available() and dist.is_initialized()):
            return Ranks(None)
        group = dist.group.WORLD if group is None else group
        if not isinstance(group, dist.ProcessGroup):
            fix = "only the ranks of the group call the loss"
            expected = "a process group of torch.distributed that this process is in, or None"
            raise ArgumentTypeError("group", expected, checks.describe(group), fix)
        return Ranks(group)

    def own(self, name: str, value: Tensor) -> Tensor:
        """Return the rows that are here, differentiably; a DTensor is one of this group."""
        mesh = _mesh(name, value)
        if mesh is None:
            return value
        if self.group is None or mesh.get_group() is not self.group:
            expected = "rows on the same mesh as those of the weight"
            raise ArgumentValueError(name, expected, "a DTensor of another mesh")
        rows: Tensor = value.to_local()  # type: ignore[attr-defined]
        return rows

    @contextmanager
    def or_none(self) -> Iterator[None]:
        """Let no rank go on where one cannot: the others hear of an error, and do not wait."""
        try:
            yield
        except Exception as error:
            self._say({"error": str(error)})
            raise

    def agree(self, rows: int, said: Mapping[str, object]) -> tuple[Whole, int]:
        """Return what part of the rows is here and how many there are, or raise on all ranks.

        Args:
            rows: how many are here.
            said: by argument, what has to be the same everywhere (see `told`).
        """
        heard = self._say({"rows": rows, "said": dict(said)})
        for rank, other in enumerate(heard):
            if "error" in other:
                raise BackendError(f"group: rank {rank} refused its arguments: {other['error']}")
            for name, value in heard[0]["said"].items():
                if other["said"][name] != value:
                    got = f"{other['said'][name]} on rank {rank}, {value} on rank 0"
                    fix = "only the rows of weight and bias differ: gather the tokens first"
                    raise ArgumentValueError(name, "the same on all ranks of the group", got, fix)
        if len(heard) == 1:
            return WHOLE, rows
        assert self.group is not None
        sizes = [other["rows"] for other in heard]
        first = sum(sizes[: dist.get_rank(self.group)])
        return Shard(self.group, slice(first, first + rows), max(sizes)), sum(sizes)

    def _say(self, words: dict[str, Any]) -> list[dict[str, Any]]:
        """Say something to all ranks; return what each said."""
        if self.group is None or dist.get_world_size(self.group) == 1:
            return [words]
        heard: list[dict[str, Any]] = [{}] * dist.get_world_size(self.group)
        dist.all_gather_object(heard, words, group=self.group)
        return heard


def told(value: object) -> str:
    """Describe a value in words that are the same on two ranks only if the value is.

    Of a tensor they hold a sum over its bits, each byte times its place.
    """
    if isinstance(value, Tensor):
        bits = value.detach().contiguous().reshape(-1).view(torch.uint8).long()
        place = 2 * torch.arange(len(bits), device=bits.device) + 1  # odd: no bit is lost
        kind = f"{value.dtype} {list(value.shape)} on {value.device.type}"
        return f"a tensor ({kind}, sum over bits {int((bits * place).sum())})"
    if is_dataclass(value) and not isinstance(value, type):
        parts = (f"{x.name}={told(getattr(value, x.name))}" for x in fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    return checks.describe(value)


def _mesh(name: str, value: object) -> Any:
    """Return the mesh of a DTensor, None for what is none; it is cut by rows over one dimension."""
    if not isinstance(value, Tensor) or type(value) in (Tensor, nn.Parameter):
        return None
    if not dist.is_available():
        return None
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor import Shard as ByDimension

    if not isinstance(value, DTensor):
        return None
    mesh = value.device_mesh
    if mesh.ndim != 1 or tuple(value.placements) != (ByDimension(0),):
        expected = "a DTensor with placements [Shard(0)] over a mesh of one dimension"
        got = f"{list(value.placements)} over {mesh.ndim} dimension(s)"
        fix = "redistribute it, or pass the rank's own rows and group="
        raise ArgumentValueError(name, expected, got, fix)
    if mesh.get_coordinate() is None:
        raise ArgumentValueError(name, "a DTensor of a mesh that this rank is in", "another mesh")
    return mesh
