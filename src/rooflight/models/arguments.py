"""`--set name=value`: the text of constructor arguments, read strictly by the types that the constructor declares."""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from rooflight.errors import BadInput, suggest

_INTEGER = re.compile(r"[+-]?[0-9]+")
LISTED = 12
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class _WrongText(Exception):
    """The text is no value of the wanted type; the argument says what is wanted."""


def settable(target: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of `target` that text can set, each with its type."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return {}
    hints = _hints(target)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: hints.get(name, type_of(parameter.default))
        for name, parameter in signature.parameters.items()
        if parameter.kind in named and name != "self"
    }


def parse(overrides: Mapping[str, str], types_by_name: Mapping[str, Any], *, owner: str) -> dict[str, Any]:
    """Each override as a value of its argument's type, or one line that says which argument cannot take it."""
    values = {}
    for name, text in overrides.items():
        if name not in types_by_name:
            raise BadInput("unknown-argument", f"{owner} has no argument {name!r}; {_choices(name, types_by_name)}")
        try:
            values[name] = read(text, types_by_name[name])
        except _WrongText as wanted:
            raise BadInput("bad-argument", f"--set={name}={text}: {owner} wants {wanted} for {name}") from None
    return values


def read(text: str, wanted: Any) -> Any:
    """The value that `text` spells, of the type `wanted`; `Any` takes the narrowest type that fits."""
    origin, members = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        return _read_union(text, members)
    if origin is Literal:
        if text not in map(str, members):
            raise _WrongText("one of " + ", ".join(map(str, members)))
        return next(member for member in members if str(member) == text)
    if wanted in (tuple, list) or origin in (tuple, list):
        return _read_sequence(text, origin or wanted, members=members)
    if wanted is int and _INTEGER.fullmatch(text):
        return int(text)
    if wanted is float:
        return _read_float(text)
    if wanted is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if wanted is str:
        return text
    if wanted in (Any, inspect.Parameter.empty):
        return _read_union(text, (int, float, bool, str))
    raise _WrongText(_WORDS.get(wanted, "an object that text cannot name"))


def _read_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _WrongText(_WORDS[float])
    return value


def _read_union(text: str, members: Iterable[Any]) -> Any:
    wants = []
    for member in members:
        if member is type(None):
            if text.lower() == "none":
                return None
            continue
        try:
            return read(text, member)
        except _WrongText as wanted:
            wants.append(str(wanted))
    raise _WrongText(" or ".join(wants))


def _read_sequence(text: str, kind: Any, *, members: tuple[Any, ...]) -> Any:
    member = members[0] if members else int
    length = len(members) if kind is tuple and members and members[-1] is not Ellipsis else None
    noun = _WORDS.get(member, "a value").removeprefix("a ").replace("true or false", "true/false value")
    wanted = f"{length or 'one or more'} {noun}s separated by commas"
    parts = text.split(",")
    if length is not None and len(parts) != length:
        raise _WrongText(wanted)
    try:
        return kind(read(part.strip(), member) for part in parts)
    except _WrongText:
        raise _WrongText(wanted) from None


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    function = target.__init__ if inspect.isclass(target) else target
    try:
        return typing.get_type_hints(function)
    except Exception:  # a user's annotations may name what is not importable; the defaults then give the types
        return {}


def type_of(default: Any) -> Any:
    """The type that text for an argument with this default is read as; anything where the default says nothing."""
    if default is inspect.Parameter.empty or default is None:
        return Any
    return type(default)


def _choices(name: str, known: Mapping[str, Any]) -> str:
    """The nearest names, and all of them where they fit on the line."""
    if not known:
        return "it takes none"
    near = suggest(name, known, otherwise="")
    if len(known) > LISTED:
        return near or f"it takes {', '.join(list(known)[:LISTED])} and {len(known) - LISTED} more"
    return f"{near} (it takes {', '.join(known)})" if near else f"it takes {', '.join(known)}"
