"""Text in the fonts that every PDF reader has: which letters they hold, and how wide these are."""

from __future__ import annotations

import unicodedata

FONTS = {"F0": "Helvetica", "F1": "Helvetica-Bold", "F2": "Symbol"}
PLAIN, BOLD, SYMBOL = FONTS
# thousandths of the size, from the space to the tilde, and what else drawings say
_ASCII = (
    *(278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278),
    *(556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556),
    *(1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778),
    *(667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556),
    *(333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556),
    *(556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584),
)
_WIDTHS = {chr(32 + i): width for i, width in enumerate(_ASCII)}
_WIDTHS |= {"–": 556, "—": 1000, "…": 1000, "×": 584, "·": 278, "±": 584, "’": 222}
_SYMBOLS = {  # a letter: its code in the font Symbol, and its width
    "∞": (0xA5, 713),
    "≤": (0xA3, 549),
    "≥": (0xB3, 549),
    "→": (0xAE, 987),
    "α": (0x61, 631),
    "Δ": (0x44, 612),
}
_ALIKE = str.maketrans({"−": "–"})  # the true minus is in Symbol only, and there in another style
ABSENT = "?"  # what stands for a letter that none of the fonts has


def runs_of(text: str, *, bold: bool = False) -> list[tuple[str, bytes]]:
    """Return a text in pieces of one font each: the font's name and the letters' codes.

    Example:
        >>> runs_of("−1 to ∞")
        [('F0', b'\\x961 to '), ('F2', b'\\xa5')]
    """
    found: list[tuple[str, bytes]] = []
    for letter in text.translate(_ALIKE):
        if letter in _SYMBOLS:
            font, code = SYMBOL, bytes([_SYMBOLS[letter][0]])
        else:
            font, code = BOLD if bold else PLAIN, _code(letter)
        if found and found[-1][0] == font:
            found[-1] = (font, found[-1][1] + code)
        else:
            found.append((font, code))
    return found


def width_of(text: str) -> float:
    """Return how wide a text is, in sizes of the font; bold is taken for plain.

    Example:
        >>> width_of("il"), width_of("é") == width_of("e")
        (0.444, True)
    """
    return sum(map(_width, text.translate(_ALIKE))) / 1000


def _width(letter: str) -> int:
    if letter in _SYMBOLS:
        return _SYMBOLS[letter][1]
    base = unicodedata.normalize("NFD", letter)[0]  # an accent is as wide as its letter
    return _WIDTHS.get(letter, _WIDTHS.get(base, _WIDTHS[ABSENT]))


def _code(letter: str) -> bytes:
    try:
        return letter.encode("cp1252")
    except UnicodeEncodeError:
        return ABSENT.encode("cp1252")
