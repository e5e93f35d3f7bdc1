"""Dataclasses from YAML and back: unknown keys, wrong types and doubled keys are clear errors."""

from __future__ import annotations

import difflib
import functools
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import yaml

from elbowroom.errors import ArgumentTypeError, ArgumentValueError, FileError

T = TypeVar("T")
_MERGE = "tag:yaml.org,2002:merge"
_WORDS = {float: "a number", int: "an integer", bool: "true or false", str: "text"}


class _Loader(yaml.SafeLoader):
    """YAML's safe subset; a key that stands twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping whose keys are all different."""
        own = [key for key, _ in node.value if key.tag != _MERGE]  # "<<" puts in what it may hide
        keys = [self.construct_object(key, deep=True) for key in own]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key!r} stands twice", problem_mark=node.start_mark
                )
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds; nothing in it is executed.

    Args:
        path: the file.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        fix = "name a YAML file; elbowroom train --dump-config prints one to start from"
        raise FileError(f"{path}: cannot be read ({error.strerror}); {fix}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: expected UTF-8 text, got another encoding ({error})") from error
    try:
        found = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as the date 2024-99-99
        raise FileError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise FileError(f"{path}: expected a mapping of settings, got {_kind(found)}")
    return found


def write_yaml(values: Mapping[str, Any]) -> str:
    """Return a mapping of plain values as YAML, in its own order."""
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, width=100)


def from_plain(cls: type[T], values: object, where: str = "") -> T:
    """Make a dataclass of a mapping, checking names and types; nested ones likewise.

    A dataclass may offer a class method ``shorthand(value, where)`` for values that are no mapping.
    What it checks itself, when it is made, is named from the top: ``loss.margin.start``.

    Args:
        cls: a dataclass.
        values: a mapping from field names to plain values.
        where: what the mapping is called in messages.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Point:
        ...     x: float
        ...     y: float = 0.0
        >>> from_plain(Point, {"x": 1})
        Point(x=1.0, y=0.0)
    """
    if isinstance(values, cls):
        return values
    if not isinstance(values, Mapping):
        short = getattr(cls, "shorthand", None)
        if short is not None:
            return short(values, where)  # type: ignore[no-any-return]
        raise ArgumentTypeError(where or "settings", "a mapping", _kind(values))
    known = _hints(cls)  # type: ignore[arg-type]  # a class has a hash, whatever it is of
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, 1)
            fix = f"did you mean {near[0]!r}?" if near else ""
            raise ArgumentValueError(_join(where, key), f"one of {', '.join(names)}", key, fix)
    for each in fields(cls):  # type: ignore[arg-type]
        if each.name not in values and each.default is each.default_factory is MISSING:
            raise ArgumentValueError(_join(where, each.name), "a value", "nothing")
    made = {key: _value(known[key], value, _join(where, key)) for key, value in values.items()}
    try:
        return cls(**made)
    except (ArgumentTypeError, ArgumentValueError) as error:
        if where:
            error.argument = _join(where, error.argument)
            error.args = (_join(where, error),)
        raise


def to_plain(value: Any) -> Any:
    """Return a dataclass as mappings, lists and plain values, all fields included."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _value(kind: Any, value: object, where: str) -> Any:
    """Return a value as a type asks for it."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(arguments, value, where)
    if origin is Literal:
        if value not in arguments:
            expected = f"one of {', '.join(map(repr, arguments))}"
            raise ArgumentValueError(where, expected, repr(value))
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ArgumentTypeError(where, "a list", _kind(value))
        item = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(item) != len(value):
            raise ArgumentValueError(where, f"{len(item)} values", f"{len(value)}")
        return tuple(_value(k, v, where) for k, v in zip(item, value, strict=True))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ArgumentTypeError(where, "a mapping", _kind(value))
        return {str(k): _value(arguments[1], v, _join(where, k)) for k, v in value.items()}
    if is_dataclass(kind):
        return from_plain(typing.cast("type[Any]", kind), value, where)
    return _scalar(kind, value, where)


def _union(kinds: tuple[Any, ...], value: object, where: str) -> Any:
    """Return a value as the first of some types that takes it."""
    if value is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    problems: list[Exception] = []
    for kind in kinds:
        try:
            return _value(kind, value, where)
        except (ArgumentTypeError, ArgumentValueError) as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    expected = " or ".join(_WORDS.get(kind, str(kind)) for kind in kinds)
    raise ArgumentTypeError(where, expected, _kind(value))


def _scalar(kind: Any, value: object, where: str) -> Any:
    if kind is float:
        value = _as_float(value)
    right = isinstance(value, kind) and not (kind in (int, float) and isinstance(value, bool))
    if not right or (isinstance(value, float) and math.isnan(value)):
        raise ArgumentTypeError(where, _WORDS.get(kind, kind.__name__), _kind(value))
    return value


def _as_float(value: object) -> object:
    """Return a number as a float, also one that YAML takes for a word: 1e-3, or a quoted .inf."""
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return value
    if isinstance(value, str):
        try:
            return float(value.replace(".inf", "inf"))
        except ValueError:
            return value
    return value


def _join(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Return the types of a class's fields; found out once, since that takes most of the time."""
    return typing.get_type_hints(cls)


def _kind(value: object) -> str:
    return "nothing" if value is None else f"{value!r} ({type(value).__name__})"
