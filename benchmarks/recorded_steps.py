"""Measured steps that explanations are judged with: where each lies, and whether rules were made with it in view."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rooflight.recordings import PREFIX, names

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "studies" / "recorded" / "h200"
OTHERS = ROOT / "benchmarks" / "h200" / "results" / "steps"
ENDING = ".json.gz"


@dataclass(frozen=True)
class RecordedStep:
    """`kind`: of a built-in model in a recording or a study; of another model, looked at or judging alone."""

    kind: str
    where: str
    """As it is named in tables."""
    place: str | Path
    model: str = ""
    """Where the ledger has no name for it that says enough."""


def recorded_steps() -> list[RecordedStep]:
    """Cells that two studies share are there once."""
    found = {name: RecordedStep("recordings", "recording", f"{PREFIX}{name}") for name in names()}
    for path in sorted(STUDIES.glob(f"*/ledgers/*.measured{ENDING}")):
        found.setdefault(path.name, RecordedStep("studies", path.parts[-3], path))
    return [*found.values(), *other_models()]


def other_models() -> list[RecordedStep]:
    """Made by h200/why_steps.py; no rule was learned on any of them."""
    return [
        RecordedStep(f"other models, {path.parent.name} set", path.parent.name, path, _model(path))
        for path in sorted(OTHERS.glob(f"*/*{ENDING}"))
    ]


def _model(path: Path) -> str:
    """`timm-levit_128-infer-fp32` is levit_128."""
    library, _, rest = path.name.removesuffix(ENDING).partition("-")
    return f"{library}:{rest.rsplit('-', 2)[0]}"
