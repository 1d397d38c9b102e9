"""The plan of a study: its grids as written in a TOML file, checked strictly, and the cells they make.

Nothing here runs a model: what is wrong with a plan is said before any work begins.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

import msgspec
from msgspec.structs import replace

from rooflight.errors import BadFile, BadInput, RooflightError
from rooflight.files import toml_table
from rooflight.hardware import devices
from rooflight.models import registry
from rooflight.parallel import layout
from rooflight.spec import BOTH_BATCHES, FIELDS, Field, fields_for
from rooflight.study.cell import HERE, PROCESSOR, StudyCell, StudyRow
from rooflight.study.hypotheses import StudyClaim, parse, unknown_names
from rooflight.study.slurm.placement import check_placement

MOST_CELLS = 100_000
"""More of them are a mistake in the grid."""
MOST_BATCH = 1 << 24
_LISTS = ("grid", "claim", "layers")
Setting = str | int | float | bool


def _axis(field: Field) -> tuple[str, Any, Any]:
    """One value, or several; as a file spells it."""
    kinds: dict[str, Any] = {"number": int, "flag": bool, "switch": bool, "settings": dict[str, Setting]}
    kind: Any = kinds.get(field.kind or "", str)
    default = None if field.kind in ("settings", "modules") else field.default
    return field.key, Union[kind, list[kind], None] if default is None else Union[kind, list[kind]], default  # noqa: UP007


_ON = Field("Devices of the database, `.toml` files, a few numbers, or `here`.", name="on", key="on", kind="text")
_FIELDS = {field.key: field for field in (FIELDS["model"], *fields_for("study"), _ON)}
AXES = tuple(_FIELDS)

if TYPE_CHECKING:

    class StudyGrid(msgspec.Struct, frozen=True):
        """All that describes a step, and its device."""

        model: str | list[str]
        """Names, as `rooflight estimate` takes them."""
        on: str | list[str] | None = None
        """Devices of the database, `.toml` files, or `here`."""

else:
    StudyGrid = msgspec.defstruct(
        "StudyGrid",
        [("model", str | list[str]), *map(_axis, (*fields_for("study"), _ON))],
        module=__name__,
        frozen=True,
        forbid_unknown_fields=True,
        omit_defaults=True,
        kw_only=True,
        namespace={"__doc__": "All that describes a step, and its device: each an axis, one value or several."},
    )


Measure = Literal["auto"] | bool
"""`auto`: where the device is here; `True`: every cell that names one device waits for a machine that has it."""


class StudyPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A study as it was asked for."""

    title: str = ""
    """One line."""
    about: str = ""
    """What is to be found out."""
    grid: tuple[StudyGrid, ...]
    """One or several, their cells together."""
    layers: tuple[str, ...] = ()
    """Values of these layers are kept too."""
    measure: Measure = "auto"
    """Which cells are measured."""
    timeout_s: float = 3600.0
    """Limit for the estimate, the prediction or the measurement of a cell."""
    repeat: int = 20
    """Timed steps per measurement, of which the median is taken."""
    slurm: dict[str, Any] = {}
    """What is asked of Slurm, for all cells and for those on a device: see `slurm.placement`."""
    claim: tuple[StudyClaim, ...] = ()
    """What is to be judged."""

    @property
    def cells(self) -> list[StudyCell]:
        """Every cell once, in the order of the grids."""
        by_id: dict[str, StudyCell] = {}
        for cell in itertools.chain.from_iterable(map(_cells_of, self.grid)):
            by_id.setdefault(cell.id, cell)
        return list(by_id.values())


def read_plan(path: Path) -> tuple[StudyPlan, str]:
    """The plan in a TOML file, and its text; whatever is wrong with it is said in one line."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadFile(
            "file-not-found", f"{path} does not exist: give a study's .toml file, its folder, or models by name"
        ) from None
    except OSError as error:
        raise BadFile("read-failed", f"cannot read {path}: {error.strerror or error}; may you read it?") from error
    try:
        table = toml_table(content)
    except ValueError as error:
        raise BadFile("not-toml", f"{path} is no TOML file: {error}") from None
    return plan_of(table, str(path)), content.decode()


def plan_of(document: Mapping[str, Any], where: str) -> StudyPlan:
    """A plan out of plain data, checked."""
    _check_keys(document, where)
    measure = document.get("measure", "auto")
    if isinstance(measure, str) and measure != "auto":
        raise BadInput("unknown-choice", f'{where}: measure is "auto", true or false, not {measure!r}')
    # [grid] or several [[grid]], one layer or a list of them.
    listed = {name: value if isinstance(value, list) else [value] for name, value in document.items() if name in _LISTS}
    try:
        plan = msgspec.convert({**document, **listed}, type=StudyPlan)
    except (msgspec.ValidationError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise BadInput("bad-plan", f"{where}: {_readable(error)}") from None
    check(plan, where)
    return plan


def check(plan: StudyPlan, where: str) -> None:
    """All that types cannot say."""
    if not plan.grid:
        raise BadInput("empty-axis", f"{where}: no [grid]: give at least a model")
    for grid in plan.grid:
        _check_grid(grid, where)
    count = sum(math.prod(len(_values(grid, axis)) for axis in AXES) for grid in plan.grid)
    if count > MOST_CELLS:
        raise BadInput(
            "too-many-cells",
            f"{where}: the grid has {count:,} cells, and at most {MOST_CELLS:,} are run: leave some axes' "
            "values out, or make several studies",
        )
    _check_cells(plan, where)
    if not (math.isfinite(plan.timeout_s) and plan.timeout_s > 0):
        raise BadInput("out-of-range", f"{where}: timeout_s must be above 0, got {plan.timeout_s:g}")
    if plan.repeat < 1:
        raise BadInput("out-of-range", f"{where}: repeat must be at least 1, got {plan.repeat}")
    if plan.slurm:
        check_placement(plan.slurm, devices_named(plan), where)
    _check_once("layers", plan.layers, where)
    if any(not layer.strip() for layer in plan.layers):
        raise BadInput("bad-name", f"{where}: layers: an empty name, leave it out")


def devices_named(plan: StudyPlan) -> list[str]:
    """Those that its grids name."""
    return list(dict.fromkeys(on for grid in plan.grid for on in _values(grid, "on") if on is not None))


def check_claims(plan: StudyPlan, where: str) -> None:
    """A claim that cannot be read, or that names what no cell has, is told before the work, not after it."""
    rows = [StudyRow(cell=cell) for cell in plan.cells] if plan.claim else []
    for number, claim in enumerate(plan.claim, start=1):
        try:
            unknown = unknown_names(parse(claim.claim), rows)
        except RooflightError as error:
            unknown = str(error)
        if unknown is not None:
            raise BadInput("bad-hypothesis", f"{where}: claim {number}: {' '.join(unknown.split())}")


def _check_keys(document: Mapping[str, Any], where: str) -> None:
    """Misspelt ones with what was meant: msgspec only says that they are unknown."""
    tables: list[tuple[str, Any, Sequence[str]]] = [("", document, StudyPlan.__struct_fields__)]
    for name, fields in (("grid", AXES), ("claim", StudyClaim.__struct_fields__)):
        given = document.get(name)
        tables += [(f"[{name}] ", entry, fields) for entry in (given if isinstance(given, list) else [given])]
    for prefix, table, names in tables:
        for key in table if isinstance(table, dict) else ():
            if key not in names:
                near = difflib.get_close_matches(str(key), names, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
                raise BadInput("unknown-key", f"{where}: {prefix}unknown key {key!r}: {hint}")


def _check_grid(grid: StudyGrid, where: str) -> None:
    for axis in AXES:
        values = _values(grid, axis)
        if not values:
            raise BadInput(
                "empty-axis",
                f"{where}: {axis} is an empty list, so the grid has no cells: give a value, or leave {axis} out",
            )
        _check_once(axis, values, where)
    for axis, field in _FIELDS.items():
        given = [value for value in _values(grid, axis) if field.is_given(value) and value is not None]
        for value in given:
            _check_value(field, value, where)
        if given and field.step not in (None, *_values(grid, "step")):
            raise BadInput("option-needs-another", _said(f"{field.option} goes with --step={field.step}", where))
    for model in _values(grid, "model"):
        _check_model(model, where)
    _check_devices(grid, where)


def _check_value(field: Field, value: Any, where: str) -> None:
    if field.kind == "number" and not 1 <= value <= MOST_BATCH:
        raise BadInput("out-of-range", _said(f"{field.option} must be from 1 to {MOST_BATCH:,}, got {value:,}", where))
    try:
        field.read(value)
    except BadInput as error:
        raise error.reworded(_said(error.text, where)) from None


def _said(text: str, where: str) -> str:
    """An error in the words of where the grid is from: options become the keys of a file."""
    if where.endswith(".toml"):
        text = re.sub(r"--([a-z0-9-]+)(=)?(\w+)?", _in_toml, text)
    return f"{where}: {text}"


def _in_toml(option: re.Match[str]) -> str:
    name, equals, value = option.groups()
    return f'{name.replace("-", "_")} = "{value}"' if equals else f"{name.replace('-', '_')}{value or ''}"


def _check_cells(plan: StudyPlan, where: str) -> None:
    """One that cannot be is a result, and said of its cell; a study of none but such is a slip."""
    refused = None
    for cell in itertools.chain.from_iterable(map(_cells_of, plan.grid)):
        try:
            cell.check()
            if not cell.impossible:
                return
            refused = BadInput(
                "impossible-step",
                f"there is {cell.impossible}: choose another precision with --dtype, or another device",
            )
        except BadInput as error:
            refused = error
    if refused is not None:
        raise refused.reworded(_said(refused.text, where))


def _check_model(model: str, where: str) -> None:
    if not model.strip() or model != model.strip():
        raise BadInput("unknown-model", f"{where}: model {model!r}: give a name, as in `rooflight list models`")
    if ":" not in model:
        try:
            registry.find(model)
        except RooflightError as error:
            raise error.reworded(f"{where}: {error}") from None


def _check_devices(grid: StudyGrid, where: str) -> None:
    named: dict[str, str] = {}
    for text in _values(grid, "on"):
        if text is None or is_of_this_machine(text):
            continue
        try:
            name = devices.find(text).name
        except RooflightError as error:
            raise error.reworded(f"{where}: {error}") from None
        if name in named:
            raise BadInput(
                "duplicate-device",
                f"{where}: on: {named[name]} and {text} are the same device, {name}: leave one of them out",
            )
        named[name] = text
    counts = [gpus * nodes for gpus in _values(grid, "gpus") for nodes in _values(grid, "nodes") if gpus * nodes > 1]
    for how in filter(None, _values(grid, "parallel")):
        if not counts:
            raise BadInput("option-needs-another", _said("--parallel goes with --gpus above 1", where))
        refusals = [_refusal(how, gpus) for gpus in counts]
        if (refusal := refusals[0]) is not None and all(refusals):
            raise refusal.reworded(f"{where}: {refusal}")
    _check_total(grid, where)
    for axis in ("gpus", "nodes"):
        if grid.on is None and _values(grid, axis) != [1]:
            raise BadInput("option-needs-another", _said(f"--{axis} goes with --on: name the device", where))


def _check_total(grid: StudyGrid, where: str) -> None:
    """A batch that all GPUs share, which must be divisible among them."""
    totals = [total for total in _values(grid, "total_batch") if total is not None]
    if totals and _values(grid, "batch") != [FIELDS["batch"].default]:
        raise BadInput("two-batches", _said(BOTH_BATCHES, where))
    try:
        for total, gpus, nodes in itertools.product(totals, _values(grid, "gpus"), _values(grid, "nodes")):
            for how in _values(grid, "parallel"):
                if how is None or not _refusal(how, gpus * nodes):
                    layout.replica_batch(total, parallel=how, gpus=gpus, nodes=nodes)
    except BadInput as error:
        raise error.reworded(_said(error.text, where)) from None


def _refusal(how: str, gpus: int) -> RooflightError | None:
    try:
        layout.parse(how, gpus=gpus)
    except RooflightError as error:
        return error
    return None


def is_of_this_machine(device: str) -> bool:
    return device.casefold() in (HERE, PROCESSOR)


def _check_once(axis: str, values: Sequence[Any], where: str) -> None:
    with suppress(TypeError):  # settings are no keys of a set
        if len(set(values)) == len(values):
            return
    for place, value in enumerate(values):
        if value in values[:place]:
            raise BadInput("duplicate-value", f"{where}: {axis} has {value!r} twice: leave one of them out")


def _values(grid: StudyGrid, axis: str) -> list[Any]:
    value = getattr(grid, axis)
    return value if isinstance(value, list) else [value]


def _cells_of(grid: StudyGrid) -> Iterator[StudyCell]:
    order = sorted(AXES, key=_ORDER.index)
    for values in itertools.product(*(_values(grid, axis) for axis in order)):
        given = {_FIELDS[axis]: value for axis, value in zip(order, values, strict=True) if value is not None}
        step = given.get(FIELDS["step"], "infer")
        fields = {field.name: field.read(value) for field, value in given.items() if field.step in (None, step)}
        if (total := fields.get("total_batch")) is not None:
            place = {name: fields.get(name, FIELDS[name].default) for name in ("parallel", "gpus", "nodes")}
            fields["batch"] = layout.replica_batch(total, **place)
        if fields.get("gpus", 1) * fields.get("nodes", 1) == 1:
            fields = {name: value for name, value in fields.items() if name not in ("parallel", "micro_batches")}
        yield StudyCell(**fields)


_SLOWEST = ("model", "set", "input")
_FASTEST = ("seq", "past", "on", "total_batch", "gpus", "nodes", "parallel", "micro_batches", "batch")
_ORDER = (*_SLOWEST, *(axis for axis in AXES if axis not in _SLOWEST + _FASTEST), *_FASTEST)
"""Of the cells: the batch changes first, the model last."""


def merged(old: StudyPlan, new: StudyPlan, where: str) -> StudyPlan:
    """The plan of a folder with the cells of another one besides. Claims and words are the new one's."""
    for name in ("layers", "measure", "repeat"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            raise BadInput(
                "different-plan",
                f"{where} holds a study with {name} = {written(before)}, and this one has {written(after)}: "
                "give another folder, or the same value",
            )
    there = {cell.id for cell in new.cells}
    if all(cell.id in there for cell in old.cells):
        grids = new.grid
    else:
        grids = (*old.grid, *(grid for grid in new.grid if grid not in old.grid))
    return replace(
        new,
        grid=grids,
        title=new.title or old.title,
        about=new.about or old.about,
        slurm=new.slurm or old.slurm,
        claim=new.claim or old.claim,
    )


def to_toml(plan: StudyPlan) -> str:
    """A plan as a file that reads back as the same plan."""
    tables: dict[str, Sequence[msgspec.Struct]] = {"grid": plan.grid, "claim": plan.claim}
    lines = _lines(plan, without=tables)
    for name, entries in tables.items():
        for entry in entries:
            lines += ["", f"[[{name}]]", *_lines(entry)]
    return "\n".join(lines).lstrip("\n") + "\n"


def _lines(table: msgspec.Struct, *, without: Collection[str] = ()) -> list[str]:
    """All that is not as usual. Values are compared: `omit_defaults` leaves a text away only where it is the very same
    object."""
    return [
        f"{field.name} = {written(value)}"
        for field in msgspec.structs.fields(table)
        if field.name not in without and (value := getattr(table, field.name)) != field.default
    ]


def written(value: Any) -> str:
    """A value as TOML: Python reads it, but does not write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {written(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(written, value)) + "]"
    return repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda control: f"\\u{ord(control[0]):04x}", escaped) + '"'


def _readable(error: Exception) -> str:
    """`Expected int, got str - at $.grid.batch` as `grid.batch: expected int, got str`."""
    text = _one_line(error).replace("`", "")
    said, at, place = text.partition(" - at $.")
    key = re.sub(r"\[.*?\]", "", place)
    return f"{key}: {said[:1].lower()}{said[1:]}" if at else said


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
