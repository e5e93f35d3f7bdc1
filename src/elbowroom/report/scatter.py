"""The embedding map: rows of a matrix on a plane, by language, translations joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from elbowroom.errors import ArgumentValueError
from elbowroom.report.figure import WIDTH, Entry, Figure, legend, text_width
from elbowroom.report.markup import Markup, element, isolated, join, visible
from elbowroom.report.palette import marker
from elbowroom.report.scales import Scale

MOST_TOKENS = 700
HEIGHT = 400


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadMatrix:
    """The output embeddings of one run."""

    name: str
    """The method and the seed."""
    weight: Float[ndarray, "V D"]
    """A row a token."""
    tokens: Sequence[str]
    """What each id stands for."""
    languages: Sequence[str | None]
    """Each token's language; None where several share it."""
    pairs: Sequence[tuple[int, int]] = ()
    """Ids that are the same token in two languages; they are joined by lines."""


def principal_plane(weight: Float[ndarray, "V D"]) -> tuple[Float[ndarray, "V 2"], float]:
    """Return rows on the plane of their greatest variance, and its share of the variance.

    Example:
        >>> points, share = principal_plane(np.array([[0.0, 0, 0], [3, 0, 0], [0, 1, 0]]))
        >>> points.shape, round(share, 6)
        ((3, 2), 1.0)
    """
    centred = np.asarray(weight, dtype=np.float64) - np.mean(weight, 0, dtype=np.float64)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    values, axes = values[::-1].clip(0), vectors[:, ::-1][:, :2]
    axes = axes * np.where(axes[np.abs(axes).argmax(0), range(axes.shape[1])] < 0, -1, 1)
    points = np.zeros((len(centred), 2))
    points[:, : axes.shape[1]] = centred @ axes
    total = float(values.sum())
    return points, float(values[:2].sum()) / total if total > 0 else 1.0


def embedding_map(name: str, head: HeadMatrix, *, first: int = 3) -> Figure:
    """Return the map of a head's rows.

    Beyond ``MOST_TOKENS`` rows, every so many are drawn; the plane is that of all.

    Args:
        name: unique on its page.
        head: the matrix with its tokens.
        first: the colour of the first language; methods have those before it.
    """
    weight = np.asarray(head.weight)
    _check(head, weight)
    points, share = principal_plane(weight)
    groups = list(dict.fromkeys(head.languages))
    entries = [_entry(language, first + i) for i, language in enumerate(groups)]
    key, top = legend(entries)
    across, up = _square(points, top)
    drawn = _drawn(head, len(weight))
    kept = set(drawn)
    links = [_link(points, pair, across, up) for pair in head.pairs if kept.issuperset(pair)]
    dots = []
    for i in drawn:
        x, y = across(points[i, 0]), up(points[i, 1])
        language = head.languages[i]
        tip = f"{isolated(head.tokens[i])} · {language or 'shared'} · id {i}"
        dots.append(marker(first + groups.index(language), x, y, 3.4, class_="dot", data_tip=tip))
    labels = _labels([(across(points[i, 0]), up(points[i, 1]), head.tokens[i]) for i in drawn], top)
    some = "" if len(drawn) == len(weight) else f" {len(drawn)} of {len(weight)} tokens are drawn."
    joined = f" {len(links)} pairs of the same token are joined by lines." if links else ""
    text = f"The plane holds {100 * share:.0f}% of the variance of the rows.{some}{joined}"
    body = join(key, *links, *dots, *labels)
    title = f"Output embeddings: {head.name}"
    return Figure(name=name, title=title, description=text, body=body, height=HEIGHT, note=text)


def _check(head: HeadMatrix, weight: Float[ndarray, "V D"]) -> None:
    if weight.ndim != 2 or len(weight) < 2 or not np.isfinite(weight).all():
        got = f"shape {weight.shape}" if weight.ndim != 2 or len(weight) < 2 else "NaN or infinity"
        raise ArgumentValueError("weight", "finite numbers [V, D], V at least 2", got)
    for name, values in (("tokens", head.tokens), ("languages", head.languages)):
        if len(values) != len(weight):
            raise ArgumentValueError(name, f"{len(weight)}, one a row of weight", len(values))
    if any(not 0 <= i < len(weight) for pair in head.pairs for i in pair):
        raise ArgumentValueError("pairs", f"ids from 0 to {len(weight) - 1}", "an id outside")


def _entry(language: str | None, index: int) -> Entry:
    return Entry(label=language or "shared", index=index, method=False)


def _square(points: Float[ndarray, "V 2"], top: float) -> tuple[Scale, Scale]:
    """Return scales on which equal distances look equal."""
    width, height = WIDTH - 40.0, HEIGHT - top - 20
    low, high = points.min(0), points.max(0)
    unit = max((high[0] - low[0]) / width, (high[1] - low[1]) / height, 1e-12)
    centre = (low + high) / 2
    spans = [
        (float(c - unit * s / 2), float(c + unit * s / 2))
        for c, s in zip(centre, (width, height), strict=True)
    ]
    (x0, x1), (y0, y1) = spans
    across = Scale(low=x0, high=x1, start=20, end=20 + width)
    return across, Scale(low=y0, high=y1, start=top + 6 + height, end=top + 6)


def _drawn(head: HeadMatrix, rows: int) -> list[int]:
    if rows <= MOST_TOKENS:
        return list(range(rows))
    first = [i for pair in head.pairs for i in pair][:MOST_TOKENS]
    spread = np.linspace(0, rows - 1, MOST_TOKENS - len(set(first))).astype(int).tolist()
    return sorted({*first, *spread})


def _link(points: Float[ndarray, "V 2"], pair: tuple[int, int], across: Scale, up: Scale) -> Markup:
    (x1, y1), (x2, y2) = (points[i] for i in pair)
    ends = {"x1": across(x1), "x2": across(x2), "y1": up(y1), "y2": up(y2)}
    return element("line", **{k: f"{v:.1f}" for k, v in ends.items()}, class_="link")


def _labels(places: Sequence[tuple[float, float, str]], top: float) -> list[Markup]:
    """Return the names of as many tokens as find room beside their dots."""
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y, _ in places]
    found = []
    for i, (x, y, token) in enumerate(places):
        text = visible(token)
        width = 0.95 * text_width(text)
        if len(text) > 12:
            continue
        for left, base in ((x + 5, y + 4), (x - 5 - width, y + 4), (x - width / 2, y - 6)):
            box = (left, base - 9, left + width, base + 2)
            inside = box[0] >= 2 and box[2] <= WIDTH - 2 and box[1] >= top
            if inside and not any(overlap(box, t) for j, t in enumerate(taken) if j != i):
                taken.append(box)
                at = {"x": f"{left:.1f}", "y": f"{base:.1f}"}
                found.append(element("text", text, class_="token halo", **at))
                break
    return found


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Return whether two boxes (left, top, right, bottom) share room."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
