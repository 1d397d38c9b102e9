"""What `rooflight run --ops` finds in its folder when the program is over: the recorded step, and what to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rooflight.errors import BadFile
from rooflight.files import UNDECODABLE, load
from rooflight.formatting import seconds
from rooflight.ledger import Ledger, Note
from rooflight.measurement.scripts.settings import parse_steps
from rooflight.measurement.scripts.status import ScriptStatus

_BY_HAND = "put `with rooflight.record():` around the code that is of interest"
_NO_TORCH = (
    "nothing recorded: no Python of the program imported torch, or none that rooflight can look into "
    "(python -I, -E and -S keep it out)"
)
_NO_STEPS = f"nothing recorded: no optimizer of torch stepped and no model was called for inference; {_BY_HAND}"


@dataclass(frozen=True)
class RecordedScript:
    """The step that was recorded, if any, and what is missing and what to do about it."""

    ledger: Ledger | None
    complaints: tuple[str, ...]


def recorded_script(folder: Path, *, took_s: float, command: str) -> RecordedScript:
    """Of all processes of the program, which took so long; the one that recorded most counts."""
    found = sorted(_statuses(folder), key=lambda one: _worth(one[0], one[1]), reverse=True)
    complaints = [_not_here(path) for path in sorted(folder.glob("cannot-*.txt"))[:1]]
    if not found:
        return RecordedScript(None, tuple(complaints or (_NO_TORCH,)))
    status, ledger = found[0]
    if status.failure:
        complaints.append(f"measuring stopped ({status.failure}), and the program ran on without it")
    complaints += [line] if (line := _missing(status, ledger)) else []
    if ledger is None:
        return RecordedScript(None, tuple(complaints))
    notes = [Note("steps-of-program", story(status, took_s)), *status.notes]
    if others := sum(other is not None for _, other in found[1:]):
        who = "another process" if others == 1 else f"{others} other processes"
        notes.append(Note("other-processes", f"{who} of the program ran steps too: this is the one that ran most"))
    header = msgspec.structs.replace(ledger.header, notes=(*notes, *ledger.header.notes), command=command)
    return RecordedScript(msgspec.structs.replace(ledger, header=header), tuple(complaints))


def _statuses(folder: Path) -> list[tuple[ScriptStatus, Ledger | None]]:
    found = []
    for path in folder.glob("status-*.json"):
        try:
            status = msgspec.json.decode(path.read_bytes(), type=ScriptStatus)
        except UNDECODABLE:  # killed while it was made
            continue
        ops = path.with_name(path.name.replace("status-", "ops-", 1))
        try:
            found.append((status, load(ops) if ops.exists() else None))
        except BadFile as error:
            status.failure = status.failure or f"what was recorded is lost: {error}"
            found.append((status, None))
    return found


def _worth(status: ScriptStatus, ledger: Ledger | None) -> tuple[bool, bool, int, int]:
    return ledger is not None, status.found == "train", -status.rank, status.steps


def _not_here(path: Path) -> str:
    python, _, reason = path.read_text().partition("\n")
    return f"nothing recorded in {python}, where rooflight cannot be imported ({reason}): install it there"


def _missing(status: ScriptStatus, ledger: Ledger | None) -> str:
    """What is not there, and what would bring it."""
    if status.failure:
        return ""
    if not status.found:
        return "" if ledger is not None else _NO_STEPS
    asked = parse_steps(status.steps_asked)
    what = "optimizer steps" if status.found == "train" else "calls of a model (no optimizer of torch stepped)"
    if status.doing == "recorded" and ledger is None:
        return (
            f"nothing recorded: the program was ended at once (killed, or os._exit) in step {status.steps + 1}, which "
            "was being recorded; recording takes memory and time: try another step (--steps), or a smaller batch"
        )
    if not status.recorded and status.doing != "over":
        if status.steps < 2:
            return f"nothing recorded: the program ended after {status.steps} {what}, and it takes 2: let it run longer"
        became = f"was put off ({status.put_off})" if status.put_off else "was to be recorded"
        return (
            f"nothing recorded: the program ended after {status.steps} {what}, and step {asked.recorded} {became}: let "
            f"it run longer, or write `--steps 2:{status.steps}`"
        )
    if not status.recorded and status.put_off:
        return (
            f"nothing recorded: step {asked.recorded} was put off ({status.put_off}), and {asked.last} was the last "
            f"that was asked for: write `--steps {asked.first}:`"
        )
    if status.doing == "counted":
        return "the program ended before everything was counted: let it run longer"
    return ""


def story(status: ScriptStatus, took_s: float) -> str:
    """What became of each step, and what that cost."""
    if not status.recorded:
        return f"the program took {seconds(took_s)}"
    parts = [f"{_steps(1, min((*status.timed, *status.recorded)) - 1)} untouched"]
    if status.timed:
        parts.append(f"{_range(status.timed)} timed")
    instead = f" instead of {seconds(status.plain_s)}" if status.plain_s is not None else ""
    parts.append(f"{_range(status.recorded)} recorded (took {seconds(status.recorded_s)}{instead})")
    if status.counted:
        parts.append(f"{_range(status.counted)} counted")
    then = "then the program was ended" if status.stopped else "those after them untouched"
    return (
        f"{', '.join(parts)}, {then}; the program took {seconds(took_s)}, about {seconds(status.added_s)} of that for "
        "rooflight"
    )


def _range(steps: Sequence[int]) -> str:
    return str(steps[0]) if len(steps) == 1 else f"{steps[0]}-{steps[-1]}"


def _steps(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first}-{last}"
