"""`rooflight.study`: a grid of steps and devices, run to its end, in a folder that remembers everything."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from rooflight import views
from rooflight.errors import BadInput
from rooflight.spec import fields_for, takes_step
from rooflight.study.cell import HERE, Key, StudyRow
from rooflight.study.journal import Progress
from rooflight.study.launch import Launcher, wanted_here
from rooflight.study.layer_names import check_layers
from rooflight.study.local import LocalLauncher
from rooflight.study.machine import gpu
from rooflight.study.plan import Measure, StudyPlan, check_claims, merged, plan_of, read_plan
from rooflight.study.store import UNREADABLE, Store, begin, is_study, open_study, read, read_plan_in

T = TypeVar("T")
OneOrMore: TypeAlias = T | Sequence[T]
Asked = str | Path | StudyPlan | Sequence[str]
_OF_THE_WHOLE = frozenset(StudyPlan.__struct_fields__) - {"grid"}
"""What is no axis of a grid."""


@dataclass(frozen=True, repr=False)
class Study(views.Shown):
    """What a study found. `rows` has one for every cell."""

    folder: Path
    """Where everything is kept."""
    plan: StudyPlan
    """What was asked for."""
    rows: list[StudyRow]
    """One for every cell, in the order of the plan."""

    def page(self) -> Any:
        """A document of claims with their verdicts, cells, trends: as `rooflight report` shows them."""
        return views.document(self)


@takes_step("study")
def study(
    plan: Asked,
    *,
    folder: str | Path | None = None,
    on: OneOrMore[str] | None = None,
    layers: Sequence[str] | None = None,
    measure: Measure | None = None,
    repeat: int | None = None,
    timeout_s: float | None = None,
    retry: bool = False,
    launcher: Launcher | None = None,
    progress: Progress = lambda entry: None,
    **axes: Any,
) -> Study:
    """Run a study, or go on with one that was interrupted.

    `plan`: a .toml file, the folder of a study, or models by name, with the axes of a grid, each a value or a list.
    `folder`: where everything is kept. `retry`: what failed before is tried again.

        >>> found = rooflight.study("resnet50", batch=[1, 8, 64], on=["a100", "h200"], folder="found")
        >>> found.to_pandas()
    """
    given = {**axes, "on": on, "layers": layers, "measure": measure, "repeat": repeat, "timeout_s": timeout_s}
    with prepare(plan, folder, {name: value for name, value in given.items() if value is not None}) as store:
        for line in make_ready(store, retry=retry):
            warnings.warn(line, stacklevel=2)
        run(store, launcher, progress=progress)
        return Study(store.folder, store.plan, store.rows)


def load(folder: str | Path) -> Study:
    """A study as it is, without going on with it."""
    rows = read(folder)  # which says what is wrong with the folder
    return Study(Path(folder), read_plan_in(folder), rows)


def prepare(plan: Asked, folder: str | Path | None, axes: Mapping[str, Any], *, dry: bool = False) -> Store:
    """The folder of what is asked for; `dry`: nothing is written, and it need not be there."""
    if isinstance(plan, (str, Path)) and Path(plan).is_dir() and ":" not in str(plan):
        if axes or folder is not None:
            raise BadInput(
                "option-conflict", f"{plan} is a study's folder, which has a plan: give no other folder and no grid"
            )
        return open_study(Path(plan))
    asked, text = _asked(plan, axes)
    if dry:
        if folder is not None and is_study(Path(folder)):
            asked = merged(read_plan_in(folder), asked, str(folder))
        return Store(Path(folder or "FOLDER"), asked)
    if folder is None:
        raise BadInput("no-study-folder", "a study needs a folder for what it finds: add --folder=FOLDER")
    return begin(Path(folder), asked, text)


def _asked(plan: Asked, axes: Mapping[str, Any]) -> tuple[StudyPlan, str | None]:
    """The plan, and the text of its file where that holds all of it."""
    text = None
    if isinstance(plan, StudyPlan):
        asked = plan
    elif isinstance(plan, (str, Path)) and str(plan).endswith(".toml"):
        if axes:
            raise BadInput(
                "plan-has-a-grid", f"{plan} has its own grid: leave {', '.join(axes)} out, or change the file"
            )
        asked, text = read_plan(Path(plan))
    elif not isinstance(plan, (str, Path, Sequence)):
        raise BadInput(
            "not-a-plan",
            f"a study takes models by name, a .toml file or a folder, not a {type(plan).__name__}: name "
            "your own model by its factory, as my_package.my_module:MyNet",
        )
    else:
        models = [str(plan)] if isinstance(plan, (str, Path)) else list(plan)
        top = {name: value for name, value in axes.items() if name in _OF_THE_WHOLE}
        grid = {"model": models, **{name: value for name, value in axes.items() if name not in top}}
        asked = plan_of({"grid": _plain(grid), **_plain(top)}, "the study")
    where = str(plan) if text is not None else "the study"
    check_claims(asked, where)
    check_layers(asked, where)
    if all(grid.on is None for grid in asked.grid) and gpu() is not None:
        # Without a word on where, it is the GPU of this machine; whoever reads the folder elsewhere must know.
        asked, text = replace(asked, grid=tuple(replace(grid, on=HERE) for grid in asked.grid)), None
    return asked, text


_BY_KEYWORD = {name: field for field in fields_for("study") for name in (field.key, field.keyword)}


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """Python's values as a file would have them: numbers of numpy, types of torch, shapes as sizes."""
    plain: dict[str, Any] = {}
    for name, value in table.items():
        field = _BY_KEYWORD.get(name)
        is_shape = field is not None and field.kind == "shape" and not isinstance(value, (str, list))
        several = not is_shape and isinstance(value, Iterable) and not isinstance(value, (str, Mapping))
        values = [
            item if field is None or field.kind not in _READ else field.read(item)
            for item in (value if several else [value])
        ]
        plain[name if field is None else field.key] = values if several else values[0]
    return plain


_READ = ("number", "flag", "switch", "choice", "shape")
"""What Python may give otherwise than a file does."""


def make_ready(store: Store, *, retry: bool = False) -> list[str]:
    """Write down what this machine will measure, and what is to be done again: all that is open is then known.

    Ledgers that are gone, or are not the files that were written, are made again where that can be done here; the lines
    name them.
    """
    again, lines = to_make_again(store)
    store.lose_keys(again)
    if retry:
        store.forgive()
    store.want(wanted_here(store, store.cells))
    return lines


def to_make_again(store: Store) -> tuple[list[Key], list[str]]:
    """Of ledgers that are gone or exchanged: which are made again here, and a line for each kind of damage. One that
    cannot be read may be whole, and stays as it is."""
    damaged = store.damaged_ledgers()
    here = {cell.id for cell in wanted_here(store, store.cells)} if damaged else set()
    alike: dict[tuple[str, str], list[Key]] = {}
    """By what happens to them, and by the damage: the same is said once."""
    for key, damage in damaged.items():
        can_be_made = key[1] == "estimated" or key[0] in here
        what = _UNTOUCHED if damage.startswith(UNREADABLE) else _AGAIN if can_be_made else _ELSEWHERE
        alike.setdefault((what, damage), []).append(key)
    lines = []
    for (what, damage), keys in sorted(alike.items(), key=lambda item: _OUTCOMES.index(item[0][0])):
        more = f" (and those of {len(keys) - 1:,} more)" if keys[1:] else ""
        lines.append(f"the ledger of {'.'.join(keys[0])}{more} {damage}: {what}")
    return [key for (what, _), keys in alike.items() if what == _AGAIN for key in keys], lines


_OUTCOMES = _AGAIN, _ELSEWHERE, _UNTOUCHED = (
    "made again",
    "its values are kept, and it is made again where its device is",
    "left as it is; may you read it?",
)


def run(store: Store, launcher: Launcher | None = None, *, progress: Progress = lambda entry: None) -> None:
    """Do what is open, and write the index."""
    waiting = store.waiting()
    try:
        if waiting:
            (launcher or LocalLauncher()).run(store.folder, waiting, progress)
    finally:
        store.refresh()
    store.tidy()
    store.write_index()
