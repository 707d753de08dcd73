"""The one error family. Each member is also the built-in exception it refines."""

from __future__ import annotations

import re
from collections.abc import Mapping


class TcgemmError(Exception):
    """Base of every error that tcgemm raises on purpose."""


class OperandError(TcgemmError, ValueError):
    """An operand or argument has a wrong value: shapes that do not fit, overlapping memory, ..."""


class OperandTypeError(TcgemmError, TypeError):
    """An operand or argument has a wrong type or dtype."""


class UnsupportedError(TcgemmError, NotImplementedError):
    """The call is well formed, but the named kernel or backend refuses it; the message says why."""


class UnknownNameError(TcgemmError, LookupError):
    """No backend, kernel, suite or GPU of that name; the message lists those that exist."""


class ToolchainError(TcgemmError, RuntimeError):
    """A compiler, GPU or driver that is needed is missing or failed; the message names the cure."""


class PeerError(TcgemmError, RuntimeError):
    """A call over several ranks could not end: another rank failed, or asks for something else."""


class MissingExtraError(TcgemmError, ImportError):
    """A package that was left out of the installation is needed; the message says how to add it."""


class ResultsError(TcgemmError, ValueError):
    """A results folder or file cannot be used: unwritable, foreign, or of another schema."""


def renamed(error: TcgemmError, names: Mapping[str, str]) -> TcgemmError:
    """The error of an operand, whose message calls it as the caller does.

    Args:
        names: of operands in the message, and what the caller calls them.
    """
    word = re.compile(rf"(?<![\w'\"])({'|'.join(names)})(?![\w'\"])")
    return type(error)(word.sub(lambda found: names[found[0]], str(error)))


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type's name where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
