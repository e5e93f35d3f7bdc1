"""PDF files: sound, and drawn from what the SVG says."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from elbowroom.report import Axes, Bars, Figure, Line, bar_chart, embedding_map, line_chart
from elbowroom.report.figure import style
from elbowroom.report.painting import painting_of
from elbowroom.report.palette import LIGHT
from elbowroom.report.paper.maps import cosine_map, png
from elbowroom.report.pdf import pdf_of
from elbowroom.report.sheet import sheet_of
from elbowroom.report.type1 import FONTS, runs_of, width_of
from tests.report.test_figures import head, interval


def chart() -> Figure:
    lines = [
        Line(label="−ours ∞", index=i, x=[0, 1, 2], y=[3.0, 2.0, 1.5], thin=i == 0) for i in (0, 1)
    ]
    return line_chart("c", "Loss & more", lines, Axes(x="step", y="nats", guide=1.0))


def bars() -> Figure:
    values = [interval(2.0, 0.5), None]
    return bar_chart(
        "b", "Bars", ["x", "y"], [Bars(label="a", index=0, values=values)], x="x", y="y"
    )


def objects(data: bytes) -> dict[int, bytes]:
    """Read a file as a reader does: from its end to the table of places to the objects."""
    start = int(data.rsplit(b"startxref\n", 1)[1].split(b"\n")[0])
    lines = data[start:].split(b"\n")
    assert lines[0] == b"xref"
    count = int(lines[1].split()[1])
    assert all(len(line) == 19 for line in lines[2 : 2 + count])  # and the end of the line
    found = {}
    for number in range(1, count):
        place = int(lines[2 + number][:10])
        begin = b"%d 0 obj\n" % number
        assert data[place:].startswith(begin)
        found[number] = data[place + len(begin) :].split(b"\nendobj\n")[0]
    return found


def stream(one: bytes) -> bytes:
    head, _, data = one.partition(b"\nstream\n")
    size = int(re.search(rb"/Length (\d+)", head)[1])  # type: ignore[index]
    assert data[size:] == b"\nendstream"
    return zlib.decompress(data[:size])


@pytest.mark.parametrize("make", [chart, bars, lambda: embedding_map("m", head())])
def test_files_are_sound_and_the_same_again(make, tmp_path: Path) -> None:
    data = make().save_pdf(tmp_path / "deep" / "x.pdf").read_bytes()
    assert data == make().save_pdf(tmp_path / "again.pdf").read_bytes()
    found = objects(data)
    assert b"/Type /Catalog" in found[1]
    content = stream(found[4]).decode("ascii").split("\n")
    assert content.count("q") == content.count("Q")
    box = f"[0 0 {make().width:g} {make().height + 26:g}]".encode()
    assert box in found[3]
    for kind, number in re.findall(rb"/(\w+) (\d+) 0 R", found[3]):
        assert int(number) in found, kind
    used = set(re.findall(r"/([FGI]\d+) ", "\n".join(content)))
    assert all(f"/{name} ".encode() in found[3] for name in used)


def test_texts_stay_texts_and_the_title_is_told() -> None:
    found = objects(pdf_of(chart().svg_file(), "Löss"))
    assert ("feff" + "Löss".encode("utf-16-be").hex()).encode() in found[5]
    shown = re.findall(r"/(F\d) [\d.]+ Tf <(\w+)> Tj", stream(found[4]).decode("ascii"))
    said = [(font, bytes.fromhex(codes)) for font, codes in shown]
    assert ("F1", b"Loss & more") in said
    assert said[1:3] == [("F0", b"\x96ours "), ("F2", b"\xa5")]
    assert ("F0", b"step") in said


def test_elements_are_drawn_as_styled() -> None:
    rules = f".figure{{--ink:#ff0000;}} {style()}"
    svg = (
        f'<svg viewBox="0 0 20 10"><style>{rules}</style>'
        '<clipPath id="c"><rect x="1" y="2" width="3" height="4"/></clipPath>'
        '<g clip-path="url(#c)"><line x1="1" x2="2" y1="3" y2="4" class="whisker"/></g>'
        '<path d="M1,2L3,-4Z" class="band" fill="rgb(0, 255, 0)"/>'
        '<circle cx="5" cy="6" r="2" fill="none" stroke="#0000ff"/></svg>'
    )
    missing = [name for name in LIGHT if name not in ("ink", "series")]
    svg = svg.replace(";}", ";" + "".join(f"--{name}:#111111;" for name in missing) + "}", 1)
    painting = painting_of(svg)
    said = "\n".join(painting.operators)
    assert said.startswith("1 0 0 -1 0 10 cm\nq\n")
    assert "1 2 3 4 re W n\nq\n1 0 0 RG 1.4 w\n[] 0 d\n0 J 0 j\n1 3 m 2 4 l S" in said
    assert "/G0 gs\n0 1 0 rg\n1 2 m\n3 -4 l\nh\nf" in said
    assert painting.states == {(0.16, 1.0): "G0"}
    assert said.count(" c\n") == 3
    assert said.endswith(" c h\nS\nQ\nQ")


def test_pictures_hold_their_pixels() -> None:
    figure = cosine_map("x", head(languages=["hr", "hr", "lr", "lr"]))
    found = objects(pdf_of(figure.svg_file(), "x"))
    image = next(one for one in found.values() if b"/Subtype /Image" in one)
    assert b"/Width 4 /Height 4" in image
    lines = np.frombuffer(stream(image), dtype=np.uint8).reshape(4, 13)
    assert not lines[:, 0].any()
    assert png(lines[:, 1:].reshape(4, 4, 3)).hex() in {one.hex() for one in _pictures(figure)}


def _pictures(figure: Figure) -> list[bytes]:
    return painting_of(figure.svg_file()).images


def test_turned_text_is_where_the_svg_has_it() -> None:
    svg = '<svg viewBox="0 0 9 9"><text x="3" y="4" transform="rotate(-90 3 4)">a</text></svg>'
    matrix = next(o for o in painting_of(svg).operators[2:] if o.endswith(" cm"))
    a, b, c, d, e, f = map(float, matrix.split()[:6])
    assert (a * 3 + c * 4 + e, b * 3 + d * 4 + f) == pytest.approx((3, 4))
    assert (a, b) == pytest.approx((0, -1))


def test_the_last_rule_wins_over_attributes() -> None:
    sheet = sheet_of(
        ".figure { stroke: #111111; } .figure .b { fill: none; } .figure text{fill:red}"
    )
    assert sheet.style("text", {"class": "b", "fill": "blue"}, {}) == {"fill": "none"}
    assert sheet.style("text", {"fill": "blue"}, {"stroke": "none"})["fill"] == "red"
    assert sheet.style("rect", {"fill": "blue"}, {"fill": "none"}) == {"fill": "blue"}


def test_widths_are_the_fonts() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "pdfcorefonts"
    pattern = re.compile(r"C (-?\d+) ; WX (\d+) ; N (\w+)")
    plain, symbols = (
        pattern.findall((fonts / f"{FONTS[name]}.afm").read_text(encoding="latin-1"))
        for name in ("F0", "F2")
    )
    other = "'`"  # other letters in the encoding of those tables
    for letter in (chr(i) for i in range(32, 127) if chr(i) not in other):
        (width,) = [int(w) for code, w, _ in plain if int(code) == ord(letter)]
        assert width_of(letter) == width / 1000, letter
    names = {"∞": "infinity", "≤": "lessequal", "≥": "greaterequal"}
    for letter, name in {**names, "→": "arrowright", "α": "alpha", "Δ": "Delta"}.items():
        ((code, width),) = [(int(c), int(w)) for c, w, n in symbols if n == name]
        assert runs_of(letter) == [("F2", bytes([code]))]
        assert width_of(letter) == width / 1000


def test_letters_that_no_font_has() -> None:
    assert runs_of("中é", bold=True) == [("F1", b"?\xe9")]
    assert width_of("中") == width_of("?")
