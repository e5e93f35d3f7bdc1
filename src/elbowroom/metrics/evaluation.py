"""An evaluation that streams: batches in, sums kept, scores out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.losses.problem import (
    compute_dtype,
    prepare_linear,
    prepare_logits,
    prepare_tokens,
)
from elbowroom.metrics.layout import Layout, bin_count, group_names, recalls, table
from elbowroom.metrics.scores import Scores, tree
from elbowroom.metrics.statistics import (
    Softmax,
    TargetStatistics,
    check_temperatures,
    foreign,
    statistics,
    sweep,
)

LOGITS_AT_ONCE = 2**24  # logits that exist at a time: 64 MiB in float32, a few times that in all
TEMPERATURES = tuple(i / 100 for i in range(1, 201))  # the paper's


class Evaluation:
    """Streaming evaluation of a language model, by group and by bin of target tokens.

    ``update`` takes hidden states and the head's weight and makes the logits of a few tokens at a
    time; ``update_logits`` takes logits. Both keep sums only, so memory does not grow with the
    text, and nothing waits for the device. Paper, section "Results and Observations": perplexity,
    best perplexity over temperatures, accuracy, recall at k and mean reciprocal rank; beyond it:
    bits per byte, calibration error, and the probability mass on other groups' tokens.

    Sums are float64. Logits and softmax are float32, or float64 where the inputs are: weights of
    a lower precision are converted once an update, which takes a copy of ``[V, D]``.

    Args:
        vocab_size: V.
        groups: names of the groups of tokens (languages), or their number; each token's group is
            passed to ``update``. None for one group of all.
        bin_of_token: ``[V]``, labels from 0 on: a bin for each target id, such as its frequency's.
        group_of_token: ``[V]``, the group of each id, for `foreign_mass`; negative for ids that
            belong to all groups.
        byte_lengths: ``[V]``, the bytes that each id stands for, for bits per byte.
        temperatures: of the sweep, each above 0; .01 to 2.00 by default, as in the paper. Each
            costs one exponential a logit: pass None where the vocabulary is large and temperature
            1 is enough.
        recall: the k of recall@k.
        calibration_bins: equal bins of confidence, for the calibration error.
        runs: R, where weight ``[R, V, D]`` and hidden ``[R, ..., D]`` carry a run dimension.
        ignore_index: targets that do not count.

    Example:
        >>> import torch
        >>> evaluation = Evaluation(4, groups=("en", "cy"), temperatures=[0.5, 1.0])
        >>> hidden, weight = torch.eye(4)[None] * 2, torch.eye(4)
        >>> evaluation.update(hidden, weight, torch.arange(4)[None], group=0)
        >>> evaluation.update_logits(torch.zeros(1, 4), torch.tensor([3]), group=1)
        >>> result = evaluation.result()
        >>> result.groups["en"].accuracy.item(), round(result.groups["cy"].ppl.item(), 4)
        (1.0, 4.0)
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        groups: int | Sequence[str] | None = None,
        bin_of_token: Int[Tensor, " V"] | None = None,
        group_of_token: Int[Tensor, " V"] | None = None,
        byte_lengths: Int[Tensor, " V"] | None = None,
        temperatures: Sequence[float | int] | Float[Tensor, " K"] | None = TEMPERATURES,
        recall: Sequence[int] = (1, 5),
        calibration_bins: int = 15,
        runs: int | None = None,
        ignore_index: int = -100,
    ) -> None:
        checks.integer("vocab_size", vocab_size, at_least=1)
        tables = {
            "bin_of_token": bin_of_token,
            "group_of_token": group_of_token,
            "byte_lengths": byte_lengths,
        }
        self._tables = {
            name: table(name, values, vocab_size)
            for name, values in tables.items()
            if values is not None
        }
        self._layout = Layout(
            vocab_size=vocab_size,
            groups=group_names(groups),
            bins=bin_count(self._tables.get("bin_of_token")),
            runs=None if runs is None else checks.integer("runs", runs, at_least=1),
            recall=recalls(recall),
            temperatures=() if temperatures is None else check_temperatures(temperatures),
            calibration_bins=checks.integer("calibration_bins", calibration_bins, at_least=1),
            has_bytes=byte_lengths is not None,
            has_foreign=group_of_token is not None,
        )
        self._ignore_index = checks.integer("ignore_index", ignore_index)
        # one row more than cells: ignored tokens go there, so that no step depends on the data
        shape = (runs or 1, self._layout.cells + 1, self._layout.width)
        self._sums = torch.zeros(shape, dtype=torch.float64)

    @torch.no_grad()
    def update(
        self,
        hidden: Float[Tensor, "*n D"],
        weight: Float[Tensor, "*runs V D"],
        target: Int[Tensor, "*n"],
        *,
        group: Int[Tensor, "*n"] | int | None = None,
        bias: Float[Tensor, "*runs V"] | None = None,
        logit_scale: float | int = 1.0,
        softcap: float | int | None = None,
        shift: int = 0,
    ) -> None:
        """Count a batch from its hidden states; all its logits never exist at once.

        Args:
            hidden: ``[..., D]``; ``[R, ..., D]`` with runs.
            weight: ``[V, D]``; ``[R, V, D]`` with runs.
            target: hidden's shape without its last dimension.
            group: a label for each target, or one for all; needed where there are groups.
            bias: ``[V]``; ``[R, V]`` with runs.
            logit_scale: multiplies the logits.
            softcap: bounds them: ``softcap * tanh(x / softcap)``.
            shift: position t predicts the target at ``t + shift`` (and has that target's group).
        """
        weight = checks.is_floating("weight", weight)
        runs = () if self._layout.runs is None else (self._layout.runs,)
        expected = (*runs, self._layout.vocab_size, *weight.shape[-1:])
        checks.has_shape("weight", weight, expected, "the Evaluation's runs and vocab_size")
        head, tokens = prepare_linear(
            hidden,
            weight,
            target,
            bias=bias,
            logit_scale=logit_scale,
            softcap=softcap,
            shift=shift,
            ignore_index=self._ignore_index,
        )
        cell = self._cells(tokens.target, tokens.counted, self._labels(group, target, shift))
        dtype = compute_dtype(head.hidden.dtype)
        head = replace(head, weight=head.weight.to(dtype))
        with torch.autocast(hidden.device.type, enabled=False):  # prepare_linear has cast for it
            for part in self._chunks(tokens.target.shape[1]):
                z = replace(head, hidden=head.hidden[:, part].to(dtype)).logits()
                self._add(z, tokens.target[:, part], cell[:, part])

    @torch.no_grad()
    def update_logits(
        self,
        logits: Float[Tensor, "*n V"],
        target: Int[Tensor, "*n"],
        *,
        group: Int[Tensor, "*n"] | int | None = None,
        logit_scale: float | int = 1.0,
    ) -> None:
        """Count a batch from its logits.

        Args:
            logits: ``[..., V]``; ``[R, ..., V]`` with runs.
            target: logits' shape without its last dimension.
            group: a label for each target, or one for all; needed where there are groups.
            logit_scale: multiplies the logits.
        """
        self._check_logits(logits, target)
        runs, ignored = self._layout.runs, self._ignore_index
        tokens = prepare_tokens(target, logits.shape[-1], runs=runs, ignore_index=ignored)
        cell = self._cells(tokens.target, tokens.counted, self._labels(group, target, 0))
        rows = logits.reshape(*tokens.target.shape, logits.shape[-1])
        for part in self._chunks(tokens.target.shape[1]):
            y = tokens.target[:, part]
            z, _ = prepare_logits(rows[:, part], y, logit_scale=logit_scale)
            self._add(z.view(*y.shape, -1), y, cell[:, part])

    def merge(self, other: Evaluation) -> None:
        """Add what another evaluation of the same kind counted, on other data or another device.

        Across processes, ``torch.distributed.all_reduce(evaluation.sums)`` does the same.
        """
        if not isinstance(other, Evaluation):
            raise ArgumentTypeError("other", "an Evaluation", checks.describe(other))
        if other._layout != self._layout or not self._same_tables(other):
            fix = "make both with the same arguments"
            raise ArgumentValueError("other", "an Evaluation of the same kind", "another", fix)
        self._sums += other._sums.to(self._sums.device)

    @property
    def sums(self) -> Float[Tensor, "runs cells K"]:
        """All that is kept: one tensor of sums, on the device of the last update."""
        return self._sums

    def result(self) -> Scores:
        """Return the scores so far; more updates may follow."""
        layout = self._layout
        sums = self._sums[:, :-1].clone().view(-1, *layout.cell_shape, layout.width)
        return tree(layout, sums if layout.runs else sums[0])

    def _same_tables(self, other: Evaluation) -> bool:
        pairs = [(t, other._tables[name]) for name, t in self._tables.items()]
        return all(torch.equal(mine.cpu(), theirs.cpu()) for mine, theirs in pairs)

    def _chunks(self, tokens: int) -> Iterator[slice]:
        size = max(1, LOGITS_AT_ONCE // (self._sums.shape[0] * self._layout.vocab_size))
        return (slice(first, first + size) for first in range(0, tokens, size))

    def _check_logits(self, logits: Tensor, target: Tensor) -> None:
        layout = self._layout
        checks.is_floating("logits", logits)
        runs = () if layout.runs is None else (layout.runs,)
        lead = logits.shape[: len(runs)] if logits.ndim > len(runs) else ()
        if tuple(lead) != runs or logits.shape[-1:] != (layout.vocab_size,):
            expected = f"[{'R, ' * len(runs)}..., V] with V = {layout.vocab_size}"
            expected += f" and R = {layout.runs}" if runs else ""
            raise ArgumentValueError("logits", expected, f"shape {tuple(logits.shape)}")
        checks.is_integer("target", target)
        meaning = "the shape of logits without its last dimension"
        checks.has_shape("target", target, logits.shape[:-1], meaning)
        checks.same_device("target", target, "logits", logits)

    def _labels(self, group: Tensor | int | None, target: Tensor, shift: int) -> Tensor | int:
        """Return the group of each target that is left after the shift."""
        if self._layout.groups is None:
            if group is not None:
                fix = "make the Evaluation with groups"
                raise ArgumentValueError("group", "None", checks.describe(group), fix)
            return 0
        if group is None:
            raise ArgumentValueError("group", "a label for each target, or one for all", None)
        if not isinstance(group, Tensor):
            checks.integer("group", group, at_least=0)
            if group >= len(self._layout.groups):
                expected = f"a label from 0 to {len(self._layout.groups) - 1}"
                raise ArgumentValueError("group", expected, group)
            return group
        checks.is_integer("group", group)
        checks.has_shape("group", group, target.shape, "the shape of target")
        checks.same_device("group", group, "target", target)
        return group[..., shift:].long()

    def _cells(self, target: Tensor, counted: Tensor, label: Tensor | int) -> Int[Tensor, "R N"]:
        """Return the row of the sums that each token belongs to, the last one where ignored."""
        self._sums = self._sums.to(target.device)
        self._tables = {name: t.to(target.device) for name, t in self._tables.items()}
        groups = len(self._layout.groups or (0,))
        if isinstance(label, Tensor):
            label = label.reshape(target.shape)
            right = ~counted | ((label >= 0) & (label < groups))
            expected = f"labels from 0 to {groups - 1}"
            checks.all_true(right, "group", expected, "a label outside")
        cell = label * (self._layout.bins or 1) + torch.zeros_like(target)
        if self._layout.bins is not None:
            cell = cell + self._tables["bin_of_token"][target]
        return torch.where(counted, cell, self._layout.cells)

    def _add(
        self, z: Float[Tensor, "R C V"], target: Int[Tensor, "R C"], cell: Int[Tensor, "R C"]
    ) -> None:
        """Add the statistics of a few tokens to the sums of their cells."""
        layout, runs = self._layout, self._sums.shape[0]
        softmax = Softmax.of(z)
        found = statistics(z, target, softmax)
        columns = torch.stack(self._columns(softmax, found, target), -1).double()
        if layout.temperatures:
            swept = sweep(softmax.shifted, target, layout.temperatures)
            columns = torch.cat((columns, swept.double()), -1)
        row = cell + torch.arange(runs, device=z.device)[:, None] * self._sums.shape[1]
        flat = self._sums.view(-1, layout.width)
        start = layout.calibration_start
        flat[:, :start].index_add_(0, row.flatten(), columns.flatten(0, 1))
        self._add_calibration(row, found)

    def _columns(
        self, softmax: Softmax, found: TargetStatistics, target: Int[Tensor, "R C"]
    ) -> list[Float[Tensor, "R C"]]:
        """Return what is summed for each token, in the order of `Layout.names`."""
        nll, rank = -found.log_probability, found.rank
        columns = [torch.ones_like(nll), nll, rank, 1 / rank, found.top(1)]
        columns += [found.top(k) for k in self._layout.recall]
        if self._layout.has_bytes:
            columns.append(self._tables["byte_lengths"][target].to(nll.dtype))
        if self._layout.has_foreign:
            labels = self._tables["group_of_token"]
            native = (labels[target] >= 0).to(nll.dtype)
            columns += [native, foreign(softmax, target, labels)]
        return columns

    def _add_calibration(self, row: Int[Tensor, "R C"], found: TargetStatistics) -> None:
        """Add each token to its bin of confidence: a count, the confidence, the hit."""
        layout = self._layout
        confidence = found.confidence
        place = (confidence * layout.calibration_bins).ceil().nan_to_num(nan=1.0) - 1
        place = place.long().clamp(0, layout.calibration_bins - 1)
        index = row * layout.width + layout.calibration_start + 3 * place
        values = torch.stack((torch.ones_like(confidence), confidence, found.top(1)), -1)
        index = index[..., None] + torch.arange(3, device=row.device)
        self._sums.view(-1).index_add_(0, index.flatten(), values.double().flatten())
