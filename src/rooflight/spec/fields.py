"""What one field of a step is: how its value is read, checked, and written on a command line."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rooflight.errors import BadInput
from rooflight.ledger import StepKind

Verb = Literal["estimate", "measure", "predict", "study"]
Kind = Literal["text", "shape", "number", "choice", "flag", "switch", "modules", "settings"]
EVERY: tuple[Verb, ...] = ("estimate", "measure", "predict", "study")
_TORCH_DTYPES = {
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float64": "fp64",
    "double": "fp64",
}
_SHAPE = re.compile(r"(int:|float:)?[1-9]\d{0,8}(x[1-9]\d{0,8}){0,7}")


@dataclass(frozen=True, eq=False)
class Field:
    """One field of a step. What `definition` says is the first group, the rest is read off it."""

    help: str
    metavar: str | None = None
    keyword: str = ""
    """Python's, where it is not the field's name."""
    verbs: tuple[Verb, ...] = EVERY
    step: StepKind | None = None
    """The only kind of step that it goes with."""
    by_name: bool = False
    """Only for a model that is built by its name: a live module has its own."""
    own: bool = False
    """Python may give the thing itself, which has no name: a loss, an optimizer."""
    kind: Kind | None = None

    name: str = ""
    key: str = ""
    """In files, and as an option: `set` for the field `settings`."""
    choices: tuple[str, ...] = ()
    default: Any = None

    @property
    def option(self) -> str:
        return f"--{self.key.replace('_', '-')}"

    def is_given(self, value: Any) -> bool:
        return bool(value != self.default)

    def words(self, value: Any) -> Iterator[str]:
        """The value on a command line."""
        if self.kind in ("flag", "switch"):
            yield self.option if value else f"--no-{self.option.removeprefix('--')}"
        elif self.kind == "settings":
            for name, text in value.items():
                yield from (self.option, f"{name}={text}")
        else:
            yield from (self.option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value))

    def read(self, value: Any, *, several: bool = False, own: bool = False) -> Any:
        """The value as Python or a file gives it, checked. `several`: more numbers than one may be given. `own`: things
        that have no name may be, too."""
        match self.kind:
            case "number":
                if several and isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
                    sizes = tuple(dict.fromkeys(map(self._number, value)))
                    if not sizes:
                        raise BadInput("missing-value", f"{self.option} has no size in it: give one or more")
                    return sizes[0] if len(sizes) == 1 else sizes
                return self._number(value)
            case "flag" | "switch":
                if type(value).__name__ not in ("bool", "bool_"):  # the second is numpy's
                    raise BadInput("not-a-truth-value", f"{self.option} is True or False, not {value!r}")
                return bool(value)
            case "choice":
                if own and self.own and is_own(value):
                    return value
                text = _TORCH_DTYPES.get(name := str(value).removeprefix("torch."), name)
                if text not in self.choices:
                    raise BadInput(
                        "unknown-choice", f"{self.option} must be one of {', '.join(self.choices)}, got {value!r}"
                    )
                return text
            case "modules":
                return module_names(value)
            case "settings":
                return settings_of(value)
            case "shape":
                text = value if isinstance(value, str) else _shape_text(value)
                if not _SHAPE.fullmatch(text.strip().lower()):
                    raise BadInput(
                        "bad-shape",
                        f"{self.option} {text!r} is no shape: write the sizes of one sample, without the "
                        "batch, as in 3x224x224 or int:128",
                    )
                return text.strip().lower()
        if not isinstance(value, str) or not value.strip():
            raise BadInput("bad-option-type", f"{self.option} must be a text, got {value!r}")
        return value

    def _number(self, value: Any) -> int:
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None:
            raise BadInput("not-a-whole-number", f"{self.option} must be a whole number, got {value!r}")
        if number < 1:
            raise BadInput("out-of-range", f"{self.option} must be at least 1, got {number}")
        return number


def is_own(value: Any) -> bool:
    """Is it a loss or an optimizer itself: a function, a module, a class, or an optimizer that is there already?"""
    return not isinstance(value, str) and (callable(value) or hasattr(value, "param_groups"))


@dataclass(frozen=True)
class CallersOwn:
    """A loss or an optimizer that a caller gave, and of which a ledger tells no more than the name."""

    name: str

    def __str__(self) -> str:
        return self.name

    def __call__(self, *given: Any) -> Any:
        raise BadInput(
            "made-in-python", f"{self.name} was given in Python, and no name says how to make it: give it again there"
        )


def own_name(value: Any) -> str:
    """What a reader calls it: its class, or its function."""
    if isinstance(value, (str, CallersOwn)):
        return str(value)
    function = getattr(value, "func", value)  # of a partial
    name = str(getattr(function, "__name__", type(function).__name__))
    return "lambda" if name == "<lambda>" else name


def module_names(value: str | Sequence[str]) -> tuple[str, ...]:
    """Paths and patterns one by one: they may come as a list, or with commas between them."""
    texts = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    are_names = all(isinstance(text, str) for text in texts)
    parts = [part.strip() for text in texts for part in text.split(",")] if are_names else []
    if not all(parts) or not parts:
        raise BadInput(
            "bad-module-paths", "--checkpoint wants paths of modules such as layer1.0 or h.*, or the word blocks"
        )
    return tuple(dict.fromkeys(parts))


def settings_of(value: Any) -> dict[str, str]:
    """`NAME=VALUE` in a list, or a mapping, whose values may be of any kind."""
    if isinstance(value, Mapping):
        return {
            str(name): ",".join(map(str, setting)) if isinstance(setting, (list, tuple)) else str(setting)
            for name, setting in value.items()
        }
    settings = {}
    for text in value if isinstance(value, (list, tuple)) else [value]:
        name, equals, setting = str(text).partition("=")
        if not equals or not name.strip():
            raise BadInput("bad-setting", f"--set wants NAME=VALUE, as in --set=channels=20,40, got {text!r}")
        settings[name.strip()] = setting.strip()
    return settings


def _shape_text(value: Any) -> str:
    """`3x224x224` of the sizes, or of what `parse_input` gives."""
    try:
        return "x".join(str(operator.index(size)) for size in value)
    except TypeError:
        return str(value)
