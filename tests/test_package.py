"""What holds for every module: who imports whom, complete ``__all__``, documents, light imports."""

from __future__ import annotations

import ast
import doctest
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import elbowroom

SOURCE = Path(elbowroom.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
# Data flows down this list; a room imports those above it, and itself.
ROOMS = (
    *("errors", "checks", "provenance", "margins", "counts", "init"),
    *("losses", "optim", "metrics", "rivals", "diagnose"),
    *("lab", "hf", "study", "report", "cli"),
)
NEVER_AT_TOP = ("scipy", "sklearn", "matplotlib", "transformers", "pandas", "datasets")
HEAVY = (*NEVER_AT_TOP, "tyro", "rich", "jinja2", "triton")


def name_of(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(("elbowroom", *(part for part in parts if part != "__init__")))


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imports(file: Path, tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a tree imports, with ``from a import b`` as ``a.b``."""
    package = name_of(file).split(".")
    if file.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


modules = pytest.mark.parametrize("file", FILES, ids=name_of)


@modules
def test_a_room_imports_rooms_above_only(file: Path) -> None:
    if file == SOURCE / "__init__.py":
        return  # the public names: it sees all
    room = name_of(file).split(".")[1]
    assert room in ROOMS, f"give {room} its place in this list and in the design"
    for name in imports(file, tree_of(file)):
        first, *rest = name.split(".")
        if first != "elbowroom":
            continue
        assert rest, f"{name}: import the module that is needed, not the whole package"
        assert rest[0] in ROOMS, f"{name}: comes from no room"
        assert ROOMS.index(rest[0]) <= ROOMS.index(room), f"{room} must not import {name}"


@modules
def test_what_is_heavy_is_imported_late(file: Path) -> None:
    room = name_of(file).split(".")[1:2]
    at_top = [node for node in tree_of(file).body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in at_top:
        for name in imports(file, node):
            assert name.split(".")[0] not in NEVER_AT_TOP
    for name in imports(file, tree_of(file)):
        assert name.split(".")[0] not in ("tyro", "rich") or room == ["cli"], "cli alone prints"


def order(name: str) -> tuple[int, str]:
    """Sort constants, classes and functions in this order, as ruff does."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@modules
def test_all_is_complete_and_sorted(file: Path) -> None:
    module = importlib.import_module(name_of(file))
    listed = getattr(module, "__all__", None)
    if listed is not None:
        assert list(listed) == sorted(listed, key=order)
        assert all(hasattr(module, name) for name in listed)
    if file.name == "__init__.py":  # what a package imports, it offers
        nodes = (n for n in tree_of(file).body if isinstance(n, ast.Import | ast.ImportFrom))
        names = {a.asname or a.name for n in nodes for a in n.names if n.module != "__future__"}  # type: ignore[union-attr]
        assert {name for name in names if not name.startswith("_")} == set(listed or ())


def documented(tree: ast.Module) -> Iterator[tuple[str, int, str | None]]:
    """Yield name, line and docstring of the module and of all its classes and functions."""
    yield "module", 1, ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name, node.lineno, ast.get_docstring(node)


def public(body: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Yield public classes and functions, but not the overloads, which have no docstring."""
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        if not any(getattr(d, "id", "") == "overload" for d in node.decorator_list):
            yield node


@modules
def test_everything_public_is_documented(file: Path) -> None:
    tree = tree_of(file)
    assert len(ast.get_docstring(tree) or "") > 20
    for node in public(tree.body):
        assert ast.get_docstring(node), f"{node.name} has no docstring"
        for method in public(node.body) if isinstance(node, ast.ClassDef) else ():
            assert ast.get_docstring(method), f"{node.name}.{method.name} has no docstring"


@modules
def test_examples_hold(file: Path) -> None:
    """Found by reading the source: decorators hide functions from doctest's own search."""
    module = importlib.import_module(name_of(file))
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report: list[str] = []
    for name, line, text in documented(tree_of(file)):
        if text and ">>>" in text:
            globs = {"er": elbowroom, "elbowroom": elbowroom, **vars(module)}
            test = doctest.DocTestParser().get_doctest(text, globs, name, str(file), line)
            runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_public_functions_show_an_example() -> None:
    for name in elbowroom.margins.__all__:
        value = getattr(elbowroom.margins, name)
        if name not in ("Margin", "MarginRule", "EffectiveMargin"):
            assert ">>>" in (value.__doc__ or ""), name


def test_importing_is_light() -> None:
    code = f"import sys, elbowroom; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_version_is_the_projects() -> None:
    text = (SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{elbowroom.__version__}"' in text


def length(function: ast.FunctionDef) -> int:
    """Count the lines of a function without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return 0 if not body else 1 + (body[-1].end_lineno or 0) - body[0].lineno


@modules
def test_files_and_functions_stay_short(file: Path) -> None:
    assert file.read_text(encoding="utf-8").count("\n") <= 500
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.FunctionDef) and "kernels" not in file.parts:
            assert length(node) <= 60, node.name
