"""A folder of texts: which file is which language, and what is refused."""

from __future__ import annotations

import pytest

from elbowroom.errors import FileError
from elbowroom.lab.corpora import folder


def fill(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_txt", ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def read(texts):
    return {k: [d.read() for d in v] for k, v in texts.documents.items()}


def test_one_language_a_file_or_folder(tmp_path):
    fill(tmp_path, fr_txt="un", de__b_txt="zwei", de__a__x_txt="eins", de_txt="drei")
    fill(tmp_path, notes_md="no", **{"de__.hidden_txt": "no", ".git__x_txt": "no"})
    assert read(folder(tmp_path)) == {"de": ["eins", "zwei", "drei"], "fr": ["un"]}
    assert folder(str(tmp_path)).name == f"folder:{tmp_path.name}"


def test_one_file_is_one_language(tmp_path):
    fill(tmp_path, en_txt="one", de_txt="eins")
    assert read(folder(tmp_path / "en.txt")) == {"en": ["one"]}


def test_empty_files_are_left_out_and_noted(tmp_path):
    fill(tmp_path, de__a_txt="", de__b_txt="x")
    texts = folder(tmp_path)
    assert read(texts) == {"de": ["x"]}
    assert texts.notes == ("empty files left out: de/a.txt",)
    fill(tmp_path, fr_txt="", it_txt="")
    with pytest.raises(FileError, match="nothing but empty files for fr, it"):
        folder(tmp_path)


def test_what_is_not_there(tmp_path):
    with pytest.raises(FileError, match=r"no \.txt files; put the text"):
        folder(tmp_path)
    with pytest.raises(FileError, match="found none; check the path"):
        folder(tmp_path / "nowhere")


def test_invalid_bytes_name_the_file(tmp_path):
    fill(tmp_path, de_txt="x")
    (tmp_path / "fr.txt").write_bytes(b"caf\xe9")
    with pytest.raises(FileError, match=r"fr\.txt: expected UTF-8 text, .* byte 3"):
        folder(tmp_path)
    assert read(folder(tmp_path, "replace"))["fr"] == ["caf\ufffd"]
