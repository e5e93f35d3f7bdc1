"""Strict reading: every mistake is an error that names where it is; what is written comes back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.errors import ArgumentTypeError, ArgumentValueError, FileError
from elbowroom.lab.strict import from_plain, read_yaml, to_plain, write_yaml


@dataclass(frozen=True)
class Part:
    size: float = 1.0
    kind: Literal["small", "large"] = "small"

    def __post_init__(self):
        if self.size < 0:
            raise ArgumentValueError("size", "at least 0", self.size)

    @classmethod
    def shorthand(cls, value, where=""):
        return from_plain(cls, {"size": value}, where)


@dataclass(frozen=True)
class Whole:
    name: str
    count: int = 1
    flag: bool | None = None
    part: Part = Part()
    pair: tuple[float, float] = (0.0, 1.0)
    names: tuple[str, ...] = ()
    options: dict[str, bool | int | float | str] = field(default_factory=dict)
    other: dict[str, float] = field(default_factory=dict)


def read(text, path):
    path.write_text(text, encoding="utf-8")
    return read_yaml(path)


def whole(**values):
    return from_plain(Whole, {"name": "x", **values})


def test_values_of_all_kinds():
    found = whole(
        flag=True,
        part={"size": "1e-3", "kind": "large"},
        pair=[1, "2e1"],
        names=["a", "b"],
        options={"a": True, "b": 3, "c": 0.5, "d": "1e-3", "e": "log"},
        other={"x": 1},
    )
    assert found.part == Part(0.001, "large")
    assert (found.pair, found.names, found.flag) == ((1.0, 20.0), ("a", "b"), True)
    assert found.options == {"a": True, "b": 3, "c": 0.5, "d": 0.001, "e": "log"}
    assert isinstance(found.options["b"], int)
    assert found.other == {"x": 1.0}
    assert whole(flag=None).flag is None
    assert whole(part=found.part).part is found.part
    assert whole(part=2).part == Part(2.0)  # the shorthand


@pytest.mark.parametrize("word", [".inf", "inf", "+.inf", math.inf])
def test_infinite_numbers(word):
    assert whole(part={"size": word}).part.size == math.inf


WORD = st.text("xyz")  # of figures, a number would come back
BAD = {
    "nmae: expected one of name, .*got nmae; did you mean 'name'": {"nmae": 1},
    "zzz: expected one of name, [a-z, ]*, got zzz$": {"zzz": 1},
    "part.sise: .*did you mean 'size'": {"part": {"sise": 1}},
    r"part.size: expected a number, got 'big' \(str\)": {"part": {"size": "big"}},
    "part.size: expected a number, got nan": {"part": {"size": math.nan}},
    "part.size: expected a number, got True": {"part": True},
    "part.size: expected at least 0, got -1.0": {"part": -1},
    "part.kind: expected one of 'small', 'large', got 'huge'": {"part": {"kind": "huge"}},
    "count: expected an integer, got 1.5": {"count": 1.5},
    "count: expected an integer, got True": {"count": True},
    r"count: expected an integer, got '3' \(str\)": {"count": "3"},
    "flag: expected true or false, got 'yes'": {"flag": "yes"},
    "flag: expected true or false, got 1": {"flag": 1},
    "name: expected text, got nothing": {"name": None},
    "pair: expected 2 values, got 3": {"pair": [1, 2, 3]},
    "pair: expected a list, got 1": {"pair": 1},
    "names: expected a list, got 'ab'": {"names": "ab"},
    "options: expected a mapping, got 3": {"options": 3},
    r"options.a: expected true or false or an integer or a number or text, got \[\]": {
        "options": {"a": []}
    },
    "other.a: expected a number, got 'x'": {"other": {"a": "x"}},
    "other.a: expected a number, got 1000": {"other": {"a": 10**400}},
}


@pytest.mark.parametrize("message", BAD)
def test_mistakes_are_named_with_their_path(message):
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match=f"^{message}") as caught:
        whole(**BAD[message])
    assert str(caught.value).startswith(caught.value.argument + ":")


def test_what_is_not_a_mapping():
    with pytest.raises(ArgumentTypeError, match=r"^settings: expected a mapping, got \[1\]"):
        from_plain(Whole, [1])
    with pytest.raises(ArgumentTypeError, match=r"^here: expected a mapping, got nothing"):
        from_plain(Whole, None, "here")
    with pytest.raises(ArgumentValueError, match=r"^name: expected a value, got nothing"):
        from_plain(Whole, {})
    with pytest.raises(ArgumentValueError, match=r"^size: expected at least 0"):
        from_plain(Part, {"size": -1})


def test_yaml_as_people_write_it(tmp_path):
    text = "a: .inf\nb: 1e-3\nc: [1, 2]\nd: &x {e: 1, f: 2}\ng: {<<: *x, f: 3}\nh: ä\n"
    found = read(text, tmp_path / "x.yaml")
    assert found["a"] == math.inf
    assert found["b"] == "1e-3"  # which from_plain takes for the number it is
    assert found["g"] == {"e": 1, "f": 3}
    assert found["h"] == "ä"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "the key 'a' stands twice"),
        ("a: {b: 1, b: 1}", "the key 'b' stands twice"),
        ("a: [1", "not valid YAML"),
        ("a: 2024-99-99", "not valid YAML: month must be"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("? [a]\n: 1", "not valid YAML"),
        ("[" * 5000, "not valid YAML"),
        ("", "expected a mapping of settings, got nothing"),
        ("- a", "expected a mapping of settings, got"),
    ],
)
def test_files_that_will_not_do(tmp_path, text, message):
    with pytest.raises(FileError, match=message) as caught:
        read(text, tmp_path / "x.yaml")
    assert str(caught.value).startswith(str(tmp_path))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileError, match=r"cannot be read \(No such file.*--dump-config"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(FileError, match="cannot be read"):
        read_yaml(tmp_path)
    (tmp_path / "x.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(FileError, match="expected UTF-8"):
        read_yaml(tmp_path / "x.yaml")


@given(
    st.builds(
        Whole,
        name=st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"])),
        count=st.integers(),
        flag=st.booleans() | st.none(),
        part=st.builds(Part, st.floats(0, allow_nan=False)),
        names=st.lists(st.text("ab: #'\"-", max_size=5)).map(tuple),
        options=st.dictionaries(
            st.sampled_from("abc"), st.booleans() | st.integers() | st.text("xyz")
        ),
    )
)
def test_what_is_written_comes_back(tmp_path_factory, value):
    path = Path(tmp_path_factory.mktemp("yaml")) / "x.yaml"
    path.write_text(write_yaml(to_plain(value)), encoding="utf-8", newline="")
    assert from_plain(Whole, read_yaml(path)) == value


def test_plain_values():
    assert to_plain({"a": (Path("x"), Part())}) == {"a": ["x", {"size": 1.0, "kind": "small"}]}
    assert to_plain(Part) is Part
