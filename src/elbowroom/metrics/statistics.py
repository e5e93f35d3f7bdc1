"""What one token's logits say about its target: probability, rank, chances of the top k.

Ties are settled by an even chance, so that a model that gives every token the same logit gets no
credit for the order of the vocabulary. With ``g`` entries strictly greater than the target's and
``e`` other entries equal to it, the target's rank is one of ``g + 1 ... g + 1 + e``, each as
likely; its expectation is ``1 + g + e / 2``, and it is at most k with probability
``(k - g) / (e + 1)``, cut to [0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.losses.problem import compute_dtype


@dataclass(frozen=True, kw_only=True)
class TargetStatistics:
    """What the full softmax says about each target; shapes are the target's.

    A row of logits with a NaN gives NaN in every floating-point statistic.
    """

    log_probability: Float[Tensor, "*n"]
    """``z_y - logsumexp(z)``."""
    greater: Int[Tensor, "*n"]
    """How many logits are greater than the target's."""
    equal: Int[Tensor, "*n"]
    """How many other logits equal the target's."""
    confidence: Float[Tensor, "*n"]
    """The largest probability."""

    @property
    def rank(self) -> Float[Tensor, "*n"]:
        """The expected rank, ``1 + greater + equal / 2``."""
        rank = 1 + self.greater.to(self.confidence.dtype) + self.equal / 2
        return rank.masked_fill(self.log_probability.isnan(), torch.nan)

    def top(self, k: int) -> Float[Tensor, "*n"]:
        """Return the probability that the target is among the first k (see the module's text)."""
        chance = top_k_probability(self.greater, self.equal, k).to(self.confidence.dtype)
        return chance.masked_fill(self.log_probability.isnan(), torch.nan)


def top_k_probability(
    greater: Int[Tensor, "*n"], equal: Int[Tensor, "*n"], k: int
) -> Float[Tensor, "*n"]:
    """Return the probability that an even tie-break ranks an entry among the first k.

    ``clamp((k - g) / (e + 1), 0, 1)`` with ``g`` entries strictly greater and ``e`` others equal.

    Args:
        greater: ``[...]``, g.
        equal: ``[...]``, e, without the entry itself.
        k: at least 1.

    Example:
        >>> import torch
        >>> top_k_probability(torch.tensor([0, 1, 3]), torch.tensor([1, 3, 0]), k=2)
        tensor([1.0000, 0.2500, 0.0000])
    """
    checks.is_integer("greater", greater)
    checks.is_integer("equal", equal)
    checks.has_shape("equal", equal, greater.shape, "the shape of greater")
    checks.same_device("equal", equal, "greater", greater)
    checks.integer("k", k, at_least=1)
    return ((k - greater) / (equal + 1)).clamp(0, 1)


def target_statistics(logits: Float[Tensor, "*n V"], target: Int[Tensor, "*n"]) -> TargetStatistics:
    """Return log-probability, rank and confidence under the full softmax, ties counted evenly.

    The rank that PyTorch's users often write, ``(z > z_y).sum() + 1``, is the best the target can
    hope for among ties; this one is the rank it can expect (see `TargetStatistics.rank`).

    Args:
        logits: ``[..., V]``.
        target: ``[...]``, ids from 0 to V - 1.

    Example:
        >>> import torch
        >>> found = target_statistics(torch.zeros(1, 4), torch.tensor([2]))
        >>> found.rank, found.top(1)
        (tensor([2.5000]), tensor([0.2500]))
    """
    logits, target = _check(logits, target)
    z = logits.to(compute_dtype(logits.dtype))
    return statistics(z, target, Softmax.of(z))


def temperature_nll(
    logits: Float[Tensor, "*n V"],
    target: Int[Tensor, "*n"],
    temperatures: Sequence[float | int] | Float[Tensor, " K"],
) -> Float[Tensor, "*n K"]:
    """Return the negative log-likelihood of each target at each temperature.

    ``nll(T) = log sum_i exp((z_i - m) / T) - (z_y - m) / T`` with ``m = max_i z_i``. The largest
    exponent is exactly 0, so the sum lies between 1 and V at any temperature, and both terms are
    non-negative: nothing overflows or cancels, in float32 at temperature .01 too.
    Paper, appendix "PPL vs. Temperature".

    Args:
        logits: ``[..., V]``.
        target: ``[...]``, ids from 0 to V - 1.
        temperatures: ``[K]``, each above 0.

    Example:
        >>> import torch
        >>> temperature_nll(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), [1.0, 2.0])
        tensor([[0.1269, 0.3133]])
    """
    logits, target = _check(logits, target)
    z = logits.to(compute_dtype(logits.dtype))
    return sweep(Softmax.of(z).shifted, target, check_temperatures(temperatures))


def foreign_mass(
    logits: Float[Tensor, "*n V"],
    target: Int[Tensor, "*n"],
    group_of_token: Int[Tensor, " V"],
) -> Float[Tensor, "*n"]:
    """Return the probability on tokens of another group than the target's (language confusion).

    ``sum_i p_i [g_i != g_y]``. A token whose label is negative belongs to every group (digits,
    punctuation): it is never foreign, and nothing is foreign where it is the target.

    Args:
        logits: ``[..., V]``.
        target: ``[...]``, ids from 0 to V - 1.
        group_of_token: ``[V]``, the label of each token.

    Example:
        >>> import torch
        >>> foreign_mass(torch.zeros(1, 4), torch.tensor([0]), torch.tensor([0, 0, 1, -1]))
        tensor([0.2500])
    """
    logits, target = _check(logits, target)
    checks.is_integer("group_of_token", group_of_token)
    checks.has_shape("group_of_token", group_of_token, logits.shape[-1:], "a label a token")
    checks.same_device("group_of_token", group_of_token, "logits", logits)
    z = logits.to(compute_dtype(logits.dtype))
    return foreign(Softmax.of(z), target, group_of_token)


# Below: the same on logits that are checked and in float32 or float64; Evaluation shares the parts.


@dataclass(frozen=True, kw_only=True)
class Softmax:
    """The parts of a softmax that several statistics share."""

    shifted: Float[Tensor, "*n V"]  # z - max z
    exponentials: Float[Tensor, "*n V"]
    total: Float[Tensor, "*n"]

    @classmethod
    def of(cls, z: Float[Tensor, "*n V"]) -> Softmax:
        """Return the parts for logits in float32 or float64."""
        shifted = z - z.amax(-1, keepdim=True)
        exponentials = shifted.exp()
        return cls(shifted=shifted, exponentials=exponentials, total=exponentials.sum(-1))


def statistics(
    z: Float[Tensor, "*n V"], target: Int[Tensor, "*n"], softmax: Softmax
) -> TargetStatistics:
    """Return the statistics of each target; ranks compare z itself, as shifting can make ties."""
    index = target[..., None]
    own = z.gather(-1, index)
    return TargetStatistics(
        log_probability=softmax.shifted.gather(-1, index)[..., 0] - softmax.total.log(),
        greater=(z > own).sum(-1),
        equal=((z == own).sum(-1) - 1).clamp(min=0),  # a NaN does not equal itself
        confidence=1 / softmax.total,  # the largest exponential is exactly 1
    )


def sweep(
    shifted: Float[Tensor, "*n V"], target: Int[Tensor, "*n"], temperatures: Sequence[float | int]
) -> Float[Tensor, "*n K"]:
    """Return `temperature_nll` from logits whose largest is 0 in each row."""
    own = shifted.gather(-1, target[..., None])[..., 0]
    nll = shifted.new_empty(*target.shape, len(temperatures))
    buffer = torch.empty_like(shifted)  # the one extra copy, whatever the number of temperatures
    for k, temperature in enumerate(temperatures):
        total = torch.div(shifted, temperature, out=buffer).exp_().sum(-1)
        nll[..., k] = total.log_() - own / temperature
    return nll


def foreign(
    softmax: Softmax, target: Int[Tensor, "*n"], group_of_token: Int[Tensor, " V"]
) -> Float[Tensor, "*n"]:
    """Return `foreign_mass` from the parts of the softmax."""
    own = group_of_token[target][..., None]
    stranger = (group_of_token != own) & (group_of_token >= 0) & (own >= 0)
    return (softmax.exponentials * stranger).sum(-1) / softmax.total


def check_temperatures(temperatures: Sequence[float | int] | Tensor) -> tuple[float, ...]:
    """Return the temperatures as numbers, each above 0."""
    listed = temperatures.tolist() if isinstance(temperatures, Tensor) else temperatures
    if not isinstance(listed, (list, tuple)):
        expected, got = "a sequence of numbers, or a tensor [K]", checks.describe(temperatures)
        raise ArgumentTypeError("temperatures", expected, got)
    if not listed:
        raise ArgumentValueError("temperatures", "at least one temperature", "none")
    return tuple(checks.number("temperatures", t, above=0.0) for t in listed)


def _check(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Check logits ``[..., V]`` and targets ``[...]``, all of which count."""
    checks.is_floating("logits", logits)
    if logits.ndim < 1 or logits.shape[-1] == 0:
        raise ArgumentValueError("logits", "[..., V] with V at least 1", tuple(logits.shape))
    checks.is_integer("target", target)
    checks.has_shape("target", target, logits.shape[:-1], "the shape of logits without its last")
    checks.same_device("target", target, "logits", logits)
    size = logits.shape[-1]
    expected = f"values from 0 to {size - 1}"
    checks.all_true((target >= 0) & (target < size), "target", expected, "a value outside")
    return logits, target.long()
