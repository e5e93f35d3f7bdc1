"""Which sums an evaluation keeps, and checks of what decides it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError

Label = str | int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which column of the sums holds what; two evaluations of one layout can be merged."""

    vocab_size: int
    groups: tuple[Label, ...] | None
    bins: int | None
    runs: int | None
    recall: tuple[int, ...]
    temperatures: tuple[float, ...]
    calibration_bins: int
    has_bytes: bool
    has_foreign: bool

    @property
    def cell_shape(self) -> tuple[int, int]:
        """How many groups and how many bins there are; 1 where there is no division."""
        return (len(self.groups) if self.groups else 1, self.bins or 1)

    @property
    def cells(self) -> int:
        """The number of pairs of group and bin."""
        return self.cell_shape[0] * self.cell_shape[1]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns before the sweep: sums over the tokens of a cell."""
        always = ("tokens", "nll", "rank", "reciprocal_rank", "accuracy")
        extra = ("bytes",) * self.has_bytes + ("native_tokens", "foreign_mass") * self.has_foreign
        return always + tuple(f"recall@{k}" for k in self.recall) + extra

    @property
    def calibration_start(self) -> int:
        """The first of the columns of calibration: count, confidence and hits of each bin."""
        return len(self.names) + len(self.temperatures)

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.calibration_start + 3 * self.calibration_bins


def table(name: str, values: Tensor, vocab_size: int) -> Int[Tensor, " V"]:
    """Check an integer for each token id."""
    checks.is_integer(name, values)
    checks.has_shape(name, values, (vocab_size,), "a number a token id")
    if name != "group_of_token":
        checks.all_true(values >= 0, name, "integers that are at least 0", "a negative one")
    return values.long()


def bin_count(bin_of_token: Tensor | None) -> int | None:
    """Return how many bins there are."""
    return None if bin_of_token is None else int(bin_of_token.max()) + 1


def group_names(groups: int | Sequence[str] | None) -> tuple[Label, ...] | None:
    """Check names of groups, or their number."""
    if groups is None:
        return None
    if isinstance(groups, int):
        return tuple(range(checks.integer("groups", groups, at_least=1)))
    names = tuple(groups) if isinstance(groups, Iterable) and not isinstance(groups, str) else ()
    if not names or len(set(names)) < len(names):
        expected = "a number of groups, or a sequence of different names"
        raise ArgumentValueError("groups", expected, checks.describe(groups))
    return names


def recalls(recall: object) -> tuple[int, ...]:
    """Check the k of recall@k."""
    if isinstance(recall, str) or not isinstance(recall, Iterable):
        raise ArgumentTypeError("recall", "a sequence of integers", checks.describe(recall))
    return tuple(checks.integer("recall", k, at_least=1) for k in recall)
