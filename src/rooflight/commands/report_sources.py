"""What `rooflight report` is given: ledgers by their files, recordings, and models by name, estimated on the spot."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflight.commands.step_options import axes_of, quiet_model
from rooflight.commands.terminal import progress
from rooflight.errors import BadInput
from rooflight.spec import fields_for, shell

if TYPE_CHECKING:
    from rooflight.ledger import Ledger


def ledgers_of(paths: Sequence[Path], options: Mapping[str, Any]) -> tuple[list[Ledger], list[str]]:
    """Every ledger, ranks of one run as one; and how a command line names each."""
    from rooflight.files import load
    from rooflight.reporting.report.api import arranged

    models = {path: names for path in paths if (names := _models(path))}
    axes = axes_of(options, "estimate")
    if axes and not models:
        option = next(field.option for field in fields_for("estimate") if field.key in axes)
        raise BadInput(
            "needs-a-model-name",
            f"{option} is for models by name, as in `{shell('report', 'vgg11,vgg13', batch=16)}`: a file holds "
            "its step",
        )
    ledgers, names = [], []
    for path in paths:
        if path in models:
            estimated = _estimated(models[path], axes)
            ledgers += [ledger for ledger, _ in estimated]
            names += [name for _, name in estimated]
        else:
            ledgers.append(load(path))
            names.append(shlex.quote(str(path)))
    return (ledgers, names) if models else arranged(ledgers, names)


def stand_together(paths: Sequence[Path], ledgers: Sequence[Ledger]) -> bool:
    """On one roofline: more than two, and two models by name; two files are compared."""
    return len(ledgers) > (1 if any(_models(path) for path in paths) else 2)


def _models(path: Path) -> list[str]:
    """The models that a word names, none where it is a file's: what exists is one, and what ends as one should be."""
    from rooflight.models.registry import NAMES
    from rooflight.recordings import is_recorded

    text = str(path)
    if path.exists() or is_recorded(text) or text.lower().endswith((".json", ".json.gz", ".gz")):
        return []
    names = [name.strip() for name in text.split(",")]
    if all(name in NAMES or ":" in name for name in names):
        return names
    if len(names) == 1 and text not in NAMES:
        return []  # as a file that is not there
    wrong = next(name for name in names if name not in NAMES and ":" not in name)
    raise BadInput(
        "unknown-model", f"{wrong or text!r}: no such model (see `rooflight list models`), and {text} is no file"
    )


def _estimated(models: list[str], axes: Mapping[str, Any]) -> list[tuple[Ledger, str]]:
    """Every combination of models and values of axes, each with the words of a command line that give it again."""
    from rooflight.estimation.api import estimate
    from rooflight.study.plan import plan_of

    cells = plan_of({"grid": {"model": models, **axes}}, "the steps").cells
    found = []
    for cell in cells:
        with quiet_model(), progress(f"estimating {cell.slug}"):
            ledger = estimate(cell, command=cell.command("estimate"))
        found.append((ledger, shlex.join(cell.words("estimate")[2:])))
    return found
