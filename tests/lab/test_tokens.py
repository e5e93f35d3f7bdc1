"""Corpora of ids: the paper's pair, splits, token files, reuse and damage."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from elbowroom.errors import ArgumentTypeError, ArgumentValueError, FileError
from elbowroom.lab import tokens as module
from elbowroom.lab.corpora import Document, Pair, Texts
from elbowroom.lab.tokenizers import BPE, Bytes, Characters, Twins
from elbowroom.lab.tokens import load_corpus, prepare

PLAY = "To be, or not to be: that is the question.\n" * 100


def texts_of(**languages):
    documents = {
        name: tuple(
            Document.from_text(f"{name}{i}", text)
            for i, text in enumerate([value] if isinstance(value, str) else value)
        )
        for name, value in languages.items()
    }
    return Texts(name="test", documents=documents)


def pair(text=PLAY, **options):
    return texts_of(en=text).paired(Pair(**options))


def equal(a, b):
    assert (a.languages, a.vocab_size, a.default_shares) == (
        b.languages,
        b.vocab_size,
        b.default_shares,
    )
    assert a.fingerprint == b.fingerprint
    assert a.tokenizer.to_dict() == b.tokenizer.to_dict()
    for name in ("byte_lengths", "group_of_token"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    for s, t in zip(a.train + a.validation, b.train + b.validation, strict=True):
        assert (s.offset, s.tokens.dtype) == (t.offset, t.tokens.dtype)
        np.testing.assert_array_equal(s.tokens, t.tokens)


def test_the_papers_pair():
    corpus = prepare(pair())
    alphabet = "".join(sorted(set(PLAY)))
    n = len(alphabet)
    assert corpus.languages == ("hr", "lr")
    assert corpus.vocab_size == 2 * n
    assert corpus.default_shares == (0.98, 0.02)
    assert [s.offset for s in corpus.train + corpus.validation] == [0, n, 0, n]
    cut = int(0.9 * len(PLAY))
    for streams, text in ((corpus.train, PLAY[:cut]), (corpus.validation, PLAY[cut:])):
        assert streams[0].tokens is streams[1].tokens  # one text, once in memory
        np.testing.assert_array_equal(streams[1].ids(), streams[0].ids() + n)
        assert corpus.tokenizer.decode(streams[0].ids()) == text
        assert corpus.tokenizer.decode(streams[1].ids()) == text
    assert corpus.train[0].tokens.dtype == np.uint8
    assert corpus.group_of_token.tolist() == [0] * n + [1] * n
    assert corpus.byte_lengths.tolist() == [1] * 2 * n


def test_expected_counts_of_the_pair():
    corpus = prepare(pair())
    counts = corpus.counts()
    n = corpus.vocab_size // 2
    assert counts[0, :n].sum() == counts[1, n:].sum() == int(0.9 * len(PLAY))
    assert counts[0, n:].sum() == counts[1, :n].sum() == 0
    expected = corpus.frequencies() * len(corpus.train[0])
    np.testing.assert_allclose(expected, 0.98 * counts[0] + 0.02 * counts[1])
    np.testing.assert_allclose(corpus.frequencies((1, 1)).sum(), 1)
    with pytest.raises(ArgumentValueError, match="a share for each of 2 languages"):
        corpus.frequencies((1, 1, 1))


@pytest.mark.parametrize(("options", "part"), [({}, 0.1), ({"part": 0.3}, 0.3)])
def test_a_pair_on_disjoint_text(options, part):
    lines = "".join(f"{i:04d};" for i in range(2000))
    corpus = prepare(pair(lines, share=0.1, protocol="disjoint", **options))
    read = [corpus.tokenizer.decode(s.ids()) for s in corpus.train + corpus.validation]
    assert "".join(read) == lines
    assert [len(text) for text in read] == [
        int(9000 * (1 - part)),
        9000 - int(9000 * (1 - part)),
        int(1000 * (1 - part)),
        1000 - int(1000 * (1 - part)),
    ]
    assert [s.offset for s in corpus.train] == [0, corpus.vocab_size // 2]
    assert corpus.default_shares == (0.9, 0.1)


def test_real_languages_share_some_ids():
    corpus = prepare(texts_of(de="äb " * 300, el="βb " * 100), context=8)
    assert corpus.tokenizer.to_dict()["characters"] == " bäβ"
    assert corpus.group_of_token.tolist() == [-1, -1, 0, 1]
    assert corpus.default_shares == (0.75, 0.25)
    assert corpus.byte_lengths.tolist() == [1, 1, 2, 2]
    assert [s.offset for s in corpus.train] == [0, 0]


def test_an_id_that_nobody_uses_belongs_to_nobody():
    corpus = prepare(texts_of(en=PLAY), Characters("".join(sorted({*PLAY, "ж"}))))
    assert corpus.group_of_token.tolist() == [0] * (corpus.vocab_size - 1) + [-1]


def test_documents_are_held_out_whole_and_separated():
    documents = [f"<{i}>" + "x" * 50 for i in range(20)]
    corpus = prepare(texts_of(en=documents), "bytes", separator="|")
    train, held_out = (
        corpus.tokenizer.decode(s[0].ids()) for s in (corpus.train, corpus.validation)
    )
    parts = [*train.split("|"), *held_out.split("|")]
    assert sorted(parts) == sorted(documents)
    assert len(held_out.split("|")) == 2


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(256, np.uint8), (257, np.uint16), (65536, np.uint16), (65537, "<u4")]
)
def test_ids_are_as_narrow_as_they_can_be(vocab_size, dtype):
    alphabet = "".join(chr(i) for i in range(32, 200000) if not 0xD800 <= i < 0xE000)
    corpus = prepare(texts_of(en="abcd" * 200), Characters(alphabet[:vocab_size]))
    assert corpus.train[0].tokens.dtype == dtype


@pytest.mark.parametrize("tokenizer", ["characters", "bytes", "bpe", Bytes()])
@pytest.mark.parametrize("texts", [pair(), texts_of(de=PLAY, fr=PLAY[::-1])], ids=["pair", "real"])
def test_files_hold_what_memory_does(tmp_path, tokenizer, texts):
    inside = prepare(texts, tokenizer, vocab_size=300, context=8)
    written = prepare(texts, tokenizer, vocab_size=300, context=8, folder=tmp_path)
    assert isinstance(written.train[0].tokens, np.memmap)
    equal(inside, written)
    (place,) = tmp_path.iterdir()
    loaded = load_corpus(place)
    equal(inside, loaded)
    assert (loaded.train[0].tokens is loaded.train[1].tokens) == (texts.pair is not None)


def test_the_raw_file_is_plain(tmp_path):
    corpus = prepare(pair(), folder=tmp_path)
    (place,) = tmp_path.iterdir()
    header = json.loads((place / "0.json").read_text())
    assert header["dtype"] == "|u1"
    assert header["length"] == len(corpus.train[0])
    assert (place / "0.bin").read_bytes() == corpus.train[0].tokens.tobytes()
    assert not [file for file in place.iterdir() if file.name.startswith(".")]


def test_an_unchanged_corpus_is_reused(tmp_path, monkeypatch):
    prepare(pair(), folder=tmp_path)
    monkeypatch.setattr(module, "_encode", None)
    prepare(pair(), folder=tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"texts": pair(PLAY + "more")},
        {"texts": pair(share=0.1)},
        {"tokenizer": "bytes"},
        {"tokenizer": "bpe"},
        {"validation": 0.2},
        {"split_by": "position"},
        {"separator": "\n"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_decides_the_ids_makes_another_folder(tmp_path, change):
    prepare(pair(), folder=tmp_path, context=8)
    prepare(change.pop("texts", pair()), folder=tmp_path, context=8, **change)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_fingerprint_is_of_the_ids():
    same = prepare(pair(), split_by="position")
    assert prepare(pair()).fingerprint == same.fingerprint
    assert (
        prepare(pair(share=0.1)).fingerprint == same.fingerprint
    )  # the same ids, drawn more often
    others = [prepare(pair(), "bytes"), prepare(pair(), validation=0.2), prepare(pair(PLAY[1:]))]
    assert len({corpus.fingerprint for corpus in [same, *others]}) == 4


def flip(file):
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def replace_by(text):
    return lambda file: file.write_text(text)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("0.bin", flip, "SHA-256"),
        ("0.bin", lambda file: file.write_bytes(b""), "expected 3870 tokens"),
        ("0.bin", lambda file: file.unlink(), "got -1 bytes"),
        ("0.json", replace_by("{}"), "no known type"),
        ("0.json", replace_by("["), "not JSON"),
        ("0.json", replace_by("[]"), "expected a JSON object"),
        ("0.json", lambda file: file.unlink(), "cannot be read"),
        ("corpus.json", replace_by("{}"), "not a corpus of this version"),
        ("corpus.json", replace_by('{"tokenizer": {"kind": "?"}}'), "neither a known kind"),
    ],
)
def test_damage_is_found_and_mended(tmp_path, name, damage, message):
    whole = prepare(pair())  # in memory: nobody may read a mapped file while it is cut short
    prepare(pair(), folder=tmp_path)
    (place,) = tmp_path.iterdir()
    damage(place / name)
    with pytest.raises(FileError, match=message):
        load_corpus(place)
    equal(prepare(pair(), folder=tmp_path), whole)
    equal(load_corpus(place), whole)


def test_names_in_a_file_lead_nowhere_else(tmp_path):
    prepare(pair(), folder=tmp_path)
    (place,) = tmp_path.iterdir()
    text = (place / "corpus.json").read_text().replace('"0.bin"', '"../0.bin"')
    (place / "corpus.json").write_text(text)
    with pytest.raises(FileError, match="name of a token file"):
        load_corpus(place)


def test_verifying_can_be_left_out(tmp_path):
    prepare(pair(), folder=tmp_path)
    (place,) = tmp_path.iterdir()
    flip(place / "0.bin")
    load_corpus(place, verify=False)


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize(
    ("text", "which"),
    [("ab" * 32, "training in 'lr'"), ("ab" * 300, "validation in 'lr'"), ("a", "")],
)
def test_too_little_text_is_named(tmp_path, text, which, folder):
    texts = texts_of(hr=PLAY, lr=text)
    message = f"at least 65 tokens for {which}.*add text"
    for _ in range(2):  # the second time it is in the folder
        with pytest.raises(ArgumentValueError, match=message):
            prepare(texts, "bytes", folder=tmp_path if folder else None)


def test_a_full_disk_is_told_and_leaves_no_corpus(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(FileError, match=r"0\.bin: cannot be written \(No space left"):
        prepare(pair(), folder=tmp_path)
    (place,) = tmp_path.iterdir()
    assert list(place.iterdir()) == []


def test_progress_ends_at_the_total(monkeypatch):
    monkeypatch.setattr("elbowroom.lab.corpora.texts.PIECE", 100)
    monkeypatch.setattr("elbowroom.lab.token_files.PIECE", 100)
    seen = []
    prepare(texts_of(en=[PLAY, PLAY]), progress=lambda *args: seen.append(args), separator="\n" * 9)
    assert {total for _, total in seen} == {2 * len(PLAY)}
    assert all(a <= b for (a, _), (b, _) in pairwise(seen))
    assert seen[-1][0] == 2 * len(PLAY)


def test_tokenizers_come_by_name_file_or_ready_made(tmp_path):
    path = BPE.train([PLAY], 280).save(tmp_path / "own.json")
    by_file = prepare(pair(), str(path), context=8)
    equal(by_file, prepare(pair(), BPE.train([PLAY], 280), context=8))
    equal(by_file, prepare(pair(), Twins(BPE.train([PLAY], 280)), context=8))
    with pytest.raises(ArgumentValueError, match="one for 1 copies"):
        prepare(texts_of(en=PLAY), Twins(Bytes()))
    with pytest.raises(ArgumentValueError, match="tokenizer: expected 'characters'"):
        prepare(pair(), "words")
    with pytest.raises(ArgumentValueError, match="context"):
        prepare(pair(), context=0)


@pytest.mark.usefixtures("unchecked")
def test_a_number_is_no_tokenizer():
    with pytest.raises(ArgumentTypeError, match="a name or a tokenizer"):
        prepare(pair(), 3)  # type: ignore[arg-type]


def test_a_byte_pair_encoding_sees_training_text_alone():
    corpus = prepare(texts_of(en="aa bb " * 200 + "zqzqzq" * 20), "bpe", vocab_size=300, context=8)
    assert corpus.tokenizer.vocab_size > 256
    assert "zq" not in corpus.tokenizer.to_dict()["tokenizer"]["model"]["vocab"]
