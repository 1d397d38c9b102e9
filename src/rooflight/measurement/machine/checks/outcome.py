"""The answer of a check, and how checks are listed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rooflight.measurement.machine.checks.subject import Subject

Status = Literal["ok", "limited", "no"]


@dataclass(frozen=True)
class Outcome:
    status: Status
    detail: str
    remedy: str = ""
    """What would change it, in words."""
    command: str = ""
    """The line to type, where there is one."""


def ok(detail: str) -> Outcome:
    return Outcome("ok", detail)


def limited(detail: str, remedy: str = "", command: str = "") -> Outcome:
    return Outcome("limited", detail, remedy, command)


def no(detail: str, remedy: str = "", command: str = "") -> Outcome:
    return Outcome("no", detail, remedy, command)


def told(message: str, status: Status = "no") -> Outcome:
    """From the one line of an error, which says what is wrong and, after a colon, what to do about it."""
    depth = 0
    for place, letter in enumerate(message):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0 and message.startswith(": ", place):
            return Outcome(status, message[:place], message[place + 2 :])
    return Outcome(status, message)


@dataclass(frozen=True)
class Check:
    id: str
    what: str
    look: Callable[[Subject], Outcome | None]
    """`None`: does not apply to this machine, and is not shown."""
