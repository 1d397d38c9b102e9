"""Measurements that come with rooflight: `recorded:h200/NAME` stands for a file wherever a ledger is read.

Who has no GPU can report on them, compare with them and learn from them.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from rooflight.errors import BadFile

PREFIX = "recorded:"
_FOLDER = Path(__file__).parent
_ENDING = ".json.gz"


def names() -> list[str]:
    """`h200/resnet50-train-b16`, sorted."""
    found = _FOLDER.rglob(f"*{_ENDING}")
    return sorted(path.relative_to(_FOLDER).as_posix().removesuffix(_ENDING) for path in found)


def name_of(name: str) -> str:
    """Without the prefix."""
    return name.removeprefix(PREFIX).removesuffix(_ENDING)


def path(name: str) -> Path:
    """The file of a recording, with or without the prefix; a name that is not there is answered with those near it."""
    wanted = name_of(name)
    known = names()
    if wanted in known:
        return _FOLDER / f"{wanted}{_ENDING}"
    raise BadFile("unknown-recording", f"there is no recording {wanted!r}: {_hint(wanted, known)}")


def is_recorded(name: str | Path) -> bool:
    return str(name).startswith(PREFIX)


def _hint(wanted: str, known: list[str]) -> str:
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    # Who leaves the device away, or knows only the model, means one of those that contain it.
    near += [name for name in known if wanted and wanted in name and name not in near][: 3 - len(near)]
    if near:
        return f"did you mean {' or '.join(PREFIX + name for name in near)}?"
    return "rooflight list recordings shows them" if known else "none came with this installation"
