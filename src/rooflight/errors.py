"""The one family of errors that rooflight shows to its users.

A `RooflightError` is something the user can mend: its message is one line that says what is wrong, where, and what
to do next. The command line prints it and exits with `exit_code`; anything else that escapes is a bug in rooflight.

An error is written once, and speaks the language of whoever reads it: its text names options as `--loss` and
`--step=train`, which in Python become `loss` and `step="train"`, and on the command line `--loss` and `--step train`.
"""

from __future__ import annotations

from collections.abc import Sequence


class RooflightError(Exception):
    """Base of every error a user may see; `str(error)` is the one line to print, in the words of Python."""

    exit_code = 2

    @property
    def text(self) -> str:
        """As it is written: what wraps an error hands this on."""
        return super().__str__()

    @property
    def on_command_line(self) -> str:
        """The line in options."""
        from rooflight.spec import as_options

        return as_options(self.text)

    def __str__(self) -> str:
        from rooflight.spec import in_python

        return in_python(self.text)


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
            f"after the step, not all of the model could be put back: {'; '.join(what)}; everything else was. Make "
            "the model anew before you use it"
        )
        self.what = tuple(what)


class BadFile(RooflightError):
    """A file that cannot be read, decoded or written."""


class CannotMeasure(RooflightError):
    """Something on this machine stands in the way of a measurement; the line says what, and what would change it."""


class OutOfMemory(CannotMeasure):
    """The step does not fit on the device it really runs on."""
