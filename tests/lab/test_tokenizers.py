"""Tokenizers: there and back, bytes of each id, saved and loaded."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.errors import ArgumentValueError, FileError, MissingExtraError
from elbowroom.lab import tokenizers as module
from elbowroom.lab.tokenizers import (
    BPE,
    Bytes,
    Characters,
    Twins,
    load_tokenizer,
    train_tokenizer,
    training_key,
)

TEXT = "Größe, μέγεθος, 大きさ, 😀 — to be or not to be, that is the question. " * 20
ALL = [Characters.train([TEXT]), Bytes(), BPE.train([TEXT], 300), Twins(Characters.train([TEXT]))]
every = pytest.mark.parametrize("tokenizer", ALL, ids=lambda t: type(t).__name__)
texts = st.text(st.characters(exclude_categories=("Cs",)))


@every
def test_there_and_back(tokenizer):
    ids = tokenizer.encode(TEXT)
    assert ids.dtype == np.int64
    assert 0 <= ids.min() <= ids.max() < tokenizer.vocab_size
    assert tokenizer.decode(ids) == tokenizer.decode(ids.tolist()) == TEXT
    assert tokenizer.encode("").shape == (0,)
    assert tokenizer.decode([]) == ""


@every
def test_bytes_of_ids_add_up(tokenizer):
    lengths = tokenizer.byte_lengths()
    assert lengths.shape == (tokenizer.vocab_size,)
    assert lengths[tokenizer.encode(TEXT)].sum() == len(TEXT.encode())


@every
def test_saved_and_loaded(tokenizer, tmp_path):
    path = tokenizer.save(tmp_path / "t.json")
    loaded = load_tokenizer(path)
    assert type(loaded) is type(tokenizer)
    assert loaded.to_dict() == tokenizer.to_dict()
    np.testing.assert_array_equal(loaded.encode(TEXT), tokenizer.encode(TEXT))
    assert train_tokenizer(str(path), []).to_dict() == tokenizer.to_dict()


@every
def test_ids_outside_are_named(tokenizer):
    for bad in (-1, tokenizer.vocab_size):
        with pytest.raises(ArgumentValueError, match="ids: expected numbers from 0 to"):
            tokenizer.decode([bad])


@given(texts)
def test_bytes_know_every_text(text):
    assert Bytes().encode(text).tolist() == list(text.encode())
    assert Bytes().decode(Bytes().encode(text)) == text


@settings(max_examples=50)
@given(texts)
def test_a_byte_level_encoding_knows_every_text(text):
    ids = ALL[2].encode(text)
    assert ALL[2].decode(ids) == text
    assert ALL[2].byte_lengths()[ids].sum() == len(text.encode())


def test_broken_bytes_decode_to_a_mark():
    assert Bytes().decode([0xC3]) == "\ufffd"


def test_characters_are_the_papers():
    tokenizer = Characters.train(iter(["ba", "dc"]))
    assert tokenizer.characters == "abcd"
    assert tokenizer.encode("dab").tolist() == [3, 0, 1]


def test_an_alphabet_may_have_an_order_of_its_own():
    tokenizer = Characters("zab")
    assert tokenizer.encode("abz").tolist() == [1, 2, 0]


def test_unknown_characters_are_an_error_unless_asked_for():
    with pytest.raises(ArgumentValueError, match=r"'ж' at character 1.*unknown=True"):
        Characters("ab").encode("aж")
    tokenizer = Characters.train(["ab"], unknown=True)
    assert tokenizer.vocab_size == 3
    assert tokenizer.encode("aжz").tolist() == [0, 2, 2]
    assert tokenizer.decode([0, 2]) == "a\ufffd"
    assert tokenizer.byte_lengths().tolist() == [1, 1, 1]


@pytest.mark.parametrize("bad", ["", "aa"])
def test_an_alphabet_has_each_once(bad):
    with pytest.raises(ArgumentValueError, match="characters: expected at least one"):
        Characters(bad)


def test_twins_have_ids_of_their_own():
    tokenizer = Twins(Characters("ab"), copies=3)
    assert tokenizer.vocab_size == 6
    assert tokenizer.encode("ba", copy=2).tolist() == [5, 4]
    assert tokenizer.decode([5, 0, 3]) == "bab"
    assert tokenizer.byte_lengths().tolist() == [1] * 6
    with pytest.raises(ArgumentValueError, match="copy: expected a number from 0 to 2"):
        tokenizer.encode("a", copy=3)


def test_training_is_deterministic():
    pieces = [TEXT[i : i + 100] for i in range(0, len(TEXT), 100)]
    assert BPE.train(pieces, 400).to_dict() == BPE.train(iter(pieces), 400).to_dict()


def test_a_small_text_gives_a_small_vocabulary():
    assert BPE.train(["ab"], 1000).vocab_size == 257
    with pytest.raises(ArgumentValueError, match="vocab_size"):
        BPE.train(["ab"], 255)


def other_tokenizer(**changes):
    """Return a description that is not byte-level, as sentencepiece's are."""
    vocabulary = {"<unk>": 0, "<0xE2>": 1, "▁to": 2, "be": 3, "é": 4, "<pad>": 5}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": {
            "direction": "Right",
            "max_length": 1,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "padding": None,
        "added_tokens": [
            {"id": 5, "content": "<pad>", "special": True, **added},
            {"id": 6, "content": "[name]", "special": False, **added},
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": "always",
            "split": True,
        },
        "post_processor": None,
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
        **changes,
    }


def test_a_tokenizer_from_elsewhere(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(other_tokenizer()))
    tokenizer = BPE.from_file(path)
    assert tokenizer.vocab_size == 7
    assert tokenizer.byte_lengths().tolist() == [5, 1, 3, 2, 2, 0, 6]
    assert tokenizer.encode("to to to").tolist() == [2, 2, 2]  # its truncation is switched off
    assert load_tokenizer(path).to_dict() == tokenizer.to_dict()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected a JSON object, got a list"),
        ("{}", "neither a known kind nor a model"),
        ('{"kind": "characters"}', "not a tokenizer's file"),
        ('{"kind": "characters", "characters": "aa", "unknown": false}', "each once"),
        ('{"kind": "twins", "base": 3, "copies": 2}', "not a tokenizer's file"),
        ('{"model": {"type": "of my own"}}', "not the content of a tokenizer.json"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(FileError, match=rf"t\.json: .*{message}"):
        load_tokenizer(path)


def test_missing_and_wrong_files():
    with pytest.raises(FileError, match="cannot be read"):
        load_tokenizer("nowhere.json")
    with pytest.raises(FileError, match=r"nowhere\.json: cannot be read"):
        BPE.from_file("nowhere.json")


def test_by_name():
    assert train_tokenizer("characters", ["ba"]).to_dict()["characters"] == "ab"
    assert train_tokenizer("bytes", []).vocab_size == 256
    assert train_tokenizer("bpe", [TEXT], vocab_size=260).vocab_size == 260
    with pytest.raises(ArgumentValueError, match="'characters', 'bytes', 'bpe' or"):
        train_tokenizer("words", [TEXT])


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    for make in (lambda: BPE.train([TEXT], 300), lambda: training_key("bpe", 300)):
        with pytest.raises(MissingExtraError, match=r"elbowroom\[hf\]"):
            make()
    assert training_key("bytes", 300) == ["bytes"]
