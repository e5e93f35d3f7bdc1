"""What a population has learned, language by language, on text it has not seen.

Windows do not overlap, and each is scored whole. Temperatures are fitted without looking at the
text they are judged on: the windows are cut into two halves, and each half is scored at the
temperature that is best on the other. The paper's way, the best temperature on the test text
itself, stands beside it (``best_ppl``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elbowroom import checks, diagnose
from elbowroom.lab.batches import Windows
from elbowroom.metrics import Evaluation, Scores

if TYPE_CHECKING:
    from elbowroom.lab.model import GPT
    from elbowroom.lab.tokens import Corpus

AT_ONCE = 2**24  # activations (tokens times width) of a batch of windows


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How thoroughly a finished run is evaluated."""

    windows: int | None = None
    """Windows a language; None for all of the held-out text."""
    temperatures: int = 200
    """Temperatures of the sweep, evenly from 2 / n to 2; the paper's are 200."""
    bins: int = 8
    """Bins of tokens by how often they were seen; 0 for none."""

    def __post_init__(self) -> None:
        if self.windows is not None:
            checks.integer("windows", self.windows, at_least=2)
        checks.integer("temperatures", self.temperatures, at_least=2)
        checks.integer("bins", self.bins, at_least=0)

    def sweep(self) -> list[float]:
        """Return the temperatures, 1 among them."""
        n = self.temperatures
        found = [round(2 * i / n, 6) for i in range(1, n + 1)]
        return sorted({*found, 1.0})


class Judge:
    """Scores a population on the held-out text of a corpus.

    Args:
        corpus: the texts.
        model: the population.
        logit_scale: ``[R]``, what each run's logits are multiplied by.
        config: how thoroughly.
        bin_of_token: ``[V]``, a bin of frequency for each token; None for no bins.
    """

    def __init__(
        self,
        corpus: Corpus,
        model: GPT,
        logit_scale: Sequence[float],
        config: EvaluationConfig,
        bin_of_token: Int[Tensor, " V"] | None = None,
    ) -> None:
        self.corpus, self.model, self.config = corpus, model, config
        self._scale = torch.tensor(list(logit_scale))
        self._bins = bin_of_token
        device = next(model.parameters()).device
        self.windows = Windows(corpus.validation, model.config.context, device)
        self._device = device

    def quick(self, windows: int) -> list[dict[str, dict[str, float | None]]]:
        """Return each run's scores by language on a few windows spread over the text.

        The second of twin languages also has the share of its rows that find their translation.

        Args:
            windows: how many a language.
        """
        evaluation = self._evaluation(None, bins=False)
        self._score([evaluation], windows)
        result = evaluation.result()
        names = ("nll", "ppl", "accuracy")
        out = [
            {
                str(language): {name: _number(getattr(scores, name)[r]) for name in names}
                for language, scores in result.groups.items()
            }
            for r in range(self.model.runs)
        ]
        for one, score in zip(out, self._translations(), strict=False):
            one[self.corpus.languages[1]]["translation"] = score
        return out

    def full(self, progress: Callable[[int, int], None] | None = None) -> list[dict[str, Any]]:
        """Return each run's record by language, temperatures and what embeddings say.

        Args:
            progress: called with windows done and windows in all.
        """
        temperatures = self.config.sweep()
        halves = [self._evaluation(temperatures, bins=True) for _ in range(2)]
        self._score(halves, self.config.windows, progress)
        fitted = [half.result() for half in halves]
        halves[0].merge(halves[1])
        whole = halves[0].result()
        out = [self._record(whole, fitted, r) for r in range(self.model.runs)]
        self._embeddings(out)
        return out

    def _evaluation(self, temperatures: list[float] | None, *, bins: bool) -> Evaluation:
        corpus = self.corpus
        return Evaluation(
            corpus.vocab_size,
            groups=corpus.languages,
            bin_of_token=self._bins if bins else None,
            group_of_token=torch.as_tensor(corpus.group_of_token).long(),
            byte_lengths=torch.as_tensor(corpus.byte_lengths).long(),
            temperatures=temperatures,
            runs=self.model.runs,
        )

    @torch.no_grad()
    def _score(
        self,
        evaluations: Sequence[Evaluation],
        windows: int | None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Score windows of each language, the first half by the first evaluation, and so on."""
        model, parts = self.model, len(evaluations)
        size = max(1, AT_ONCE // (model.runs * model.config.context * model.config.width))
        places = [self._places(language, windows) for language in range(len(self.corpus.languages))]
        done, total = 0, sum(map(len, places))
        model.eval()
        for language, all_places in enumerate(places):
            for evaluation, own in zip(evaluations, all_places.chunk(parts), strict=False):
                for some in torch.split(own, size):
                    self._batch(evaluation, language, some)
                    done += len(some)
                    if progress is not None:
                        progress(done, total)
        model.train()

    def _batch(self, evaluation: Evaluation, language: int, places: Int[Tensor, " n"]) -> None:
        model = self.model
        ids, target = self.windows.cut(torch.full_like(places, language), places)
        everyone = ids.expand(model.runs, *ids.shape)
        hidden = model(everyone)
        scale = self._scale.to(hidden.device, hidden.dtype).view(-1, 1, 1, 1)
        hidden = hidden.float() * scale  # in place of the logits, which come one scale a call
        bias = None if model.bias is None else model.bias * scale.view(-1, 1)
        evaluation.update(hidden, model.head, target.expand_as(everyone), group=language, bias=bias)

    def _places(self, language: int, windows: int | None) -> Int[Tensor, " n"]:
        """Return where windows begin: side by side, or so many of these spread evenly."""
        context = self.windows.context
        last = int(self.windows.places[language])
        places = torch.arange(0, last, context, device=self._device)
        if windows is None or windows >= len(places):
            return places
        chosen = torch.linspace(0, len(places) - 1, windows, device=self._device)
        return places[chosen.round().long()]

    def _record(self, whole: Scores, halves: Sequence[Scores], r: int) -> dict[str, Any]:
        assert whole.temperatures is not None
        languages = {}
        for name, scores in whole.groups.items():
            first, second = (half.groups[name] for half in halves)
            found = numbers(scores, r)
            found |= _fitted(first, second, r)
            if self._bins is not None:
                bins = [numbers(part, r) for part in scores.bins]
                for part in bins:
                    part.pop("nll_by_temperature", None)
                found["bins"] = bins
            languages[str(name)] = found
        return {"languages": languages, "temperatures": whole.temperatures.tolist()}

    def _embeddings(self, records: list[dict[str, Any]]) -> None:
        """Add isotropy by language and, for twin languages, the translation score."""
        head, finite = self._heads()
        groups = torch.as_tensor(self.corpus.group_of_token, device=head.device)
        for index, language in enumerate(self.corpus.languages):
            rows = groups == index
            if int(rows.sum()) < 2:
                continue
            for name, convention in (("isotropy", "paper"), ("isotropy_signfree", "symmetric")):
                found = diagnose.isotropy(head, convention, rows=rows)  # type: ignore[arg-type]
                for record, value in zip(records, found.where(finite, torch.nan), strict=True):
                    record["languages"][language][name] = _number(value)
        for record, score in zip(records, self._translations(), strict=False):
            record["translation"] = score

    def _heads(self) -> tuple[Float[Tensor, "R V D"], Bool[Tensor, " R"]]:
        """Return the heads, and which are finite; zeros stand for one that went astray."""
        head = self.model.head.detach().float()
        finite = head.square().sum((-2, -1)).isfinite()
        return torch.where(finite[:, None, None], head, 0.0), finite

    def _translations(self) -> list[float | None]:
        """Return each run's translation score; nothing where languages are no twins."""
        mapping = twins(self.corpus)
        if mapping is None:
            return []
        head, finite = self._heads()
        found = diagnose.translation_score(head, mapping.to(head.device))
        return [_number(value) for value in found.where(finite, torch.nan)]


def twins(corpus: Corpus) -> Int[Tensor, "K 2"] | None:
    """Return which token of the second language is which of the first, for a simulated pair.

    None where languages are not the same ids at an offset.
    """
    offsets = [stream.offset for stream in corpus.train]
    if len(offsets) != 2 or offsets[0] == offsets[1]:
        return None
    size = abs(offsets[1] - offsets[0])
    ids = torch.arange(size)
    return torch.stack((ids + offsets[1], ids + offsets[0]), -1)


def numbers(scores: Scores, r: int) -> dict[str, Any]:
    """Return one run's scores as plain data; what was not measured is left out.

    Args:
        scores: of a population, ``[R]``.
        r: which run.
    """
    found: dict[str, Any] = {"tokens": int(scores.tokens[r])}
    if not found["tokens"]:
        return found
    for name in ("nll", "ppl", "accuracy", "mrr", "rank", "calibration_error", "bits_per_byte"):
        found[name] = getattr(scores, name)
    found |= {f"recall@{k}": value for k, value in scores.recall.items()}
    found["foreign_mass"] = scores.foreign_mass
    if scores.nll_by_temperature is not None:
        found["best_ppl"], found["best_temperature"] = scores.best_ppl, scores.best_temperature
    plain = {k: _number(v[r]) if isinstance(v, Tensor) else v for k, v in found.items()}
    if scores.nll_by_temperature is not None:
        plain["nll_by_temperature"] = [_number(x) for x in scores.nll_by_temperature[r]]
    return {name: value for name, value in plain.items() if value is not None}


def _fitted(first: Scores, second: Scores, r: int) -> dict[str, Any]:
    """Return the perplexity of each half at the temperature that is best on the other."""
    if not (int(first.tokens[r]) and int(second.tokens[r])):
        return {}
    nll, count, used = 0.0, 0.0, []
    for judged, other in ((first, second), (second, first)):
        temperature = other.best_temperature
        tokens = float(judged.tokens[r])
        nll += tokens * float(judged.nll_at(temperature)[r])
        count += tokens
        used.append(float(temperature[r]))
    ppl = _number(torch.tensor(nll / count, dtype=torch.float64).exp())
    if ppl is None:
        return {}
    return {"fitted_ppl": ppl, "fitted_temperature": sum(used) / 2}


def _number(value: Float[Tensor, ""]) -> float | None:
    """Return a number that JSON knows; None for others."""
    x = float(value)
    return x if math.isfinite(x) else None
