"""Man pages out of Debian packages made by hand."""

from __future__ import annotations

import gzip
import io
import lzma
import subprocess
import tarfile

import pytest

from elbowroom.errors import ArgumentValueError, FileError
from elbowroom.lab.corpora import debian, manpages

PAGES = {
    "./usr/share/man/mk/man1/ls.1.gz": gzip.compress(".SH ИМЕ\nls\n".encode()),
    "./usr/share/man/mk/man1/cat.1": ".SH ИМЕ\ncat\n".encode(),
    "./usr/share/man/mk/man1/empty.1": b'.\\" nothing\n',
    "./usr/share/doc/manpages-mk/copyright": b"free",
}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ELBOWROOM_CACHE", str(tmp_path / "cache"))


def tar(pages):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in pages.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("./usr/share/man/mk/man1/dir.1.gz")
        link.type, link.linkname = tarfile.SYMTYPE, "ls.1.gz"
        archive.addfile(link)
    return out.getvalue()


def ar(**members):
    out = b"!<arch>\n"
    for name, content in members.items():
        name = name.replace("__", ".")
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        out += content + b"\n" * (len(content) % 2)
    return out


def folder_with(tmp_path, deb, name="manpages-mk_1.0_all.deb"):
    (tmp_path / name).write_bytes(deb)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("data__tar__xz", lzma.compress),
        ("data__tar__gz", gzip.compress),
        ("data__tar", bytes),
    ],
)
def test_pages_of_a_package(tmp_path, name, pack):
    members = {"debian-binary": b"2.0", "control__tar": b"odd", name: pack(tar(PAGES))}
    texts = manpages(["mk"], path=folder_with(tmp_path, ar(**members)))
    assert [d.read() for d in texts.documents["mk"]] == ["ИМЕ\ncat\n", "ИМЕ\nls\n"]
    assert texts.notes[0].startswith("manpages-mk_1.0_all.deb: SHA-256 ")


def test_zstd_is_left_to_dpkg(tmp_path, monkeypatch):
    path = folder_with(tmp_path, ar(data__tar__zst=b"packed"))
    monkeypatch.setattr(debian.shutil, "which", lambda name: None)
    with pytest.raises(FileError, match="needs dpkg-deb"):
        manpages(["mk"], path=path)
    monkeypatch.setattr(debian.shutil, "which", lambda name: name)
    answers = iter(
        [
            subprocess.CompletedProcess([], 0, tar(PAGES), b""),
            subprocess.CompletedProcess([], 2, b"", b"dpkg-deb: bad"),
        ]
    )
    monkeypatch.setattr(debian.subprocess, "run", lambda *a, **k: next(answers))
    assert len(manpages(["mk"], path=path).documents["mk"]) == 2
    with pytest.raises(FileError, match="dpkg-deb: bad"):
        manpages(["mk"], path=path)


@pytest.mark.parametrize(
    ("deb", "message"),
    [
        (b"", "no ar archive"),
        (ar(control__tar=b""), "no data in it"),
        (ar(data__tar__xz=lzma.compress(tar(PAGES))[:-40]), "damaged, or not a Debian package"),
        (ar(data__tar=tar(PAGES)[:700]), "damaged"),
        (ar(data__tar__gz=b"no gzip"), "damaged"),
        (ar(data__tar=tar({"usr/share/man/mk/man1/x.1.gz": b"no gzip"})), "damaged"),
        (ar(data__tar=tar({"usr/share/man/mk/man1/x.1": b"ab\xff"})), r"x\.1, .* byte 2; .*repl"),
        (ar(data__tar=tar({})), "the text of 'mk' is empty"),
        (b"!<arch>\n" + b" " * 60, "no data|damaged"),
    ],
)
def test_damaged_packages_are_named(tmp_path, deb, message):
    with pytest.raises(FileError, match=message):
        manpages(["mk"], path=folder_with(tmp_path, deb))


def test_bad_bytes_can_be_replaced(tmp_path):
    deb = ar(data__tar=tar({"usr/share/man/mk/man1/x.1": b"ab\xff"}))
    texts = manpages(["mk"], path=folder_with(tmp_path, deb), errors="replace")
    assert texts.documents["mk"][0].read() == "ab\ufffd\n"


def test_languages_have_packages(tmp_path):
    with pytest.raises(ArgumentValueError, match="languages: expected some of cs, da"):
        manpages(["tlh"])
    with pytest.raises(ArgumentValueError, match="got none"):
        manpages([])
    with pytest.raises(FileError, match=r"expected a file manpages-el_\*\.deb, found none"):
        manpages(["el"], path=folder_with(tmp_path, b""))
    with pytest.raises(FileError, match="Where there is no apt-get"):
        manpages(["el"], offline=True)


def test_the_cache_is_used(tmp_path):
    (tmp_path / "cache").mkdir()
    folder_with(tmp_path / "cache", ar(data__tar=tar(PAGES)), "manpages-mk.deb")
    assert manpages(["mk"], offline=True).characters == {"mk": 15}
