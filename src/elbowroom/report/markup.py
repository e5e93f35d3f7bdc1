"""HTML and SVG from Python values: everything is escaped here, once.

What this module makes is HTML and well-formed XML at the same time, so that any XML parser can
check it, and a drawing in a page is the same text as a drawing in a file.
"""

from __future__ import annotations

import html
import re

VOID = frozenset({"meta", "link", "br", "hr", "input", "col", "img"})
# What XML cannot hold, and what turns the direction of the text around it.
_FORBIDDEN = re.compile("[^\\t\\n\\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DIRECTION = "\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"
_VISIBLE = {" ": "␣", "\t": "⇥", "\n": "⏎", "\r": "␍", "\x7f": "␡", "\xa0": "⍽"}
_VISIBLE |= {chr(i): chr(0x2400 + i) for i in range(32) if chr(i) not in _VISIBLE}
_VISIBLE |= {c: f"U+{ord(c):04X}" for c in _DIRECTION}
_VISIBLE["\xad"] = "U+00AD"
ISOLATE, END_ISOLATE = "\u2068", "\u2069"


class Markup(str):
    """Text that is markup already and must not be escaped again."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """Return text that is safe in an element and in an attribute; markup stays as it is.

    Example:
        >>> escape('a < "b"')
        'a &lt; &quot;b&quot;'
    """
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(_FORBIDDEN.sub("\ufffd", str(text))))


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element; its attributes' underscores become hyphens, a last one is dropped.

    Attributes that are None or False are left out, True repeats the name. Children that are None
    are left out, others are escaped unless they are markup.

    Example:
        >>> element("text", "a & b", class_="tick", text_anchor="end")
        '<text class="tick" text-anchor="end">a &amp; b</text>'
    """
    written = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        written.append(f'{key}="{escape(key if value is True else value)}"')
    if name in VOID:
        return Markup(f"<{' '.join(written)}/>")
    return Markup(f"<{' '.join(written)}>{join(*children)}</{name}>")


def join(*parts: object) -> Markup:
    """Return parts after each other, escaped unless they are markup; None is left out."""
    return Markup("".join(escape(part) for part in parts if part is not None))


def visible(token: str) -> str:
    """Return a token so that its spaces, control and direction characters can be seen.

    Example:
        >>> visible(" the\\n")
        '␣the⏎'
    """
    return "".join(_VISIBLE.get(c, c) for c in token) or "∅"


def isolated(token: str) -> str:
    """Return a token for plain text, its direction kept to itself."""
    return f"{ISOLATE}{visible(token)}{END_ISOLATE}"
