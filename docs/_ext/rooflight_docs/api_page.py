"""Python as a page: every public name, and every class that one gets from it, with fields, properties and methods."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from functools import cached_property
from importlib import import_module
from typing import Any, get_args

import rooflight
from rooflight import errors
from rooflight_docs.documented import fields, methods, returned, signature
from rooflight_docs.markdown import cell, code, table

GROUPS = {
    "Cost, measure, predict": ("estimate", "measure", "predict", "accuracy", "compare", "study", "report"),
    "Calibrations": ("calibration_from",),
    "Files": ("load", "save", "join"),
    "Ops of a program": ("record", "LiveRecording"),
    "Regions of a program": ("region", "regions", "regions_ledger", "save_regions", "Region", "log_training"),
    "Rows": ("Ledger", "Op"),
    "Formulas of one's own": ("formula", "Work", "task", "Task"),
    "Errors": ("RooflightError",),
}
"""Every name of `rooflight.__all__` but the version stands in one of them; a test holds it to that."""


def page() -> str:
    known = classes()
    parts = [
        "```python\nimport rooflight\n```\n",
        "Names are imported when they are used: `import rooflight` takes no time, and imports no torch. "
        f"`rooflight.__version__` is `{rooflight.__version__}`.\n",
    ]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        for name in names:
            held = public(name)
            parts.append(_class(held, level=3) if inspect.isclass(held) else _function(name, held))
    parts.append(_errors())
    parts.append("## What they return\n")
    shown = {public(name) for names in GROUPS.values() for name in names}
    parts += [_class(cls, level=3) for cls in known if cls not in shown]
    return "\n".join(parts)


def public(name: str) -> Any:
    """What the name stands for. A folder of the package may have the same name, and hide it once it is imported."""
    home = rooflight._HOMES.get(name)
    return getattr(rooflight, name) if home is None else getattr(import_module(home), name)


_NOT_PUBLIC = ("Judge",)
"""What `Comparison.judge` gives: the machinery of verdicts, for reports."""


def classes() -> list[type]:
    """All that is public or reached from it: through what a function returns, a field holds or a property gives."""
    found: list[type] = []
    todo: list[type] = []
    for name in rooflight.__all__:
        held = public(name)
        if inspect.isclass(held):
            todo.append(held)
        elif inspect.isfunction(held):
            todo += _named_in(returned(held), held.__module__)
    while todo:
        cls = todo.pop(0)
        if cls in found:
            continue
        found.append(cls)
        for one in fields(cls):
            todo += _named_in(one.type, cls.__module__)
        for name, member in vars(cls).items():
            function = _function_of(member)
            if function is not None and not name.startswith("_"):
                todo += _named_in(returned(function), function.__module__)
    return found


def _function_of(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    if isinstance(member, cached_property):
        return member.func
    return member if inspect.isfunction(member) else None


def _named_in(annotation: str, module: str) -> list[type]:
    """Classes of ours that an annotation names."""
    space = vars(sys.modules[module])
    names = [node.id for node in ast.walk(ast.parse(annotation, mode="eval")) if isinstance(node, ast.Name)]
    found: list[type] = []
    for held in (space.get(name) for name in names):
        found += [held] if inspect.isclass(held) else [one for one in get_args(held) if inspect.isclass(one)]
    return [cls for cls in found if cls.__module__.startswith("rooflight") and cls.__name__ not in _NOT_PUBLIC]


def _function(name: str, function: Any) -> str:
    return f"### {name}\n\n```python\nrooflight.{name}{signature(function)}\n```\n\n{_prose(function)}\n"


def _class(cls: type, *, level: int) -> str:
    lines = [f"{'#' * level} {cls.__name__}\n", f"{_prose(cls)}\n"]
    if rows := [(code(one.name), code(one.type), cell(one.about)) for one in fields(cls)]:
        lines.append(table(("field", "type", "what it is"), rows))
    if rows := [(code(one.signature), cell(_first(one.about))) for one in methods(cls)]:
        lines.append(table(("property or method", "what it gives"), rows))
    return "\n".join(lines)


def _errors() -> str:
    rows = [
        (code(name), cell(_first(inspect.getdoc(held) or "")), str(held.exit_code))
        for name, held in vars(errors).items()
        if inspect.isclass(held) and issubclass(held, errors.RooflightError)
    ]
    return (
        "All of `rooflight.errors`, with the exit code of the command line. `error.code` names the problem for "
        "programs, such as `unknown-device`, and stays when the sentence is improved; `error.options` are the "
        "options that the sentence names.\n\n"
    ) + table(("error", "what went wrong", "exit code"), rows)


def _prose(held: Any) -> str:
    """A docstring as Markdown: examples become code, and the lines of a paragraph one."""
    shown: list[str] = []
    for part in (inspect.getdoc(held) or "").split("\n\n"):
        if part.lstrip().startswith(">>>"):
            lines = [re.sub(r"^\s*(>>>|\.\.\.) ?", "", line) for line in part.splitlines()]
            shown.append("```python\n" + "\n".join(lines) + "\n```")
        else:
            shown.append(" ".join(line.strip() for line in part.splitlines()))
    return "\n\n".join(shown)


def _first(text: str) -> str:
    """Its first paragraph."""
    return text.split("\n\n")[0]
