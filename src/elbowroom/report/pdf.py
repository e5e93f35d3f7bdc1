"""A drawing as a PDF file of one page: no library, no dates, the same bytes for the same drawing.

Text stays text, in Helvetica, which PDF readers bring; the fonts are not in the file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence

from elbowroom.report.painting import Painting, painting_of
from elbowroom.report.type1 import FONTS, SYMBOL


def pdf_of(svg: str, title: str) -> bytes:
    """Return an SVG file of ours as a PDF file.

    Args:
        svg: its text, as `Figure.svg_file` gives it.
        title: of the document.

    Example:
        >>> svg = '<svg viewBox="0 0 9 9"><line x1="1" x2="8" stroke="#ff0000"/></svg>'
        >>> pdf_of(svg, "a line")[:8]
        b'%PDF-1.4'
    """
    painting = painting_of(svg)
    content = _stream({}, "\n".join(painting.operators).encode("ascii"))
    objects = [_catalog(), _pages(), b"", content, _info(title)]
    named = {"Font": _fonts(), "ExtGState": _states(painting), "XObject": _images(painting)}
    resources = {}
    for kind, found in named.items():
        numbers = {name: len(objects) + i for i, name in enumerate(found, start=1)}
        resources[kind] = _dictionary({k: f"{number} 0 R" for k, number in numbers.items()})
        objects += found.values()
    objects[2] = _dictionary(
        {
            "Type": "/Page",
            "Parent": "2 0 R",
            "MediaBox": f"[0 0 {painting.width:g} {painting.height:g}]",
            "Contents": "4 0 R",
            "Resources": _dictionary({k: x.decode("ascii") for k, x in resources.items()}).decode(),
        }
    )
    return _file(objects)


def _file(objects: Sequence[bytes]) -> bytes:
    """Return a file of objects, the first of which is the catalog and the fifth the information."""
    out, places = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n"), []
    for number, one in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = {"Size": str(len(objects) + 1), "Root": "1 0 R", "Info": "5 0 R"}
    out += b"trailer\n%s\nstartxref\n%d\n%%%%EOF\n" % (_dictionary(trailer), start)
    return bytes(out)


def _catalog() -> bytes:
    return _dictionary({"Type": "/Catalog", "Pages": "2 0 R"})


def _pages() -> bytes:
    return _dictionary({"Type": "/Pages", "Kids": "[3 0 R]", "Count": "1"})


def _info(title: str) -> bytes:
    said = (b"\xfe\xff" + title.encode("utf-16-be")).hex()
    return _dictionary({"Title": f"<{said}>", "Producer": "(elbowroom)"})


def _fonts() -> dict[str, bytes]:
    found = {}
    for name, font in FONTS.items():
        entries = {"Type": "/Font", "Subtype": "/Type1", "BaseFont": f"/{font}"}
        entries |= {} if name == SYMBOL else {"Encoding": "/WinAnsiEncoding"}
        found[name] = _dictionary(entries)
    return found


def _states(painting: Painting) -> dict[str, bytes]:
    return {
        name: _dictionary({"ca": f"{fill:g}", "CA": f"{stroke:g}"})
        for (fill, stroke), name in painting.states.items()
    }


def _images(painting: Painting) -> dict[str, bytes]:
    return {f"I{i}": _image(png) for i, png in enumerate(painting.images)}


def _image(png: bytes) -> bytes:
    """Return a PNG of eight bits and three colours as an object: PDF knows its compression."""
    at, data, width, height = 8, b"", 0, 0
    while at < len(png):
        (size,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        chunk = png[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height = struct.unpack(">II", chunk[:8])
        data += chunk if kind == b"IDAT" else b""
        at += size + 12
    parameters = {"Predictor": "15", "Colors": "3", "BitsPerComponent": "8", "Columns": f"{width}"}
    entries = {
        "Type": "/XObject",
        "Subtype": "/Image",
        "Width": f"{width}",
        "Height": f"{height}",
        "ColorSpace": "/DeviceRGB",
        "BitsPerComponent": "8",
        "DecodeParms": _dictionary(parameters).decode("ascii"),
    }
    return _stream(entries, zlib.decompress(data))


def _stream(entries: Mapping[str, str], data: bytes) -> bytes:
    packed = zlib.compress(data, 9)
    head = _dictionary({**entries, "Length": f"{len(packed)}", "Filter": "/FlateDecode"})
    return head + b"\nstream\n" + packed + b"\nendstream"


def _dictionary(entries: Mapping[str, str]) -> bytes:
    return f"<< {' '.join(f'/{key} {value}' for key, value in entries.items())} >>".encode("ascii")
