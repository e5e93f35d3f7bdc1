"""Manual pages as plain text: what is left of roff when the typesetting is taken away.

Meant for making corpora, not for reading manuals: prose is kept, one paragraph a line; tables,
macro definitions and conditional parts are left out. Knows the usual macros of ``man`` and
``mdoc``; a macro it does not know is dropped with its line.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator


def _pairs(text: str) -> dict[str, str]:
    return {pair[:2]: pair[2:] for pair in text.split()}


_BESIDE = "BR RB BI IB IR RI"  # macros that print their arguments without spaces between
_MDOC = (
    "Ad An Ao Ac Ap Aq Ar Bo Bc Bq Cd Cm D1 Dl Do Dc Dq Dv Em Er Ev Fa Fl Fn Ft Ic It Li Nd Nm No "
    "Ns Oo Oc Op Pa Pf Po Pc Pq Ql Qo Qc Qq Sc Sh So Sq Ss Sx Sy Tn Ux Va Vt Xr"
)
_HEADINGS = "SH SS Sh Ss"
_BREAKS = f"PP P LP HP TP TQ IP Pp It sp br nf fi EX EE Bd Ed {_HEADINGS}"
_PRINTING = f"B I SM SB R OP IP UE ME {_HEADINGS} {_BESIDE} {_MDOC}"
BESIDE, MDOC, HEADINGS = (frozenset(names.split()) for names in (_BESIDE, _MDOC, _HEADINGS))
BREAKS, PRINTING = (frozenset(names.split()) for names in (_BREAKS, _PRINTING))
_ENDS = {"TS": ".TE", "EQ": ".EN", "PS": ".PE"}  # blocks that hold no prose
_DEFINITIONS = ("de", "de1", "am", "ig")
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
_COMMENT = re.compile(r'(?<!\\)((?:\\\\)*)\\["#].*')
_ESCAPE = re.compile(
    r"\\(?:\((?P<c2>..)|\[(?P<cn>[^\]]*)\])"  # a character by its name
    r"|\\\*(?:\((?P<s2>..)|\[(?P<sn>[^\]]*)\]|(?P<s1>.))"  # a string by its name
    r"|\\[fFgkmMnVY][+-]?(?:\(..|\[[^\]]*\]|.)"  # fonts, colours, registers: nothing to see
    r"|\\s(?:[+-]?(?:\(..|\[[^\]]*\]|'[^']*'|[0-9])|\([+-]?..)"  # sizes
    r"|\\N'(?P<code>\d+)'"
    r"|\\[ABbCDhHlLopRSvwxXZ]'[^']*'"  # movements and lines
    r"|\\(?P<one>.)"
    r"|\\$"
)
_ONE = {"e": "\\", **{c: c for c in "\\-.'`_"}, **dict.fromkeys("~0t ", " ")}
_STRINGS = {"--": "—", "R": "®", "q": '"', "C+": "C++"}
_STRINGS |= _pairs("Aq' lq“ rq” Lq“ Rq” Tm™ L\"“ R\"” C`` C''")
_NAMED = _pairs(
    "bu• em— en– hy- aq' dq\" lq“ rq” oq‘ cq’ Bq„ bq‚ co© rg® tm™ bv| br| or| ba| ul_ ru_ rs\\ at@ "
    "ha^ ti~ ga` sl/ de° +-± mu× di÷ Fo« Fc» fo‹ fc› <=≤ >=≥ !=≠ ==≡ ~~≈ ->→ <-← lB[ rB] lC{ rC} "
    "la⟨ ra⟩ sh# Do$ eu€ Eu€ Po£ Ye¥ ct¢ sc§ ssß AEÆ aeæ OEŒ oeœ /oø /OØ oaå oAÅ ahˇ aa´ pc· if∞ "
    "is∫ *pπ *bβ *aα *mµ pd∂ *** pl+ mi− eq="
)
_ACCENTS = dict(zip("'`^:~,v", "\u0301\u0300\u0302\u0308\u0303\u0327\u030c", strict=True))
_WIDE = 0x2E80  # from here on scripts write no spaces between words


def plain_text(source: str) -> str:
    """Return the text of a manual page.

    Example:
        >>> page = [".SH NAME", r"ls \\- list", "files", ".PP", ".B ls", r"\\fIshows\\fR."]
        >>> print(plain_text("\\n".join(page)))
        NAME
        ls - list files
        ls shows.
    """
    paragraphs: list[str] = []
    current = ""
    filling = True
    for line in _outside(iter(source.splitlines())):
        macro, words = _parse(line)
        if macro in ("nf", "EX", "Bd", "fi", "EE", "Ed"):
            filling = macro in ("fi", "EE", "Ed")
        if macro in BREAKS or not (line.strip() and filling):
            paragraphs.append(current)
            current = ""
        text = _unescape(line if macro is None else _printed(macro, words))
        current = current + text if macro in ("UE", "ME") else _join(current, text)
        if macro in HEADINGS:
            paragraphs.append(current)
            current = ""
    return "\n".join(paragraph for paragraph in (*paragraphs, current) if paragraph)


def _outside(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines that are outside of definitions, tables and conditions, without comments."""
    for raw in lines:
        line = _COMMENT.sub(r"\1", raw)
        macro, words = _parse(line)
        if macro in _DEFINITIONS or macro in _ENDS:
            end = _ENDS.get(macro) or "." + (words[-1] if len(words) > (macro != "ig") else ".")
            for other in lines:
                if "".join(other.split()) == end:
                    break
        elif macro in ("if", "ie", "el", "while"):
            depth = _depth(line)
            while depth > 0 and (other := next(lines, "\\}" * depth)):
                depth += _depth(other)
        else:
            yield line


def _depth(line: str) -> int:
    return line.count("\\{") - line.count("\\}")


def _parse(line: str) -> tuple[str | None, list[str]]:
    """Return a macro's name and arguments; None for a line of text."""
    if line[:1] not in (".", "'"):
        return None, []
    name, *rest = line[1:].replace("\\ ", "\\~").strip().split(maxsplit=1) or [""]
    found = _ARGUMENT.findall(rest[0] if rest else "")
    return name, [quoted.replace('""', '"') or bare for quoted, bare in found]


def _printed(macro: str, words: list[str]) -> str:
    """Return what a macro prints of its arguments."""
    if macro not in PRINTING:
        return ""
    if macro == "IP":
        words = words[:1]
        return "" if words and words[0].startswith(("\\(bu", "\\[bu")) else " ".join(words)
    if macro in BESIDE:
        return "".join(words)
    return " ".join(word for word in words if macro not in MDOC or word not in MDOC)


def _join(text: str, more: str) -> str:
    more = " ".join(more.split())
    if not text or not more:
        return text or more
    wide = ord(text[-1]) >= _WIDE and ord(more[0]) >= _WIDE
    return text + more if wide else f"{text} {more}"


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(match: re.Match[str]) -> str:
    found = match.groupdict()
    if found["code"]:
        return _code(int(found["code"]))
    if name := found["c2"] or found["cn"]:
        return _named(name)
    if name := found["s2"] or found["sn"] or found["s1"]:
        return _STRINGS.get(name, "")
    return _ONE.get(found["one"] or "", "")


def _named(name: str) -> str:
    if name in _NAMED:
        return _NAMED[name]
    if re.fullmatch(r"u[0-9A-Fa-f]{4,6}(?:_[0-9A-Fa-f]{4,6})*", name):
        return unicodedata.normalize("NFC", "".join(_code(int(x, 16)) for x in name[1:].split("_")))
    if len(name) == 2 and name[0] in _ACCENTS and name[1].isalpha():
        return unicodedata.normalize("NFC", name[1] + _ACCENTS[name[0]])
    return ""


def _code(number: int) -> str:
    return chr(number) if number < 0xD800 or 0xDFFF < number < 0x110000 else ""
