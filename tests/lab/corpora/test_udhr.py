"""The declaration out of a tarball made by hand."""

from __future__ import annotations

import io
import sys
import tarfile

import pytest

from elbowroom.errors import ArgumentValueError, FileError
from elbowroom.lab.corpora import udhr
from elbowroom.lab.fetch import file_sha256

HTML = """<!doctype html><html><head><title>Not this</title></head><body>
<h1>Title</h1> stray <header><h2>Preamble</h2></header>
<p>One &amp; <em>two</em>
three</p><p></p><ol><li><p>Four</p></li></ol></body></html>"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "udhr.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for code in ("eng", "deu_1901", "deu_1996"):
            content = HTML.encode()
            info = tarfile.TarInfo(f"package/declaration/{code}.html")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        folder = tarfile.TarInfo("package/declaration/dir.html")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    monkeypatch.setattr(sys.modules[udhr.__module__], "SHA256", file_sha256(path))
    return path


def test_headings_and_paragraphs(path):
    texts = udhr(["eng", "deu_1996"], path=path)
    assert texts.languages == ("eng", "deu_1996")
    assert texts.documents["eng"][0].read() == "Title\nPreamble\nOne & two three\nFour\n"


def test_unknown_codes_show_near_ones(path):
    with pytest.raises(ArgumentValueError, match="'deu'; near it: deu_1996, deu_1901"):
        udhr(["deu"], path=path)
    with pytest.raises(ArgumentValueError, match=r"'xxxxxxx'$"):
        udhr(["xxxxxxx"], path=path)
    with pytest.raises(ArgumentValueError, match="at least one code"):
        udhr([], path=path)
    with pytest.raises(FileError, match="expected a file in the package"):
        udhr(["dir"], path=path)


def test_another_package_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "other.tgz"
    path.write_bytes(b"other")
    with pytest.raises(FileError, match="expected a file with SHA-256 132b50c2"):
        udhr(["eng"], path=path)
    monkeypatch.setenv("ELBOWROOM_CACHE", str(tmp_path))
    with pytest.raises(FileError, match="npm package udhr"):
        udhr(["eng"], offline=True)
