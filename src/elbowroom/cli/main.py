"""The entry point of the command ``elbowroom``: finds the command, runs it, words its errors."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import platform
import re
import sys
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any

from elbowroom.errors import ElbowroomError

COMMANDS = {  # each a module of this package, loaded when it is called
    "compare": "cross-entropy and ours side by side on your texts, with a report",
    "train": "train the runs that a configuration describes",
    "evaluate": "evaluate trained runs, language by language",
    "sample": "let a trained run write",
    "reproduce": "the paper's tables and figures, beside its numbers",
    "margin": "how wide the margin should be: in closed form, or effective for a model",
    "bench": "how fast head and loss are here, beside the peers that are installed",
}

HELP = """\
usage: elbowroom COMMAND ... [--debug]

Train language models whose rare tokens are not pushed aside by cross-entropy.

commands:
{commands}

options:
  -h, --help   show this, or the help of a command: elbowroom COMMAND --help
  --version    show versions
  --debug      show where an error comes from; may stand anywhere

examples:
  elbowroom compare
  elbowroom compare texts/ --seeds 4
  elbowroom margin closed --vocab-size 50257 --top-p 0.999
"""


class UsageError(ElbowroomError):
    """The command line cannot be understood."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0, or 2 or 130 with one line on stderr.

    2 is an error; 130 says that the command was interrupted.

    Args:
        argv: the arguments, those of the process if None.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read us has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except KeyboardInterrupt as stop:
        print(f"elbowroom: {str(stop) or 'interrupted'}", file=sys.stderr)
        return 130
    except Exception as error:
        if debug:
            raise
        print(f"elbowroom: {_one_line(error)}", file=sys.stderr)
        return 2
    return 0


def _run(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        lines = [f"  {name:<{width}}   {text}" for name, text in COMMANDS.items()]
        print(HELP.format(commands="\n".join(lines)), end="")
        return
    if arguments[0] == "--version":
        print(_versions())
        return
    name, *rest = arguments
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"commands: {', '.join(COMMANDS)}"
        raise UsageError(f"no command {name!r}; {hint}")
    _parse(_load(name), f"elbowroom {name}", rest).run()


def _load(name: str) -> ModuleType:
    """Import a command's module; say clearly which package it lacks."""
    try:
        return importlib.import_module(f"elbowroom.cli.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("elbowroom"):
            raise
        raise ElbowroomError(
            f"the command line needs the package {error.name!r}, which is not installed; "
            f"run: pip install {error.name}"
        ) from error


def _parse(module: ModuleType, prog: str, arguments: list[str]) -> Any:
    """Make the command from its arguments; its usage errors come as one line."""
    import tyro

    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
    complaint = io.StringIO()
    options = getattr(module.Command, "__dataclass_fields__", {})
    words: list[str] = []
    if "fields" in options:  # a command that takes the fields of a configuration
        arguments, words = apart(arguments, options)
    try:
        with contextlib.redirect_stderr(complaint):
            command, rest = tyro.cli(
                module.Command,
                prog=prog,
                description=module.__doc__,
                args=arguments,
                config=config,
                return_unknown_args=True,
            )
    except SystemExit as stop:
        if not stop.code:  # help was asked for, and printed
            return _Done()
        raise UsageError(_unbox(complaint.getvalue(), prog)) from None
    if rest:
        what = "no option" if rest[0].startswith("-") else "unexpected"
        raise UsageError(f"{what} {rest[0]!r}; see {prog} --help")
    if words:
        command.fields = fields(words)
    return command


def apart(arguments: Sequence[str], options: Collection[str]) -> tuple[list[str], list[str]]:
    """Return a command's own arguments, and the fields of a configuration with their values.

    Example:
        >>> apart(["--training.steps", "5", "a.yaml", "--quiet"], ["quiet"])
        (['a.yaml', '--quiet'], ['--training.steps', '5'])
    """
    own: list[str] = []
    found: list[str] = []
    left = list(arguments)
    while left:
        word = left.pop(0)
        name, equals, _ = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name.replace("-", "_") in (*options, "help"):
            own.append(word)
            continue
        found.append(word)
        if not equals and left and not left[0].startswith("--"):
            found.append(left.pop(0))
    return own, found


def fields(words: Sequence[str]) -> dict[str, Any]:
    """Return ``--training.steps 100 --model.tied=false`` as nested mappings of values.

    Values are read as in a YAML file: numbers, true and false, lists in brackets, words.

    Example:
        >>> fields(["--training.steps", "100", "--model.tied=false", "--loss.margin=.inf"])
        {'training': {'steps': 100}, 'model': {'tied': False}, 'loss': {'margin': inf}}
    """
    found: dict[str, Any] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("--") or len(word) < 3:
            raise UsageError(f"unexpected {word!r}; fields are written --training.steps 100")
        name, equals, text = word[2:].partition("=")
        if not equals:
            if not left or left[0].startswith("--"):
                raise UsageError(f"--{name}: expected a value after it")
            text = left.pop(0)
        *path, last = name.replace("-", "_").split(".")
        place = found
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise UsageError(f"--{name}: a value for {part!r} as a whole was given before it")
        place[last] = read(text)
    return found


def read(text: str) -> Any:
    """Return the value that a word means in a YAML file.

    Example:
        >>> read("2"), read("[1, 2]"), read("null"), read("a: [")
        (2, [1, 2], None, 'a: [')
    """
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


class _Done:
    def run(self) -> None:
        """Do nothing more."""


def _unbox(text: str, prog: str) -> str:
    """Return, as one line, what tyro complains about in its box, and where help is.

    The box has a title in its frame (where the output cannot show frames, in a block of its own),
    then blocks between rules: the complaint, maybe more about the argument, where help is.
    """
    blocks = [""]
    for line in text.splitlines():
        inner = line.strip("│ ")
        if line.startswith(("╭", "╰")):
            continue
        if inner and set(inner) <= {"─", "-"}:
            blocks.append("")
        else:
            blocks[-1] += f" {inner}"
    blocks = [" ".join(block.split()) for block in blocks[0 if "╭" in text else 1 :]]
    complaint = (blocks or [""])[0].partition(" Got errors:")[0].replace("{None}|", "").rstrip(".")
    help_of = re.search(rf"{prog}[a-z -]* --help", " ".join(blocks))
    see = help_of.group() if help_of else f"{prog} --help"
    return f"{complaint or 'the arguments cannot be understood'}; see {see}"


def _one_line(error: Exception) -> str:
    """Return an error as one line; an error that is not ours says so."""
    text = " ".join(str(error).split())
    if isinstance(error, ElbowroomError):
        return text
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"unexpected {type(error).__name__}: {text}; run again with --debug to see where"


def _versions() -> str:
    import torch

    from elbowroom.provenance import version

    python = platform.python_version()
    return f"elbowroom {version()} (torch {torch.__version__}, Python {python})"


if __name__ == "__main__":
    sys.exit(main())
