"""Documents and texts: encodings, line ends, pieces, pairs."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.errors import ArgumentValueError, FileError
from elbowroom.lab.corpora import Document, Pair, Texts
from elbowroom.lab.corpora import texts as module


def file_of(tmp_path, raw):
    path = tmp_path / "x.txt"
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain\n", "plain\n"),
        (b"\xef\xbb\xbfmark", "mark"),
        (b"a\r\nb\rc\nd\r", "a\nb\nc\nd\n"),
        ("größer 大 😀".encode(), "größer 大 😀"),
        (b"", ""),
        (b"no end of line", "no end of line"),
    ],
)
def test_a_file_and_its_text_are_one_document(tmp_path, raw, text):
    document = Document.from_file(file_of(tmp_path, raw))
    assert document.read() == text
    assert document.characters == len(text)
    assert document.sha256 == hashlib.sha256(text.encode()).hexdigest()
    same = Document.from_text("x", raw.decode())
    assert (same.read(), same.sha256) == (text, document.sha256)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize(
    ("raw", "at"),
    [
        (b"ab\xffcd", 2),
        ("größe".encode()[:3] + b"!", 2),
        ("大".encode() + b"\xe5\xa4", 3),
        (b"\xc3", 0),
    ],
)
def test_invalid_bytes_are_named_with_their_place(tmp_path, monkeypatch, raw, at, piece):
    monkeypatch.setattr(module, "PIECE", piece)
    path = file_of(tmp_path, raw)
    with pytest.raises(FileError, match=rf"x\.txt: .*invalid bytes at byte {at}; .*replace"):
        Document.from_file(path)
    assert "\ufffd" in Document.from_file(path, "replace").read()


def test_errors_are_strict_or_replaced(tmp_path):
    with pytest.raises(ArgumentValueError, match="errors: expected 'strict' or 'replace'"):
        Document.from_file(file_of(tmp_path, b""), "ignore")  # type: ignore[arg-type]


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        Document.from_file(tmp_path)


def test_text_in_memory_has_to_be_text():
    with pytest.raises(FileError, match="lone surrogate at character 1"):
        Document.from_text("x", "a\ud800")


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 9), st.booleans())
def test_pieces_are_a_slice(tmp_path_factory, start, stop, piece, in_file):
    text = "".join(chr(0x4E00 + i) for i in range(30))
    if in_file:
        path = tmp_path_factory.mktemp("d") / "x"
        path.write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", piece)
        document = Document.from_file(path) if in_file else Document.from_text("x", text)
        found = list(document.pieces(start, stop))
    assert "".join(found) == text[start:stop]
    assert all(0 < len(part) <= piece for part in found)


def test_one_huge_line_comes_in_pieces(tmp_path):
    path = file_of(tmp_path, b"x" * (2 * module.PIECE + 5))
    assert [len(p) for p in Document.from_file(path).pieces()] == [module.PIECE, module.PIECE, 5]


def toy(**languages):
    documents = {k: (Document.from_text(k, v),) for k, v in languages.items()}
    return Texts(name="toy", documents=documents)


def test_texts_know_what_they_are():
    texts = toy(de="drei", fr="deux!")
    assert texts.languages == ("de", "fr")
    assert texts.characters == {"de": 4, "fr": 5}
    others = [toy(fr="deux!", de="drei"), toy(de="drei", it="deux!"), toy(de="drei!", fr="deux")]
    pairs = [toy(de="drei").paired(Pair(share=s)) for s in (0.1, 0.2)]
    assert len({t.fingerprint for t in (texts, *others, *pairs)}) == 6
    assert texts.fingerprint == toy(de="drei", fr="deux!").fingerprint


def test_empty_texts_are_refused():
    with pytest.raises(FileError, match="no texts were found"):
        toy()
    with pytest.raises(FileError, match=r"the text of 'de' is empty \(de\)"):
        toy(fr="x", de="")
    with pytest.raises(FileError, match="no documents"):
        Texts(name="toy", documents={"de": ()})


def test_a_pair_needs_one_language():
    texts = toy(en="x").paired(Pair(), ("big", "small"))
    assert texts.languages == ("big", "small")
    assert texts.documents["big"] is texts.documents["small"]
    with pytest.raises(ArgumentValueError, match="2 languages"):
        toy(de="x", fr="y").paired(Pair())


def test_the_pairs_part():
    assert Pair().second_part == 0.0
    assert Pair(protocol="disjoint").second_part == 0.02
    assert Pair(protocol="disjoint", part=0.3).second_part == 0.3
    for wrong in ({"part": 0.3}, {"share": 0.0}, {"protocol": "else"}):
        with pytest.raises(ArgumentValueError):
            Pair(**wrong)
    with pytest.raises(ArgumentValueError, match="part"):
        Pair(protocol="disjoint", part=1.0)
