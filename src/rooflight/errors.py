"""The one family of errors that rooflight shows to its users.

A `RooflightError` is something the user can mend: its message is one line that says what is wrong, where, and what
to do next. The command line prints it and exits with `exit_code`; anything else that escapes is a bug in rooflight.

A program reads the type and the `code`, which stay when the sentence is improved. The sentence and its code stand
where the error is raised, and nowhere else.

An error is written once, and speaks the language of whoever reads it: its text names options as `--loss` and
`--step=train`, which in Python become `loss` and `step="train"`, and on the command line `--loss` and `--step train`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, Self

_OPTION = re.compile(r"--[a-z][a-z-]*")


class RooflightError(Exception):
    """Base of every error a user may see; `str(error)` is the one line to print, in the words of Python.

    `code` names the problem in a few words with hyphens, such as `unknown-device`; the same problem has the same code
    wherever it is met. `text` is the line as it is written.
    """

    exit_code = 2

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    @property
    def options(self) -> tuple[str, ...]:
        """The options that the line names, each once and in its order, such as `--batch`."""
        return tuple(dict.fromkeys(_OPTION.findall(self.text)))

    @property
    def on_command_line(self) -> str:
        """The line in options."""
        line: str = _spec().as_options(self.text)
        return line

    def reworded(self, text: str) -> Self:
        """Return this error with another line: what handed it on says more, such as the file that it was met in."""
        error = type(self).__new__(type(self), self.code, text)
        error.__dict__.update(vars(self), text=text)
        return error

    def __str__(self) -> str:
        line: str = _spec().in_python(self.text)
        return line


def _spec() -> Any:
    """What describes a step comes after errors, and knows the names of its options: asked when a line is read."""
    return import_module("rooflight.spec")


class UnknownModel(RooflightError):
    """No model by that name, or its package cannot be imported."""


class BadInput(RooflightError):
    """An option, a shape or a value that cannot be used."""


class TraceFailed(RooflightError):
    """The step could not be run on tensors without data."""


class NotPutBack(RooflightError):
    """Something of a live model is not as it was before the step; the line names it."""

    def __init__(self, what: Sequence[str]) -> None:
        super().__init__(
            "not-put-back",
            f"after the step, not all of the model could be put back: {'; '.join(what)}; everything else was. Make "
            "the model anew before you use it",
        )
        self.what = tuple(what)


class BadFile(RooflightError):
    """A file that cannot be read, decoded or written."""


class CannotMeasure(RooflightError):
    """Something on this machine stands in the way of a measurement; the line says what, and what would change it."""


class OutOfMemory(CannotMeasure):
    """The step does not fit on the device it really runs on."""


# --- parts of lines --------------------------------------------------------------------------------------------------


def suggest(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """The end of a line about an unknown name: the nearest known ones, or `otherwise`, such as where to look."""
    import difflib  # only when something is wrong

    near = difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def one_line(error: BaseException) -> str:
    """What an exception says, without line breaks and the full stop, at most 200 characters; its type if nothing."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
