"""Embeddings on the plane of their greatest variance: translations joined, the rarest crossed."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from elbowroom.report.figure import WIDTH, Entry, Figure, legend
from elbowroom.report.markup import Markup, element, isolated, join
from elbowroom.report.palette import marker
from elbowroom.report.scales import Scale
from elbowroom.report.scatter import HeadMatrix, principal_plane

HEIGHT, EDGE, ARM = 360.0, 16.0, 5.0


def plane(name: str, head: HeadMatrix, rarest: Collection[int] = ()) -> Figure:
    """Return a head's rows on their principal plane, as in the paper's figure.

    Args:
        name: unique on its page.
        head: the matrix, with its pairs of translations.
        rarest: ids to be crossed.
    """
    points, share = principal_plane(np.asarray(head.weight))
    groups = list(dict.fromkeys(str(language) for language in head.languages))
    entries = [Entry(label=each, index=1 + i, method=False) for i, each in enumerate(groups)]
    key, top = legend(entries)
    across, up = _scales(points, top)
    links = [_link(points[a], points[b], across, up) for a, b in head.pairs]
    dots = []
    for i, (x, y) in enumerate(points):
        language = str(head.languages[i])
        tip = f"{isolated(head.tokens[i])} · {language}"
        at = across(float(x)), up(float(y))
        dots.append(marker(1 + groups.index(language), *at, 3.2, class_="dot", data_tip=tip))
        if i in rarest:
            dots.append(_cross(*at))
    crossed = f" The {len(rarest)} rarest are crossed." if rarest else ""
    note = f"The plane holds {100 * share:.0f}% of the variance.{crossed}"
    title = f"Principal components: {head.name}"
    body = join(key, *links, *dots)
    return Figure(name=name, title=title, description=note, body=body, height=HEIGHT, note=note)


def _scales(points: Float[ndarray, "V 2"], top: float) -> tuple[Scale, Scale]:
    """Return scales on which equal distances look equal."""
    low, high = points.min(0), points.max(0)
    width, height = WIDTH - 2 * EDGE, HEIGHT - top - 2 * EDGE
    unit = max((high[0] - low[0]) / width, (high[1] - low[1]) / height, 1e-12)
    x, y = (float(value) for value in (low + high) / 2)
    half_x, half_y = float(unit) * width / 2, float(unit) * height / 2
    across = Scale(low=x - half_x, high=x + half_x, start=EDGE, end=WIDTH - EDGE)
    start, end = HEIGHT - EDGE, top + EDGE
    return across, Scale(low=y - half_y, high=y + half_y, start=start, end=end)


def _link(a: Float[ndarray, " 2"], b: Float[ndarray, " 2"], across: Scale, up: Scale) -> Markup:
    ends = {"x1": across(float(a[0])), "y1": up(float(a[1]))}
    ends |= {"x2": across(float(b[0])), "y2": up(float(b[1]))}
    return element("line", **{k: f"{v:.1f}" for k, v in ends.items()}, class_="link")


def _cross(x: float, y: float) -> Markup:
    lines = (
        f"M{x - ARM:.1f},{y - s * ARM:.1f}L{x + ARM:.1f},{y + s * ARM:.1f}" for s in (1.0, -1.0)
    )
    return element("path", d="".join(lines), class_="whisker")
