"""Nothing that comes from outside becomes markup."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from elbowroom.report.markup import Markup, element, escape, isolated, join, visible


@pytest.mark.parametrize("text", ["<script>\"&'", "\x00\x0b\ud800\ufffe", "a\tb\nc", "שלום"])
def test_any_text_survives_a_parser(text: str) -> None:
    parsed = ElementTree.fromstring(element("p", text, title=text))
    clean = "".join("\ufffd" if c in "\x00\x0b\ud800\ufffe" else c for c in text)
    assert parsed.text == clean
    assert (parsed.get("title") or "").split() == clean.split()


def test_markup_is_not_escaped_twice() -> None:
    inner = element("b", "<")
    assert element("p", inner, None, 3) == "<p><b>&lt;</b>3</p>"
    assert escape(Markup("<i>")) == "<i>"
    assert join("a<", inner) == "a&lt;<b>&lt;</b>"


def test_attributes() -> None:
    found = element("input", class_="a", data_tip="b", checked=True, disabled=False, id=None)
    assert found == '<input class="a" data-tip="b" checked="checked"/>'
    assert element("meta", name="x") == '<meta name="x"/>'
    assert element("div") == "<div></div>"


def test_tokens_are_seen() -> None:
    assert visible(" a\t\n\r\x00\x7f\xa0\u202e") == "␣a⇥⏎␍␀␡⍽U+202E"
    assert visible("") == "∅"
    assert isolated("\u2067x") == "\u2068U+2067x\u2069"
