"""Sources by one line, tiny-shakespeare and Python's help."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from elbowroom.errors import ArgumentTypeError, ArgumentValueError, FileError
from elbowroom.lab.corpora import CorpusSpec, Document, Pair, Texts, load, shakespeare, topics
from elbowroom.lab.fetch import Source
from elbowroom.lab.tokens import prepare

spec_module = sys.modules[load.__module__]
play_module = sys.modules[shakespeare.__module__]
PLAY = "O for a Muse of fire, that would ascend\n" * 20


@pytest.fixture(autouse=True)
def play(tmp_path, monkeypatch):
    """Put another text in the place of tiny-shakespeare."""
    monkeypatch.setenv("ELBOWROOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(play_module, "SHA256", hashlib.sha256(PLAY.encode()).hexdigest())
    source = Source("play", lambda target, progress: Path(target).write_text(PLAY) and None)
    monkeypatch.setattr(play_module, "SOURCES", (source,))
    return tmp_path


def test_shakespeare_is_a_pair_unless_told_otherwise(play):
    texts = load("shakespeare")
    assert texts.languages == ("hr", "lr")
    assert texts.pair == Pair()
    assert load("shakespeare", offline=True).fingerprint == texts.fingerprint
    assert load("shakespeare?pair=none").languages == ("en",)
    disjoint = load("shakespeare?pair=disjoint&share=0.05&part=0.02").pair
    assert disjoint == Pair(share=0.05, protocol="disjoint", part=0.02)


def test_shakespeare_from_a_path(play):
    path = play / "own.txt"
    path.write_text("another text")
    with pytest.raises(FileError, match="expected a file with SHA-256"):
        load(f"shakespeare?path={path}")
    path.write_text(PLAY)
    assert load(f"shakespeare?path={path}", offline=True).characters["hr"] == len(PLAY)


def test_without_shakespeare_the_way_out_is_shown(monkeypatch):
    monkeypatch.setattr(play_module, "SOURCES", ())
    with pytest.raises(FileError, match=r"pass its path .*\(\"pydoc\"\)"):
        load("shakespeare")


def test_a_folder_by_line_path_or_spec(play):
    (play / "texts").mkdir()
    for name, raw in (("de", b"ja"), ("fr", b"oui")):
        (play / "texts" / f"{name}.txt").write_bytes(raw)
    root = play / "texts"
    for spec in (root, str(root), f"folder:{root}", CorpusSpec(kind="folder", target=str(root))):
        assert load(spec).languages == ("de", "fr")
    assert load(f"folder:{root / 'de.txt'}?pair=same").languages == ("hr", "lr")
    (root / "fr.txt").write_bytes(b"\xff")
    with pytest.raises(FileError, match="replace"):
        load(root)
    assert load(f"folder:{root}?errors=replace").characters["fr"] == 1
    strange = play / "what?"
    strange.mkdir()
    (strange / "de.txt").write_text("ja")
    assert load(f"folder:{strange}").languages == ("de",)


def test_the_help_of_python():
    texts = load("pydoc?share=0.1")
    assert texts.languages == ("hr", "lr")
    assert texts.notes[0].startswith("Python 3.")
    assert topics().characters["en"] > 300_000


def test_sources_get_their_options(monkeypatch):
    seen = {}
    result = Texts(name="x", documents={"x": (Document.from_text("x", "x"),)})

    def stand_in(name):
        def source(*args, **kwargs):
            seen[name] = (args, kwargs)
            return result

        return source

    for name in ("manpages", "udhr", "hub"):
        monkeypatch.setattr(spec_module, name, stand_in(name))
    common = {"offline": False, "progress": None}
    load("manpages:de,pt-br?path=debs&errors=replace")
    assert seen["manpages"] == ((("de", "pt-br"),), {"path": "debs", "errors": "replace", **common})
    load("udhr:eng,cym", offline=True)
    assert seen["udhr"] == ((("eng", "cym"),), {"path": None, "offline": True, "progress": None})
    load("hf:owner/name/de,mk?characters=10&column=body&split=test")
    options = {"characters": 10, "column": "body", "split": "test", **common}
    assert seen["hub"] == (("owner/name", ("de", "mk")), options)
    load("hf:owner/name")
    assert seen["hub"][0] == ("owner/name", ())
    load("hf:name")
    assert seen["hub"][0] == ("name", ())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("shakespear", "a folder or file that exists, or one of shakespeare, folder:PATH"),
        ("web:x", "or one of shakespeare"),
        ("shakespeare?pair=twin", "pair: expected 'none' or 'same'"),
        ("shakespeare?share=little", "share: expected a number, got 'little'"),
        ("shakespeare?share=2", "share"),
        ("shakespeare?part=.1", "part: expected None with the same text"),
        ("shakespeare?colour=red", "each of path, pair, .* at most once, got 'colour'"),
        ("shakespeare?share=.1&share=.2", "at most once, got 'share'"),
        ("shakespeare:x", "target: expected nothing for 'shakespeare'"),
        ("pydoc?path=x", "path: expected nothing for 'pydoc'"),
        ("udhr:eng?errors=replace", "errors: expected nothing for 'udhr'"),
        ("udhr:eng?share=.1", "share: expected a pair"),
        ("pydoc?pair=none&part=.1", "share: expected a pair"),
        ("folder:x?errors=maybe", "errors: expected 'strict'"),
    ],
)
def test_lines_that_mean_nothing(line, message):
    with pytest.raises(ArgumentValueError, match=message):
        CorpusSpec.parse(line)


@pytest.mark.usefixtures("unchecked")
def test_specs_are_specs():
    with pytest.raises(ArgumentValueError, match="kind"):
        CorpusSpec(kind="web")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="a line, a path or a CorpusSpec"):
        load(3)  # type: ignore[arg-type]


def test_from_a_line_to_ids(play):
    corpus = prepare(load("shakespeare"))
    assert corpus.vocab_size == 2 * len(set(PLAY))
