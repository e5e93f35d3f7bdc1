"""What an evaluation found: a tree of scores, made from sums alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.metrics.layout import Label, Layout


@dataclass(frozen=True, kw_only=True, eq=False)
class Reliability:
    """A reliability diagram: tokens by the confidence of the model's first choice.

    Bin b of B holds confidences in ``(b / B, (b + 1) / B]``.
    """

    tokens: Float[Tensor, "*runs B"]
    """How many tokens are in each bin."""
    confidence: Float[Tensor, "*runs B"]
    """Their mean largest probability; NaN for an empty bin."""
    accuracy: Float[Tensor, "*runs B"]
    """How often the first choice was right; NaN for an empty bin."""

    @property
    def expected_error(self) -> Float[Tensor, "*runs"]:
        """``sum_b n_b / N * |accuracy_b - confidence_b|`` (Guo et al., 2017)."""
        gap = (self.accuracy - self.confidence).abs() * self.tokens
        # only an empty bin adds nothing: a NaN from the model must show
        return gap.masked_fill(self.tokens == 0, 0.0).sum(-1) / self.tokens.sum(-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """The scores of one group of tokens, and of the groups inside it.

    Every score is a float64 tensor, ``[]``, or ``[R]`` with a run dimension; NaN where a group
    has no tokens. `groups` and `bins` hold the same scores for parts of the tokens; each group
    has its own bins.
    """

    tokens: Float[Tensor, "*runs"]
    """How many tokens counted."""
    nll: Float[Tensor, "*runs"]
    """Mean negative log-likelihood in nats, at temperature 1."""
    accuracy: Float[Tensor, "*runs"]
    """How often the target is first; among e + 1 equals, 1 / (e + 1) each."""
    recall: Mapping[int, Float[Tensor, "*runs"]]
    """For each k: how often the target is among the first k, ties by chance."""
    mrr: Float[Tensor, "*runs"]
    """Mean of 1 / expected rank."""
    rank: Float[Tensor, "*runs"]
    """Mean expected rank, ``1 + greater + equal / 2``."""
    reliability: Reliability
    """Confidence against accuracy, by bins of confidence."""
    bytes: Float[Tensor, "*runs"] | None
    """How many bytes the targets stand for; None without ``byte_lengths``."""
    foreign_mass: Float[Tensor, "*runs"] | None
    """Mean probability on tokens of another group; None without ``group_of_token``."""
    temperatures: Float[Tensor, " K"] | None
    """The temperatures of the sweep; None without one."""
    nll_by_temperature: Float[Tensor, "*runs K"] | None
    """Mean negative log-likelihood at each of them."""
    groups: Mapping[Label, Scores] = field(default_factory=lambda: MappingProxyType({}))
    """The scores of each group, by its name or number."""
    bins: tuple[Scores, ...] = ()
    """The scores of each bin of target tokens."""

    @property
    def ppl(self) -> Float[Tensor, "*runs"]:
        """Perplexity at temperature 1, ``exp(nll)``."""
        return self.nll.exp()

    @property
    def calibration_error(self) -> Float[Tensor, "*runs"]:
        """Expected calibration error of the first choice (see `Reliability`)."""
        return self.reliability.expected_error

    @property
    def bits_per_byte(self) -> Float[Tensor, "*runs"] | None:
        """``sum of nll / (ln 2 * bytes)`` at temperature 1; None without ``byte_lengths``.

        Tokens without bytes (an end of text) add their negative log-likelihood and no bytes.
        """
        return None if self.bytes is None else self._per_byte(self.nll, self.bytes)

    @property
    def best_temperature(self) -> Float[Tensor, "*runs"]:
        """The temperature of the least negative log-likelihood, the first among equals."""
        temperatures, nll = self._sweep()
        least, index = nll.min(-1)
        return temperatures[index].masked_fill(least.isnan(), torch.nan)

    @property
    def best_ppl(self) -> Float[Tensor, "*runs"]:
        """Perplexity at the best temperature, chosen on these same tokens.

        To choose on other text: ``result.ppl_at(held_out.best_temperature)``.
        """
        return self._sweep()[1].amin(-1).exp()

    def nll_at(self, temperature: float | int | Float[Tensor, "*runs"]) -> Float[Tensor, "*runs"]:
        """Return the mean negative log-likelihood at one of the temperatures of the sweep.

        Args:
            temperature: a number, ``[]``, or ``[R]`` for each run its own, such as another
                evaluation's ``best_temperature``. NaN gives NaN.
        """
        temperatures, nll = self._sweep()
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float, Tensor)):
            got = checks.describe(temperature)
            raise ArgumentTypeError("temperature", "a number or a tensor", got)
        wanted = torch.as_tensor(temperature, dtype=nll.dtype, device=nll.device)
        if wanted.ndim and wanted.shape != nll.shape[:-1]:
            expected = f"a number or shape {tuple(nll.shape[:-1])} (one a run)"
            raise ArgumentValueError("temperature", expected, f"shape {tuple(wanted.shape)}")
        distance = (temperatures - wanted[..., None]).abs()
        index = distance.nan_to_num(nan=math.inf).argmin(-1).expand(nll.shape[:-1])
        near = (temperatures[index] - wanted).abs() <= 1e-6 * temperatures[index]
        checks.all_true(
            near | wanted.isnan(),
            "temperature",
            f"one of the {len(temperatures)} temperatures measured",
            checks.describe(temperature),
            "add it to the temperatures of the Evaluation",
        )
        found = nll.gather(-1, index[..., None])[..., 0]
        return found.masked_fill(wanted.isnan(), torch.nan)

    def ppl_at(self, temperature: float | int | Float[Tensor, "*runs"]) -> Float[Tensor, "*runs"]:
        """Return the perplexity at one of the temperatures of the sweep (see `nll_at`)."""
        return self.nll_at(temperature).exp()

    def bits_per_byte_at(
        self, temperature: float | int | Float[Tensor, "*runs"]
    ) -> Float[Tensor, "*runs"] | None:
        """Return bits per byte at one of the temperatures of the sweep (see `nll_at`)."""
        nll = self.nll_at(temperature)
        return None if self.bytes is None else self._per_byte(nll, self.bytes)

    def to_dict(self) -> dict[str, object]:
        """Return numbers and lists for a record, with the derived scores; absent ones left out."""
        derived = ["ppl", "calibration_error", "bits_per_byte"]
        derived += ["best_temperature", "best_ppl"] if self.temperatures is not None else []
        names = [f.name for f in fields(self)] + derived
        found = {name: _plain(getattr(self, name)) for name in names}
        return {name: value for name, value in found.items() if value not in (None, [], {})}

    def _per_byte(self, nll: Tensor, length: Tensor) -> Tensor:
        return nll * self.tokens / (math.log(2) * length)

    def _sweep(self) -> tuple[Tensor, Tensor]:
        if self.temperatures is None or self.nll_by_temperature is None:
            fix = "make the Evaluation with temperatures"
            raise ArgumentValueError("temperatures", "a sweep", "an Evaluation without one", fix)
        return self.temperatures, self.nll_by_temperature


def tree(layout: Layout, sums: Float[Tensor, "*runs G B K"]) -> Scores:
    """Return the scores of all tokens, of each group, of each bin, and of each bin of a group."""
    groups = {
        name: _with_bins(layout, sums[..., g, :, :]) for g, name in enumerate(layout.groups or ())
    }
    return _with_bins(layout, sums.sum(-3), MappingProxyType(groups))


def _with_bins(
    layout: Layout, sums: Float[Tensor, "*runs B K"], groups: Mapping[Label, Scores] | None = None
) -> Scores:
    bins = () if layout.bins is None else sums.unbind(-2)
    parts = tuple(_scores(layout, part, {}, ()) for part in bins)
    return _scores(layout, sums.sum(-2), groups or {}, parts)


def _scores(
    layout: Layout,
    sums: Float[Tensor, "*runs K"],
    groups: Mapping[Label, Scores],
    bins: tuple[Scores, ...],
) -> Scores:
    column = dict(zip(layout.names, sums.unbind(-1), strict=False))
    count = column["tokens"]
    means = {name: total / count for name, total in column.items()}
    swept = sums[..., len(layout.names) : layout.calibration_start]
    temperatures = torch.tensor(layout.temperatures, dtype=sums.dtype, device=sums.device)
    native = column.get("native_tokens")
    return Scores(
        tokens=count,
        nll=means["nll"],
        accuracy=means["accuracy"],
        recall=MappingProxyType({k: means[f"recall@{k}"] for k in layout.recall}),
        mrr=means["reciprocal_rank"],
        rank=means["rank"],
        reliability=_reliability(sums[..., layout.calibration_start :]),
        bytes=column.get("bytes"),
        foreign_mass=None if native is None else column["foreign_mass"] / native,
        temperatures=temperatures if layout.temperatures else None,
        nll_by_temperature=swept / count[..., None] if layout.temperatures else None,
        groups=groups,
        bins=bins,
    )


def _reliability(sums: Float[Tensor, "*runs K"]) -> Reliability:
    count, confidence, hits = sums.reshape(*sums.shape[:-1], -1, 3).unbind(-1)
    return Reliability(tokens=count, confidence=confidence / count, accuracy=hits / count)


def _plain(value: object) -> object:
    """Return tensors as numbers or lists, scores as dictionaries."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Scores):
        return value.to_dict()
    if isinstance(value, Reliability):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value
