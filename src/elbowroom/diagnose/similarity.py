"""Cosine similarity between embeddings: neighbours, clusters, learned "translations".

Every function takes a matrix ``[V, D]``, or ``[R, V, D]`` of R runs. Similarities of all pairs
never exist at once. A row of zeros has cosine 0 with everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.diagnose.inputs import matrix, row_ids
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.metrics import top_k_probability

PAIRS_AT_ONCE = 2**24
LETTER_CLASSES = ("other", "NA", "UC", "LC", "ID", "T", "C", "T+C")


@dataclass(frozen=True, kw_only=True, eq=False)
class Neighbours:
    """The nearest rows of some rows, the nearest first."""

    ids: Int[Tensor, "*runs K k"]
    cosines: Float[Tensor, "*runs K k"]


def neighbours(
    weight: Float[Tensor, "*runs V D"], ids: Int[Tensor, " K"], k: int = 3
) -> Neighbours:
    """Return the k rows of greatest cosine to each of some rows, the row itself left out.

    Paper, table "Top-3 neighbors".

    Args:
        weight: ``[V, D]`` or ``[R, V, D]``.
        ids: ``[K]``, the rows whose neighbours are wanted.
        k: how many, below V.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> found = neighbours(rows, torch.tensor([0]), k=2)
        >>> found.ids, found.cosines
        (tensor([[2, 1]]), tensor([[0.6000, 0.0000]]))
    """
    unit = F.normalize(matrix("weight", weight, None), dim=-1)
    ids = row_ids("ids", ids, unit)
    if checks.integer("k", k, at_least=1) >= unit.shape[-2]:
        raise ArgumentValueError("k", f"below V = {unit.shape[-2]}", k)
    nearest, closeness = [], []
    for part in _chunks(len(ids), unit):
        cosines = unit[..., ids[part], :] @ unit.mT
        own = ids[part, None].expand(*cosines.shape[:-1], 1)
        values, indices = cosines.scatter(-1, own, -torch.inf).topk(k, dim=-1)
        nearest.append(indices)
        closeness.append(values)
    return Neighbours(ids=torch.cat(nearest, -2), cosines=torch.cat(closeness, -2))


def cosine_by_group(
    weight: Float[Tensor, "*runs V D"],
    labels: Int[Tensor, " V"] | Int[Tensor, "V V"],
    *,
    count: int | None = None,
) -> Float[Tensor, "*runs G"] | Float[Tensor, "*runs G G"]:
    r"""Return the mean cosine over the pairs of rows of each label.

    For labels ``[V, V]`` of pairs (`letter_mask`), the mean over the pairs of each label. For
    labels ``[V]`` of rows, the mean between each two groups, and within a group over its pairs of
    different rows. The latter takes time and memory linear in V: with unit rows u and group sums
    :math:`S_g = \sum_{i \in g} u_i`,

    .. math:: \sum_{i \in g, j \in h} \langle u_i, u_j \rangle = \langle S_g, S_h \rangle,
        \qquad \sum_{i \ne j \in g} \langle u_i, u_j \rangle
        = \lVert S_g \rVert^2 - \sum_{i \in g} \lVert u_i \rVert^2

    Paper, Figure "Expected clusters mask and cosine similarity of embeddings".

    Args:
        weight: ``[V, D]`` or ``[R, V, D]``.
        labels: ``[V]`` or ``[V, V]``; rows or pairs with a negative label are left out.
        count: G, the number of labels; the largest and one by default.

    Returns:
        ``[G]`` for labels of pairs, ``[G, G]`` for labels of rows, after R with runs; NaN where a
        label has no pairs.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 2.0]])
        >>> cosine_by_group(rows, torch.tensor([0, 0, 1]))
        tensor([[0.6000, 0.4000],
                [0.4000,    nan]])
    """
    unit = F.normalize(matrix("weight", weight, None), dim=-1)
    checks.is_integer("labels", labels)
    size = unit.shape[-2]
    if tuple(labels.shape) not in ((size,), (size, size)):
        expected = f"shape ({size},) or ({size}, {size}): a label a row, or a pair of rows"
        raise ArgumentValueError("labels", expected, f"shape {tuple(labels.shape)}")
    checks.same_device("labels", labels, "weight", unit)
    groups = _label_count(labels, count)
    kept = torch.where(labels < 0, groups, labels.long())  # left out: one label more, dropped
    average = _between_groups if labels.ndim == 1 else _over_pairs
    return average(unit, kept, groups).to(unit.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class LetterMask:
    """The class of each pair of tokens of a vocabulary that repeats one alphabet."""

    mask: Int[Tensor, "V V"]
    """Indices into `names`."""
    names: tuple[str, ...] = LETTER_CLASSES
    """"other" (0), "NA", "UC", "LC", "ID", "T", "C", "T+C"."""


def letter_mask(
    characters: Sequence[str], languages: int = 2, *, across: bool = True
) -> LetterMask:
    """Return which relation each pair of tokens has, for languages that share their characters.

    Token ``l * len(characters) + i`` is character i in language l, as in the paper's simulated
    pair of languages. A pair is of the last of these classes that fits:

    - "other": none of them;
    - "NA", "UC", "LC": both without case, both upper case, both lower case;
    - "ID": one and the same token;
    - "T": one character in two languages;
    - "C": upper and lower case of one letter, in one language;
    - "T+C": upper and lower case of one letter, in two languages.

    Paper, Figure "Expected clusters mask and cosine similarity of embeddings". Its caption leaves
    open whether clusters join the languages; here they do, unless ``across`` is false.

    Args:
        characters: the alphabet, single characters, each once; a string will do.
        languages: how many languages repeat it.
        across: whether "NA", "UC" and "LC" hold between two languages as well.

    Example:
        >>> found = letter_mask("Aa", languages=2)
        >>> [[found.names[i] for i in row] for row in found.mask[:2].tolist()]
        [['ID', 'C', 'T', 'T+C'], ['C', 'ID', 'T+C', 'T']]
    """
    letters = _alphabet(characters)
    checks.integer("languages", languages, at_least=1)
    checks.flag("across", across)
    case = torch.tensor([2 if c.isupper() else 3 if c.islower() else 1 for c in letters])
    lower = torch.tensor([letters.index(c) for c in _first_of_lower(letters)]).repeat(languages)
    case = case.repeat(languages)
    character = torch.arange(len(letters)).repeat(languages)
    language = torch.arange(languages).repeat_interleave(len(letters))
    together = language[:, None] == language
    same = character[:, None] == character
    partner = ~same & (lower[:, None] == lower)
    cluster = (case[:, None] == case) & (together | across)
    mask = torch.where(cluster, case, 0)
    for name, pairs in (
        ("ID", same & together),
        ("T", same & ~together),
        ("C", partner & together),
        ("T+C", partner & ~together),
    ):
        mask = mask.masked_fill(pairs, LETTER_CLASSES.index(name))
    return LetterMask(mask=mask)


def translation_score(
    weight: Float[Tensor, "*runs V D"], mapping: Int[Tensor, "K 2"], *, k: int = 1
) -> Float[Tensor, "*runs"]:
    """Return the share of source rows that find their own translation among the target rows.

    For each pair (source, target) of the mapping, the row of the source is compared, by cosine,
    with the rows of all targets in the mapping; it counts if its own is among the nearest k. Ties
    are settled by an even chance (as in `metrics.top_k_probability`): rows that are all alike
    score k / K. Paper, section 'Learned "Translations"'.

    Args:
        weight: ``[V, D]`` or ``[R, V, D]``.
        mapping: ``[K, 2]``, ids of a source and its translation. For the paper's pair:
            ``torch.stack((torch.arange(65, 130), torch.arange(65)), -1)``.
        k: how many nearest targets count.

    Returns:
        ``[]`` or ``[R]``.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.8, 0.3]])
        >>> translation_score(rows, torch.tensor([[2, 0], [3, 1]]))
        tensor(0.5000)
    """
    unit = F.normalize(matrix("weight", weight, None), dim=-1)
    checks.integer("k", k, at_least=1)
    checks.is_integer("mapping", mapping)
    if mapping.ndim != 2 or mapping.shape[1] != 2:
        raise ArgumentValueError("mapping", "shape [K, 2]", f"shape {tuple(mapping.shape)}")
    source, target = (row_ids("mapping", ids, unit) for ids in mapping.unbind(1))
    candidates, own = torch.unique(target, return_inverse=True)
    rows, hits = unit[..., candidates, :], []
    for part in _chunks(len(source), rows):
        cosines = unit[..., source[part], :] @ rows.mT
        mine = cosines.gather(-1, own[part, None].expand(*cosines.shape[:-1], 1))
        greater, equal = (cosines > mine).sum(-1), (cosines == mine).sum(-1) - 1
        chance = top_k_probability(greater, equal.clamp(min=0), k)
        hits.append(chance.masked_fill(mine[..., 0].isnan(), torch.nan))
    return torch.cat(hits, -1).mean(-1).to(unit.dtype)


def _chunks(queries: int, rows: Tensor) -> Iterator[slice]:
    """Cut queries so that few pairs with all rows exist at a time."""
    size = max(1, PAIRS_AT_ONCE // rows.shape[:-1].numel())
    return (slice(first, first + size) for first in range(0, queries, size))


def _label_count(labels: Tensor, count: int | None) -> int:
    largest = int(labels.max())
    if count is None:
        return largest + 1
    if checks.integer("count", count, at_least=1) <= largest:
        raise ArgumentValueError("labels", f"labels below count = {count}", largest)
    return count


def _between_groups(
    unit: Float[Tensor, "*runs V D"], label: Int[Tensor, " V"], groups: int
) -> Float[Tensor, "*runs G G"]:
    *runs, _, width = unit.shape
    unit = unit.double()
    sums = unit.new_zeros(*runs, groups + 1, width).index_add_(-2, label, unit)[..., :-1, :]
    squares = unit.new_zeros(*runs, groups + 1).index_add_(-1, label, unit.square().sum(-1))
    size = torch.bincount(label, minlength=groups + 1)[:-1].double()
    total = sums @ sums.mT - torch.diag_embed(squares[..., :-1])
    pairs = size[:, None] * size - torch.diag(size)
    return (total / pairs).masked_fill(pairs == 0, torch.nan)  # what rounding leaves, over 0


def _over_pairs(
    unit: Float[Tensor, "*runs V D"], label: Int[Tensor, "V V"], groups: int
) -> Float[Tensor, "*runs G"]:
    total = unit.new_zeros(*unit.shape[:-2], groups + 1, dtype=torch.float64)
    for part in _chunks(unit.shape[-2], unit):
        cosines = (unit[..., part, :] @ unit.mT).double().flatten(-2)
        total.index_add_(-1, label[part].flatten(), cosines)
    size = torch.bincount(label.flatten(), minlength=groups + 1)
    return total[..., :-1] / size[:-1]


def _alphabet(characters: Sequence[str]) -> list[str]:
    letters = list(characters) if isinstance(characters, Iterable) else [characters]
    if not all(isinstance(c, str) and len(c) == 1 for c in letters):
        raise ArgumentTypeError("characters", "single characters", checks.describe(characters))
    if not letters or len(set(letters)) < len(letters):
        got = checks.describe(characters)
        raise ArgumentValueError("characters", "at least one, each once", got)
    return letters


def _first_of_lower(letters: list[str]) -> list[str]:
    """Return, for each character, the first of the alphabet with the same lower case."""
    first: dict[str, str] = {}
    return [first.setdefault(c.lower(), c) for c in letters]
