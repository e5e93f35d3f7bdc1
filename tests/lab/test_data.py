"""From a configuration to its corpus, which is made once, and to how often a language is drawn."""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np
import pytest
import torch

from elbowroom.errors import ArgumentValueError, FileError
from elbowroom.lab import batches, tokens
from elbowroom.lab.batches import Windows
from elbowroom.lab.config import DataConfig
from elbowroom.lab.corpora import shakespeare
from elbowroom.lab.data import corpus_of, shares_of
from elbowroom.lab.fetch import Source
from elbowroom.lab.tokens import Stream
from tests.lab.toy import corpus, run, text

play = sys.modules[shakespeare.__module__]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ELBOWROOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "corpora"


@pytest.fixture
def source(tmp_path):
    """Return a folder with texts of two languages."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "en.txt").write_text(text(300))
    (folder / "de.txt").write_text(text(200, seed=1).replace("a", "ä"), encoding="utf-8")
    return str(folder)


def same(a, b):
    assert (a.languages, a.vocab_size, a.fingerprint) == (b.languages, b.vocab_size, b.fingerprint)
    assert a.default_shares == b.default_shares
    for mine, theirs in zip((*a.train, *a.validation), (*b.train, *b.validation), strict=True):
        assert np.array_equal(mine.ids(), theirs.ids())
    assert np.array_equal(a.group_of_token, b.group_of_token)
    assert np.array_equal(a.byte_lengths, b.byte_lengths)


def test_a_corpus_is_encoded_once(cache, source, monkeypatch):
    seen = []
    data = DataConfig(source=source, validation=0.2)
    first = corpus_of(data, 8, progress=lambda done, total: seen.append((done, total)))
    assert first.languages == ("de", "en")
    assert len(first.validation[1]) == pytest.approx(0.2 * len(text(300)), abs=30)
    assert seen[-1][0] == seen[-1][1] > 1000
    (folder,) = cache.iterdir()
    assert json.loads((folder / "corpus.json").read_text())["fingerprint"] == first.fingerprint

    def again(*_):
        raise AssertionError("encoded again")

    monkeypatch.setattr(tokens, "_encode", again)
    seen.clear()
    found = corpus_of(data, 8, offline=True, progress=lambda *x: seen.append(x))
    same(found, first)
    assert not seen
    assert all(isinstance(stream.tokens, np.memmap) for stream in found.train)


def test_other_texts_and_settings_make_other_corpora(cache, source, tmp_path):
    found = {corpus_of(DataConfig(source=source), 8).fingerprint}
    for change in ({"validation": 0.3}, {"tokenizer": "bytes"}):
        found.add(corpus_of(DataConfig(source=source, **change), 8).fingerprint)
    (tmp_path / "texts" / "en.txt").write_text(text(301))
    found.add(corpus_of(DataConfig(source=source), 8).fingerprint)
    assert len(found) == len(list(cache.iterdir())) == 4
    corpus_of(DataConfig(source=source, vocab_size=7), 20)  # of no tokenizer that is trained
    assert len(list(cache.iterdir())) == 4


def test_the_size_of_a_trained_tokenizer(cache, source):
    data = {"source": source, "tokenizer": "bpe"}
    small, large = (corpus_of(DataConfig(**data, vocab_size=n), 4) for n in (260, 280))
    assert (small.vocab_size, large.vocab_size) == (260, 280)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.usefixtures("cache")
def test_too_short_a_text_for_the_context(source):
    with pytest.raises(ArgumentValueError, match="texts: expected at least 513 tokens"):
        corpus_of(DataConfig(source=source), 512)


def test_offline_nothing_is_downloaded(cache, monkeypatch):
    words = text(400)
    tries = []

    def download(target, progress):
        tries.append(target)
        target.write_text(words)
        progress(len(words), len(words))

    monkeypatch.setattr(play, "SHA256", hashlib.sha256(words.encode()).hexdigest())
    monkeypatch.setattr(play, "SOURCES", (Source("a download", download),))
    data = DataConfig(source="shakespeare")
    with pytest.raises(FileError, match="because offline was asked for"):
        corpus_of(data, 8, offline=True)
    assert not tries
    seen = []
    first = corpus_of(data, 8, progress=lambda *x: seen.append(x))
    assert len(tries) == 1
    assert (len(words), len(words)) in seen
    same(corpus_of(data, 8, offline=True), first)
    assert first.languages == ("hr", "lr")
    assert len(list(cache.iterdir())) == 1


# How often a language is drawn


def shares(texts, **data):
    fixed = {"shares": []} if data.get("sampling") != "fixed" else {}
    found = shares_of(run(data=fixed | data), texts)
    assert found.dtype == torch.float64
    assert float(found.sum()) == pytest.approx(1)
    return found.tolist()


def test_natural_shares_are_the_texts():
    en, de = (len(stream) for stream in corpus(pair=False).train)
    natural = [en / (en + de), de / (en + de)]
    assert shares(corpus(pair=False), sampling="natural") == pytest.approx(natural)
    assert shares(corpus(), sampling="natural") == pytest.approx([0.98, 0.02])  # the pair's


@pytest.mark.parametrize("tau", [1.0, 2.0, float("inf")])
def test_temperature_flattens_them(tau):
    raw = [x ** (1 / tau) for x in (0.98, 0.02)]
    found = shares(corpus(), sampling="temperature", tau=tau)
    assert found == pytest.approx([x / sum(raw) for x in raw])


def test_unimax_knows_how_much_training_draws():
    texts = corpus(pair=False)
    en, de = (len(stream) for stream in texts.train)
    for steps, epochs in ((20, 0.2), (20, 0.4), (40, 0.4)):
        budget = steps * 4 * 8  # windows a step, tokens a window
        assert (en + de) * epochs > budget
        german = min(0.5, de * epochs / budget)
        data = {"sampling": "unimax", "epochs": epochs, "shares": []}
        found = shares_of(run(data=data, training={"steps": steps}), texts).tolist()
        assert found == pytest.approx([1 - german, german])
    assert german < 0.5 == shares(texts, sampling="unimax", epochs=0.4)[1]


def test_fixed_shares_are_as_given():
    assert shares(corpus(), sampling="fixed", shares=[3, 1]) == pytest.approx([0.75, 0.25])
    with pytest.raises(ArgumentValueError, match="a share for each of 2 languages"):
        shares(corpus(), sampling="fixed", shares=[1, 1, 1])


# Where the text lies


def test_text_lies_on_an_accelerator_unless_it_is_large(monkeypatch):
    streams = [Stream(tokens=np.arange(40, dtype=np.uint8))]
    device = torch.device("meta")
    windows = Windows(streams, 4, device)
    assert windows.on_device
    language = torch.zeros(2, 3, dtype=torch.long, device=device)
    ids, target = windows.cut(language, language)
    assert ids.shape == target.shape == (2, 3, 4)
    assert ids.device.type == "meta"
    monkeypatch.setattr(batches, "RESIDENT", 39)
    assert not Windows(streams, 4, device).on_device
