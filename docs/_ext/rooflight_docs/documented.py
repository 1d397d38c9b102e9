"""What the source says of a class: its fields with their types, defaults and the words below them; its methods.

Python forgets the strings that stand below fields, so the source is read again.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Field:
    """A field of a struct or dataclass. `default` is `None` where a value must be given."""

    name: str
    type: str
    default: str | None
    about: str


@dataclass(frozen=True)
class Method:
    """A public method or, without parentheses, a property."""

    name: str
    signature: str
    about: str


def fields(cls: type) -> list[Field]:
    """Of the class and those above it, in the order of the source."""
    found: dict[str, Field] = {}
    for one in reversed(_own_classes(cls)):
        for statement, below in _with_next(_body(one)):
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            name = statement.target.id
            if name.startswith("_") or "ClassVar" in ast.unparse(statement.annotation) or name == "_":
                continue
            default = None if statement.value is None else _default(statement.value)
            type_, about = _defined(statement.annotation)
            found[name] = Field(name, ast.unparse(type_), default, _text(below) or about)
    return list(found.values())


def methods(cls: type) -> list[Method]:
    """What the class offers beside its fields, dunder methods left out, in the order of the source."""
    found: dict[str, Method] = {}
    for one in reversed(_own_classes(cls)):
        for name, member in vars(one).items():
            if name.startswith("_") or name in getattr(cls, "__struct_fields__", ()):
                continue
            if isinstance(member, (property, cached_property)):
                function = member.fget if isinstance(member, property) else member.func
                found[name] = Method(name, f"{name}: {returned(function)}", inspect.getdoc(function) or "")
            elif inspect.isfunction(member):
                found[name] = Method(name, f"{name}{signature(member, bound=True)}", inspect.getdoc(member) or "")
    return list(found.values())


def words_below(module: ModuleType, name: str) -> str:
    """The string below a name of a module."""
    for statement, below in _with_next(ast.parse(inspect.getsource(module)).body):
        targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return _text(below)
    return ""


def signature(function: Any, *, bound: bool = False) -> str:
    """As it is written in the source: `(path: str | Path, *, force: bool = False) -> Path`."""
    found = inspect.signature(function)
    parameters = list(found.parameters.values())[1 if bound else 0 :]
    parts: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not any(p.startswith("*") for p in parts):
            parts.append("*")
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        kind = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
        default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
        parts.append(f"{star}{parameter.name}{kind}{default}")
    back = "" if found.return_annotation in (inspect.Signature.empty, "None") else f" -> {found.return_annotation}"
    whole = f"({', '.join(parts)}){back}"
    if len(whole) <= 96:
        return whole
    return "(\n    " + ",\n    ".join(parts) + f",\n){back}"


def returned(function: Any) -> str:
    """The type a function gives, as written."""
    found = inspect.signature(function).return_annotation
    return "Any" if found is inspect.Signature.empty else str(found)


def _own_classes(cls: type) -> list[type]:
    return [one for one in cls.__mro__ if one.__module__.startswith("rooflight")]


@cache
def _body(cls: type) -> list[ast.stmt]:
    """Found in its module: from Python 3.13 on, nothing tells where a struct of msgspec begins."""
    return next(
        statement.body
        for statement in ast.walk(_module(cls.__module__))
        if isinstance(statement, ast.ClassDef) and statement.name == cls.__name__
    )


@cache
def _module(name: str) -> ast.Module:
    return ast.parse(inspect.getsource(import_module(name)))


def _with_next(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.stmt | None]]:
    return zip(body, [*body[1:], None], strict=True)


def _text(statement: ast.stmt | None) -> str:
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    held = statement.value.value if is_text else ""  # type: ignore[union-attr]
    return inspect.cleandoc(held) if isinstance(held, str) else ""


def _defined(annotation: ast.expr) -> tuple[ast.expr, str]:
    """The type and the words of a field that is an option too: `Annotated[int, Field("Samples in a step.")]`."""
    match annotation:
        case ast.Subscript(value=ast.Name("Annotated"), slice=ast.Tuple([type_, ast.Call(args=[ast.Constant(help)])])):
            return type_, str(help)
    return annotation, ""


def _default(value: ast.expr) -> str:
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "msgspec.field"):
        for keyword in value.keywords:
            if keyword.arg == "default_factory":
                return f"{ast.unparse(keyword.value)}()"
            if keyword.arg == "default":
                return ast.unparse(keyword.value)
    return ast.unparse(value)


def _value(default: Any) -> str:
    return "..." if callable(default) else repr(default)
