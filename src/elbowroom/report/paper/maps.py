"""Matrices as pictures: cosines between all rows, and the classes of pairs beside them."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy import ndarray

from elbowroom import diagnose
from elbowroom.report.figure import WIDTH, Figure
from elbowroom.report.markup import Markup, element, join
from elbowroom.report.scatter import HeadMatrix

SIDE, LEFT, TOP, ROW = 330.0, 40.0, 26.0, 19.0
LOW, MIDDLE, HIGH = (0, 84, 140), (245, 245, 245), (178, 60, 0)  # of cosine -1, 0 and 1
CLASSES = {  # a colour for each class of pairs
    "other": (245, 245, 245),
    "NA": (150, 150, 150),
    "UC": (86, 180, 233),
    "LC": (0, 114, 178),
    "ID": (0, 0, 0),
    "T": (213, 94, 0),
    "C": (0, 158, 115),
    "T+C": (230, 159, 0),
}


def cosine_map(name: str, head: HeadMatrix) -> Figure:
    """Return the cosines between all rows of a head as a picture.

    Args:
        name: unique on its page.
        head: the matrix with its tokens; rows of a language are next to each other.
    """
    weight = np.asarray(head.weight, dtype=np.float64)
    norms = np.linalg.norm(weight, axis=1, keepdims=True)
    unit = np.divide(weight, norms, out=np.zeros_like(weight), where=norms > 0)
    picture = _picture(_diverging(unit @ unit.T))
    keys = [(f"{value:+d}" if value else "0", _between(float(value))) for value in (-1, 0, 1)]
    languages = list(dict.fromkeys(str(language) for language in head.languages))
    title = f"Cosines: {head.name}"
    said = "Cosine of each pair of rows: blue is -1, orange is 1."
    return _figure(name, title, said, picture, keys, languages)


def class_map(name: str, letters: str, languages: list[str]) -> Figure:
    """Return the classes of all pairs of letters as a picture.

    Args:
        name: unique on its page.
        letters: of one language, by id.
        languages: their names.
    """
    pairs = diagnose.letter_mask(letters, len(languages))
    colours = np.array([CLASSES[each] for each in pairs.names], dtype=np.uint8)
    picture = _picture(colours[torch.as_tensor(pairs.mask).numpy()])
    keys = [(each, CLASSES[each]) for each in pairs.names if each != "other"]
    said = "What each pair of letters has to do with each other."
    return _figure(name, "Classes of pairs", said, picture, keys, languages)


def png(pixels: UInt8[ndarray, "H W 3"]) -> bytes:
    """Return a picture as a PNG file.

    Example:
        >>> png(np.zeros((2, 3, 3), dtype=np.uint8))[1:4]
        b'PNG'
    """
    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + pixels[y].astype(np.uint8).tobytes() for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


def _between(value: float) -> tuple[int, int, int]:
    shown = _diverging(np.array([[value]]))[0, 0]
    return int(shown[0]), int(shown[1]), int(shown[2])


def _diverging(values: Float[ndarray, "V V"]) -> UInt8[ndarray, "V V 3"]:
    share = np.clip(np.abs(values), 0.0, 1.0)[..., None]
    end = np.where(values[..., None] < 0, np.array(LOW), np.array(HIGH))
    mixed = (1 - share) * np.array(MIDDLE) + share * end
    return np.asarray(np.round(mixed), dtype=np.uint8)


def _picture(pixels: UInt8[ndarray, "V V 3"]) -> Markup:
    data = base64.b64encode(png(pixels)).decode("ascii")
    place = {"x": LEFT, "y": TOP + ROW, "width": SIDE, "height": SIDE}
    crisp = {"style": "image-rendering:pixelated", "preserveAspectRatio": "none"}
    return element("image", href=f"data:image/png;base64,{data}", **place, **crisp)


def _figure(
    name: str,
    title: str,
    said: str,
    picture: Markup,
    keys: list[tuple[str, tuple[int, int, int]]],
    languages: list[str],
) -> Figure:
    body = join(_key(keys), picture, *_sides(languages))
    height = TOP + ROW + SIDE + 12
    return Figure(name=name, title=title, description=said, body=body, height=height)


def _key(keys: list[tuple[str, tuple[int, int, int]]]) -> Markup:
    parts, room = [], min(90.0, (WIDTH - LEFT) / max(1, len(keys)))
    for i, (label, rgb) in enumerate(keys):
        x = LEFT + i * room
        box = {"x": f"{x:.1f}", "y": 6, "width": 11, "height": 11}
        parts.append(element("rect", **box, fill=f"rgb{rgb}", stroke="var(--soft)"))
        parts.append(element("text", label, x=f"{x + 15:.1f}", y=16))
    return join(*parts)


def _sides(languages: list[str]) -> list[Markup]:
    """Return the languages' names above and beside the picture."""
    part, found = SIDE / max(1, len(languages)), []
    for i, language in enumerate(languages):
        middle = (i + 0.5) * part
        above = {"x": f"{LEFT + middle:.1f}", "y": f"{TOP + ROW - 5:.1f}"}
        beside = {"x": f"{LEFT - 8:.1f}", "y": f"{TOP + ROW + middle:.1f}"}
        found.append(element("text", language, **above, text_anchor="middle"))
        found.append(element("text", language, **beside, text_anchor="end"))
    return found
