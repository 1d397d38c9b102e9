"""`rooflight.study`: a grid of steps and devices, run to its end, in a folder that remembers everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec.structs import replace

from rooflight.errors import BadInput
from rooflight.spec import fields_for, takes_step
from rooflight.study.cell import HERE, Row
from rooflight.study.launch import Launcher, Progress, wanted_here
from rooflight.study.machine import gpu
from rooflight.study.plan import Measure, Plan, check_claims, merged, plan_of, read_plan
from rooflight.study.store import Store, begin, is_study, open_study, read, read_plan_in

if TYPE_CHECKING:
    from rooflight.reporting.document import Document

T = TypeVar("T")
OneOrMore: TypeAlias = T | Sequence[T]
Asked = str | Path | Plan | Sequence[str]
_OF_THE_WHOLE = ("title", "about", "layers", "measure", "timeout_s", "repeat", "claim")
"""What is no axis of a grid."""


@dataclass(frozen=True)
class Study:
    """What a study found. `rows` has one for every cell."""

    folder: Path
    """Where everything is kept."""
    plan: Plan
    """What was asked for."""
    rows: list[Row]
    """One for every cell, in the order of the plan."""

    def to_pandas(self) -> Any:
        """One row for every cell: its coordinates, its values, what went wrong (needs pandas)."""
        from rooflight.reporting.study_tables import to_pandas

        return to_pandas(self.rows)

    def page(self) -> Document:
        """Claims with their verdicts, cells, trends: as `rooflight report` shows them."""
        from rooflight.reporting.study_document import study_document

        return study_document(self.rows, self.plan, folder=str(self.folder))

    def _repr_html_(self) -> str:
        from rooflight.reporting.writers.notebook import document_notebook

        return document_notebook(self.page())

    def __repr__(self) -> str:
        states = [row.state for row in self.rows]
        told = ", ".join(f"{states.count(state)} {state}" for state in ("done", "failed", "waiting") if state in states)
        return f"Study({str(self.folder)!r}: {len(self.rows)} cells, {told})"


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
    store = prepare(plan, folder, {name: value for name, value in given.items() if value is not None})
    try:
        make_ready(store, retry=retry)
        run(store, launcher, progress=progress)
        return Study(store.folder, store.plan, store.rows)
    finally:
        store.close()


def load(folder: str | Path) -> Study:
    """A study as it is, without going on with it."""
    rows = read(folder)
    return Study(Path(folder), read_plan_in(folder), rows)


def prepare(plan: Asked, folder: str | Path | None, axes: Mapping[str, Any], *, dry: bool = False) -> Store:
    """The folder of what is asked for; `dry`: nothing is written, and it need not be there."""
    if isinstance(plan, (str, Path)) and Path(plan).is_dir() and ":" not in str(plan):
        if axes or folder is not None:
            raise BadInput(f"{plan} is a study's folder, which has a plan: give no other folder and no grid")
        return open_study(Path(plan))
    found, text = _asked(plan, axes)
    if dry:
        if folder is not None and is_study(Path(folder)):
            found = merged(read_plan_in(folder), found, str(folder))
        return Store(Path(folder or "FOLDER"), found)
    if folder is None:
        raise BadInput("a study needs a folder for what it finds: add --folder=FOLDER")
    return begin(Path(folder), found, text)


def _asked(plan: Asked, axes: Mapping[str, Any]) -> tuple[Plan, str | None]:
    """The plan, and the text of its file where that holds all of it."""
    text = None
    if isinstance(plan, Plan):
        found = plan
    elif isinstance(plan, (str, Path)) and str(plan).endswith(".toml"):
        if axes:
            raise BadInput(f"{plan} has its own grid: leave {', '.join(axes)} out, or change the file")
        found, text = read_plan(Path(plan))
    elif not isinstance(plan, (str, Path, Sequence)):
        raise BadInput(f"a study takes models by name, a .toml file or a folder, not a {type(plan).__name__}: name "
                       "your own model by its factory, as my_package.my_module:MyNet")  # fmt: skip
    else:
        models = [str(plan)] if isinstance(plan, (str, Path)) else list(plan)
        top = {name: value for name, value in axes.items() if name in _OF_THE_WHOLE}
        grid = {"model": models, **{name: value for name, value in axes.items() if name not in top}}
        found = plan_of({"grid": _plain(grid), **_plain(top)}, "the study")
    check_claims(found, str(plan) if text is not None else "the study")
    if all(grid.on is None for grid in found.grid) and gpu() is not None:
        # Without a word on where, it is the GPU of this machine; whoever reads the folder elsewhere must know.
        found, text = replace(found, grid=tuple(replace(grid, on=HERE) for grid in found.grid)), None
    return found, text


_BY_KEYWORD = {name: field for field in fields_for("study") for name in (field.key, field.keyword)}


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """Python's values as a file would have them: numbers of numpy, types of torch, shapes as sizes."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        field = _BY_KEYWORD.get(name)
        is_shape = field is not None and field.kind == "shape" and not isinstance(value, (str, list))
        several = not is_shape and isinstance(value, Iterable) and not isinstance(value, (str, Mapping))
        values = [one if field is None or field.kind not in _READ else field.read(one)
                  for one in (value if several else [value])]  # fmt: skip
        found[name if field is None else field.key] = values if several else values[0]
    return found


_READ = ("number", "flag", "switch", "choice", "shape")
"""What Python may give otherwise than a file does."""


def make_ready(store: Store, *, retry: bool = False) -> None:
    """Write down what this machine will measure, and what is to be tried again: all that is open is then known."""
    if retry:
        store.forgive()
    store.want(wanted_here(store, store.cells))


def run(store: Store, launcher: Launcher | None = None, *, progress: Progress = lambda entry: None) -> None:
    """Do what is open, and write the index."""
    if launcher is None:
        from rooflight.study.local import LocalLauncher

        launcher = LocalLauncher()
    waiting = store.waiting()
    try:
        if waiting:
            launcher.run(store.folder, waiting, progress)
    finally:
        store.refresh()
    store.tidy()
    store.write_index()
