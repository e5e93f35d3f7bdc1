"""Every exception that elbowroom raises on purpose.

::

    Exception
      ElbowroomError                 catch this to catch them all
        ArgumentValueError           also a ValueError: right type, impossible value
        ArgumentTypeError            also a TypeError: wrong type, dtype or rule
        BackendError                 also a RuntimeError: the chosen backend cannot run here
        FileError                    also a ValueError: a file is missing or damaged
        MissingExtraError            also an ImportError: an optional dependency is not installed

Messages follow one pattern: the argument, what was expected, what came, and what to do::

    margin: expected a number that is at least 0, got -1.0; for ordinary cross-entropy pass
    float("inf")
"""

from __future__ import annotations


class ElbowroomError(Exception):
    """Base of all exceptions that elbowroom raises on purpose."""


class _ArgumentError(ElbowroomError):
    """An argument is not what it should be; composes the message."""

    def __init__(self, argument: str, expected: str, got: object, fix: str = "") -> None:
        self.argument = argument
        remedy = f"; {fix}" if fix else ""
        super().__init__(f"{argument}: expected {expected}, got {got}{remedy}")


class ArgumentValueError(_ArgumentError, ValueError):
    """An argument has the right type and an impossible value."""


class ArgumentTypeError(_ArgumentError, TypeError):
    """An argument has the wrong type, dtype or kind of rule."""


class BackendError(ElbowroomError, RuntimeError):
    """The chosen backend cannot run here."""


class FileError(ElbowroomError, ValueError):
    """A file is missing, damaged or of another kind than expected."""


class MissingExtraError(ElbowroomError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"run: pip install 'elbowroom[{extra}]'"
        )
