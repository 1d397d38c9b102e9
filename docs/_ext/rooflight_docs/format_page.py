"""The file format as a page: every structure and field of a ledger, and the quantities that are measured."""

from __future__ import annotations

import inspect
import re
from typing import get_args

from rooflight import files, ledger, metrics
from rooflight_docs.documented import fields, words_below
from rooflight_docs.markdown import cell, code, table

STRUCTS: tuple[type, ...] = (
    ledger.Ledger, ledger.Header, ledger.MathModes, ledger.Module, ledger.Storage, ledger.Op, ledger.Tensor,
    ledger.Cost, ledger.Kernel, ledger.Measurement, ledger.HostCall, ledger.Value, ledger.Note,
)  # fmt: skip
"""In the order in which one meets them."""
ALIASES = ("Phase", "Kind", "StepKind", "Execution", "Category", "KernelKind", "HostCallKind", "Scope", "Dtype")
_UNITS = {"flop": "FLOP", "byte": "byte", "second": "s", "count": "count"}


def page() -> str:
    _, _, about = (inspect.getdoc(files) or "").partition("\n\n")
    parts = [
        f"The format has version {ledger.FORMAT_VERSION}. {_prose(about)}\n",
        "```text\nLedger\n├── header        Header, with MathModes and Note\n├── modules[]     Module\n"
        "├── storages[]    Storage\n├── ops[]         Op, with Tensor and Cost\n├── kernels[]     Kernel, with Value\n"
        "├── measurements[]  Measurement, with Value\n└── host_calls[]  HostCall\n```\n",
        "Fields that have their default are left out of the file. Unknown fields are refused. All units are SI.\n",
    ]
    parts += [_struct(one) for one in STRUCTS]
    parts += ["## Words\n", "`Size` is a whole number from 0, `Count` one from 1. The others are one of a few words:\n"]
    parts += [table(("type", "one of"), ((code(name), cell(_choices(name))) for name in ALIASES))]
    parts += ["## Quantities\n", f"{_prose(inspect.getdoc(metrics) or '')}\n", _quantities()]
    parts += ["## Versions\n", _versions()]
    return "\n".join(parts)


def unit_of(name: str) -> str:
    """The unit that a field's name tells; "" where it is a word or a plain number."""
    if name.endswith("_s"):
        return "s"
    if "bytes" in name:
        return "byte"
    if "flops" in name:
        return "FLOP"
    return "multiply-add" if name == "macs" else ""


def _struct(cls: type) -> str:
    rows = [
        (code(one.name), code(_type(one.type)), unit_of(one.name), _default(one.default), cell(one.about))
        for one in fields(cls)
    ]
    head = ("field", "type", "unit", "default", "what it is")
    return f"## {cls.__name__}\n\n{_prose(inspect.getdoc(cls) or '')}\n\n{table(head, rows)}"


def _type(text: str) -> str:
    """As a reader of JSON says it: `tuple[Op, ...]` is `list[Op]`."""
    while (shorter := re.sub(r"tuple\[(.+), \.\.\.\]", r"list[\1]", text)) != text:
        text = shorter
    return text


def _default(default: str | None) -> str:
    """As JSON has it."""
    if default is None:
        return "required"
    return code({"()": "[]", "''": '""', "None": "null", "False": "false"}.get(default, default.replace("'", '"')))


def _choices(name: str) -> str:
    return ", ".join(f"`{word}`" for word in get_args(getattr(ledger, name)))


def _quantities() -> str:
    rows = [
        (code(one.name), _UNITS[one.unit], cell(one.about), "sum" if one.additive else "–")
        for one in metrics.QUANTITIES.values()
    ]
    return table(("name", "unit", "what it is", "of several ops"), rows)


def _versions() -> str:
    rows = [
        (f"{old} to {old + 1}", cell(inspect.getdoc(migration) or "")) for old, migration in files.MIGRATIONS.items()
    ]
    text = f"From version {files.ONLY_ADDED_SINCE} on: {_prose(words_below(files, 'ONLY_ADDED_SINCE'))}\n"
    return text + (table(("from, to", "what changes when it is read"), rows) if rows else "")


def _prose(text: str) -> str:
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)
