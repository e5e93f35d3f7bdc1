"""Data sets of the hub, with a stand-in for the package that streams them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from elbowroom.errors import ArgumentValueError, FileError, MissingExtraError
from elbowroom.lab.corpora import hub
from elbowroom.lab.corpora import hub as function

module = sys.modules[function.__module__]


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Offer a data set of endless rows; return what was asked for."""
    monkeypatch.setenv("ELBOWROOM_CACHE", str(tmp_path))
    asked = []

    def load_dataset(name, configuration, *, split, streaming):
        asked.append((name, configuration, split, streaming))
        if configuration == "nowhere":
            raise ValueError("BuilderConfig 'nowhere' not found")
        if configuration == "finite":
            return [{"text": "abc"}]
        return ({"text": f"{configuration} {i}\r\n"} for i in range(10**9))

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: True)
    return asked


def test_so_many_characters_of_each_language(asked):
    seen = []
    texts = hub("a/b", ["de", "mk"], characters=15, progress=lambda *x: seen.append(x))
    assert texts.characters == {"de": 13, "mk": 13}  # line ends are one character in the text
    assert [d.read() for d in texts.documents["mk"]] == ["mk 0\n", "mk 1\n", "mk "]
    assert asked == [("a/b", "de", "train", True), ("a/b", "mk", "train", True)]
    assert seen[-1] == (15, 15)


def test_what_was_streamed_is_kept(asked, monkeypatch):
    first = hub("a/b", ["de"], characters=15)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    again = hub("a/b", ["de"], characters=15, offline=True)
    assert again.fingerprint == first.fingerprint
    assert hub("a/b", ["de"], characters=15).notes == first.notes
    assert len(asked) == 1
    with pytest.raises(MissingExtraError, match=r"elbowroom\[hf\]"):
        hub("a/b", ["de"], characters=16)
    with pytest.raises(FileError, match="offline was asked for"):
        hub("a/b", ["de"], characters=16, offline=True)


def test_a_data_set_of_one_language(asked):
    texts = hub("a/b", characters=9, split="test")
    assert texts.languages == ("b",)
    assert asked == [("a/b", None, "test", True)]
    assert hub("a/b", ["finite"]).characters == {"finite": 3}


def test_failures_are_told(asked, tmp_path):
    with pytest.raises(FileError, match=r"the hub's data set a/b nowhere: ValueError: Builder"):
        hub("a/b", ["nowhere"])
    with pytest.raises(FileError, match="no column 'body'; pass column="):
        hub("a/b", ["de"], column="body")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ArgumentValueError, match="name"):
        hub("")
    with pytest.raises(ArgumentValueError, match="characters"):
        hub("a/b", characters=0)
