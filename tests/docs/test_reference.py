"""Whatever a user can name has a description, and stands in the reference that is made from the program.

A verb, an option, a public name, a field of the file format or a device that is added without one fails here.
"""

from __future__ import annotations

import inspect
import sys
from functools import cache
from typing import Any

import msgspec
import pytest

import rooflight
from rooflight import ledger
from rooflight.hardware.device import figures
from rooflight.hardware.devices import known
from rooflight.metrics import QUANTITIES
from rooflight.ops.registry import FORMULAS
from tests.fixtures.paths import ROOT
from tests.fixtures.torch_versions import needs_torch

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_ext"))

from rooflight_docs import REFERENCE, generated  # noqa: E402
from rooflight_docs.api_page import GROUPS, classes, public  # noqa: E402
from rooflight_docs.cli_page import arguments, shown_options, spelled, verbs  # noqa: E402
from rooflight_docs.documented import fields, methods  # noqa: E402
from rooflight_docs.format_page import ALIASES, STRUCTS  # noqa: E402

VERBS = verbs()


@cache
def page(name: str) -> str:
    return generated(name)


def section(text: str, title: str, level: int = 2) -> str:
    """From a heading to the next one of its level."""
    mark = "#" * level
    start = text.index(f"\n{mark} {title}\n")
    end = text.find(f"\n{mark} ", start + 1)
    return text[start : end if end >= 0 else len(text)]


# --- the command line ---


@pytest.mark.parametrize(("verb", "command"), VERBS, ids=[verb for verb, _ in VERBS])
def test_every_verb_is_described(verb: str, command: Any) -> None:
    assert command.help and command.get_short_help_str()
    shown = section(page("cli"), verb)
    for option in shown_options(command):
        assert option.help, f"rooflight {verb} {spelled(option)} has no help"
    for argument in arguments(command):
        assert (
            argument.human_readable_name.strip("[]. ") in command.help.upper() or argument.human_readable_name in shown
        ), f"the help of rooflight {verb} says nothing of {argument.human_readable_name}"


@pytest.mark.parametrize(("verb", "command"), VERBS, ids=[verb for verb, _ in VERBS])
def test_every_option_is_in_the_reference(verb: str, command: Any) -> None:
    shown = section(page("cli"), verb) + section(page("cli"), "Every verb takes")
    missing = [spelled(option) for option in shown_options(command) if f"`{spelled(option)}" not in shown]
    assert missing == []


def test_options_of_the_program_are_in_the_reference() -> None:
    assert len(VERBS) >= 11
    assert sum(len(shown_options(command)) for _, command in VERBS) >= 100
    assert "`--version`" in section(page("cli"), "Every verb takes")


# --- Python ---


def test_every_public_name_is_in_one_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted([*grouped, "__version__"]) == sorted(rooflight.__all__)


@pytest.mark.parametrize("name", [name for name in rooflight.__all__ if name != "__version__"])
def test_every_public_name_is_described(name: str) -> None:
    held = public(name)
    assert _is_described(held), f"rooflight.{name} has no docstring"
    shown = section(page("api"), name, 3)
    first = (inspect.getdoc(held) or "").split(".")[0].split()[0]
    assert first in shown
    if inspect.isfunction(held):
        assert all(parameter in shown for parameter in inspect.signature(held).parameters)


def _is_described(held: Any) -> bool:
    """A dataclass without a docstring has one that Python made of its signature."""
    text = inspect.getdoc(held) or ""
    return bool(text) and not text.startswith(f"{getattr(held, '__name__', '')}(")


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_everything_that_the_api_returns_is_described(cls: type) -> None:
    assert _is_described(cls), f"{cls.__name__} has no docstring"
    assert [one.name for one in fields(cls) if not one.about] == [], f"of {cls.__name__}: add a string below the field"
    assert [one.name for one in methods(cls) if not one.about] == [], f"of {cls.__name__}: add a docstring"
    shown = section(page("api"), cls.__name__, 3)
    missing = [one.name for one in (*fields(cls), *methods(cls)) if f"`{one.name}" not in shown]
    assert missing == []


def test_classes_are_found_through_what_returns_them() -> None:
    found = {cls.__name__ for cls in classes()}
    assert {
        "Ledger",
        "Op",
        "Cost",
        "Predictions",
        "Prediction",
        "Memory",
        "Comparison",
        "Why",
        "Study",
        "StudyRow",
    } <= found
    # One name, one heading.
    assert len(found) == len(classes())


# --- the file format ---


def test_every_structure_of_a_ledger_is_on_the_page() -> None:
    reached: set[type] = set()
    todo: list[Any] = [msgspec.inspect.type_info(ledger.Ledger)]
    while todo:
        info = todo.pop()
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in reached:
                continue
            reached.add(info.cls)
            todo += [field.type for field in info.fields]
        todo += [held for name in ("item_type", "value_type") if (held := getattr(info, name, None)) is not None]
        todo += [*getattr(info, "item_types", ()), *getattr(info, "types", ())]
    assert reached == set(STRUCTS)


@pytest.mark.parametrize("cls", STRUCTS, ids=lambda cls: cls.__name__)
def test_every_field_of_the_format_is_described(cls: Any) -> None:
    found = {one.name: one.about for one in fields(cls)}
    assert list(found) == list(cls.__struct_fields__)
    assert [name for name, about in found.items() if not about] == [], "add a string below the field"
    shown = section(page("file-format"), cls.__name__)
    assert [name for name in found if f"| `{name}` |" not in shown] == []


def test_words_quantities_and_versions_of_the_format_are_on_the_page() -> None:
    text = page("file-format")
    assert [name for name in QUANTITIES if f"| `{name}` |" not in section(text, "Quantities")] == []
    assert all(f"| `{name}` |" in section(text, "Words") for name in ALIASES)
    assert f"version {ledger.FORMAT_VERSION}" in text
    shown = section(text, "Versions")
    told = [f"{new}: " in shown or f"| {new - 1} to {new} |" in shown for new in range(2, ledger.FORMAT_VERSION + 1)]
    assert all(told), "say what the new version changes, in files.py"


# --- formulas and devices ---


@needs_torch(2, 11, why="some operators cannot be called there")
def test_every_formula_is_in_the_reference() -> None:
    text = page("formulas")
    assert [name for name in FORMULAS.names() if f"`{name.removeprefix('aten::')}`" not in text] == []
    # 2 x K multiply-adds for each of M x N results, worked out by hand.
    row = next(line for line in section(text, "Matmul").splitlines() if "`mm`" in line)
    assert "`M * K * N`" in row
    assert "`N * Cout * Ho * Wo * Cin * Kh * Kw`" in section(text, "Convolution")


@pytest.mark.parametrize("device", known(), ids=lambda device: device.name)
def test_every_figure_of_a_device_is_in_the_reference(device: Any) -> None:
    shown = section(page("devices"), device.name)
    assert device.title in shown
    for key, figure in figures(device):
        assert figure.source.replace("<", "&lt;") in shown, f"{key}: {figure.source}"
        assert figure.date in shown
    rows = [line for line in shown.splitlines() if line.startswith("| ")]
    assert len(rows) == len(figures(device)) + 1


@pytest.mark.parametrize("name", REFERENCE)
def test_a_page_of_the_reference_has_a_place_for_it(name: str) -> None:
    text = (DOCS / "reference" / f"{name}.md").read_text()
    assert f"<!-- generated: {name} -->\n" in text and "<!-- end -->\n" in text
