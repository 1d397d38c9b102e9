"""Steps that somebody timed, beside what this version predicts of them: the table that comes with rooflight.

Made by `benchmarks/accuracy.py --write`; whose times they are is in `hardware/published/NOTICE.md`.
"""

from __future__ import annotations

import gzip
import math
import statistics
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from rooflight.errors import BadInput

FORMAT_VERSION = 1
NAME = "steps.json.gz"
KERNELS = "kernels"
"""The scope of a time that is of kernels alone: what `gpu_time_s` says. All others are of a whole step."""
PARTS = ("op", "chain of ops")
"""Kinds of rows that are no steps of a model."""
_SEVERAL = 3
"""Of fewer steps there is no mean to speak of."""
_MODELS = {"mlp": "MLPs", "recurrent": "recurrent networks"}


class RowSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who timed them."""

    title: str
    """In words."""
    url: str
    """Where they are published."""
    licence: str
    """Its SPDX name."""
    timed: str
    """What lies between the two readings of the clock."""


class CheckedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A timed step beside its predictions. Seconds."""

    source: str
    """A name among the table's sources."""
    device: str
    """Its name in the database, or in the file that describes it."""
    model: str
    """As its source calls it."""
    kind: str
    """What it mostly does: `convnet`, `transformer`, `hybrid`, `mlp`, `recurrent`; or `op`, `chain of ops`."""
    step: str
    """`infer` or `train`."""
    batch: int | None
    """`None`: an op, whose shapes say all."""
    size: int | None
    """Tokens of a sequence, or pixels of an image's side."""
    precision: str
    """`fp32`, `tf32`, `bf16`, or `amp-fp16` for autocast."""
    channels_last: bool
    """Was it run so?"""
    scope: str
    """What was timed: `wall`, `events` (the device's time with its gaps), `call` (the same of one call on an idle
    device) or `kernels` alone."""
    published_s: float
    """What was measured."""
    predictions: dict[str, tuple[float, float, float]]
    """By tier: the predicted time and the ends of its 90% interval."""
    guessed: bool = False
    """Does it hold ops of which its prediction says that nothing like them was timed?"""

    host_bound: bool = False
    """Is it predicted to wait for its host, which nobody described?"""

    def error(self, tier: str) -> float:
        """Relative: 0.1 is 10% too long."""
        return self.predictions[tier][0] / self.published_s - 1

    def is_inside(self, tier: str) -> bool:
        """Does the 90% interval hold the measured time?"""
        _, low, high = self.predictions[tier]
        return low <= self.published_s <= high

    @property
    def is_step(self) -> bool:
        """A whole step, timed as a whole?"""
        return self.kind not in PARTS and self.scope != KERNELS


class CheckedSteps(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole table."""

    format_version: int
    """Version of this format."""
    rooflight: str
    """The version that predicted."""
    made: str
    """The day."""
    sources: dict[str, RowSource]
    """By name."""
    tiers: dict[str, str]
    """By device: the tier that it is predicted by where none is asked for."""
    rows: tuple[CheckedStep, ...]
    """In the order of their sources."""


class ErrorSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of some rows, relative to what was measured."""

    rows: int
    """How many."""
    mean: float
    """Of the absolute errors."""
    median: float
    """Of the absolute errors."""
    p90: float
    """Nine of ten absolute errors are no larger."""
    worst: float
    """The largest absolute error."""
    signed: float
    """The mean with signs: above 0, predictions are too long."""
    inside: float
    """The part of the rows whose measured time lies in the 90% interval of its prediction."""

    @classmethod
    def of(cls, rows: Sequence[tuple[float, bool]]) -> ErrorSpread:
        """Of errors, each with whether its interval held."""
        absolute = sorted(abs(error) for error, _ in rows)
        return cls(
            rows=len(rows),
            mean=statistics.fmean(absolute),
            median=statistics.median(absolute),
            p90=absolute[math.ceil(0.9 * len(absolute)) - 1],
            worst=absolute[-1],
            signed=statistics.fmean(error for error, _ in rows),
            inside=statistics.fmean(inside for _, inside in rows),
        )


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """How far predictions of this device by this tier were from steps that somebody timed on it."""

    text: str
    """In words: `on 43 published steps of this GPU: 6% in the mean, 18% at worst`."""
    steps: int = 0
    """How many; 0: never checked."""
    step: str | None = None
    """`infer` or `train` where there were enough of that kind; else all together."""
    model_kind: str | None = None
    """`convnet`, `transformer`, ...: of such models alone, where there were enough; else of all."""
    mean_error: float | None = None
    """Of the absolute relative errors."""
    worst_error: float | None = None
    """The same."""
    gpu_time_error: float | None = None
    """In the mean, of the time of kernels alone; `None`: nobody recorded it."""
    inside: float | None = None
    """The part of them that lay in their 90% interval."""


def decoded(content: bytes) -> CheckedSteps:
    try:
        table = msgspec.json.decode(gzip.decompress(content), type=CheckedSteps)
    except (msgspec.MsgspecError, OSError, EOFError, zlib.error) as error:
        raise BadInput(
            "damaged-file", f"the table of checked steps cannot be read: {error}; install rooflight again"
        ) from None
    if table.format_version != FORMAT_VERSION:
        raise BadInput(
            "unknown-format",
            f"the table of checked steps has format {table.format_version}, this rooflight reads {FORMAT_VERSION}; "
            "install rooflight again",
        )
    return table


def encoded(table: CheckedSteps) -> bytes:
    return gzip.compress(msgspec.json.encode(table), mtime=0)


@cache
def shipped_steps() -> CheckedSteps:
    """The table of this version; an empty one where it is about to be made."""
    file: Any = resources.files("rooflight.hardware") / "published" / NAME
    if not file.is_file():
        return CheckedSteps(format_version=FORMAT_VERSION, rooflight="", made="", sources={}, tiers={}, rows=())
    return decoded(file.read_bytes())


def judged(rows: Sequence[CheckedStep], tier: str | None = None) -> list[tuple[CheckedStep, str]]:
    """Rows that a tier predicts, each with its tier; without one, each with that of its device."""
    tiers = shipped_steps().tiers
    pairs = ((row, tier or tiers[row.device]) for row in rows)
    return [(row, name) for row, name in pairs if name in row.predictions]


def spread_of(pairs: Sequence[tuple[CheckedStep, str]]) -> ErrorSpread:
    return ErrorSpread.of([(row.error(tier), row.is_inside(tier)) for row, tier in pairs])


@cache
def checked_on(
    device: str,
    tier: str,
    step: str | None,
    *,
    model_kind: str | None = None,
    device_kind: str = "gpu",
    own_calibration: bool = False,
) -> Checked:
    """What is known of predictions of this device by this tier: of such steps of such models, where somebody timed one;
    else of such models, or of such steps, or of all, and that is said. `own_calibration`: times come from a calibration
    that is not rooflight's."""
    here = "CPU" if device_kind == "cpu" else "GPU"
    if own_calibration:
        return Checked(text="never checked with this calibration")
    of_device = [row for row in shipped_steps().rows if row.device == device]
    steps = [row for row in of_device if row.is_step]
    if not judged(steps, tier):
        return Checked(text=f"never checked on this {here}" + (" with this tier" if steps else ""))
    asked = {name: value for name, value in {"kind": model_kind, "step": step}.items() if value is not None}
    for like in (asked, *({name: value} for name, value in asked.items()), {}):
        pairs = judged([row for row in steps if _is_like(row, like)], tier)
        if pairs:
            break
    spread = spread_of(pairs)
    kernels = judged([row for row in of_device if row.scope == KERNELS and _is_like(row, like)], tier)
    kernel_error = spread_of(kernels).mean if kernels else None
    who = "recorded" if all(row.source.startswith("h200") for row, _ in pairs) else "published"
    alone = "" if kernel_error is None else f"; of the GPU's time alone {kernel_error:.0%}"
    far = f"{spread.mean:.0%} in the mean, {spread.worst:.0%} at worst"
    if spread.rows < _SEVERAL:
        far = f"off by {' and '.join(f'{abs(row.error(name)):.0%}' for row, name in pairs)}"
    text = f"{spread.rows:,} {who} {_steps_in_words([row for row, _ in pairs])} on this {here}: {far}{alone}"
    return Checked(
        text=f"on {text}" if like == asked else f"{_missing(asked, like)}; on {text}",
        steps=spread.rows,
        step=like.get("step"),
        model_kind=like.get("kind"),
        mean_error=spread.mean,
        worst_error=spread.worst,
        gpu_time_error=kernel_error,
        inside=spread.inside,
    )


def _steps_in_words(rows: Sequence[CheckedStep]) -> str:
    """`inference steps of convnets`; of several kinds, all that there are."""
    words = {_STEPS.get(row.step, row.step) for row in rows}
    kinds = [kind_in_words(kind) for kind in dict.fromkeys(row.kind for row in rows)]
    listed = f"{', '.join(kinds[:-1])} and {kinds[-1]}" if len(kinds) > 1 else kinds[0]
    return f"{words.pop() + ' ' if len(words) == 1 else ''}step{'s' * (len(rows) > 1)} of {listed}"


def _missing(asked: Mapping[str, str], like: Mapping[str, str]) -> str:
    """What of that which was asked for nobody timed."""
    step = f"{_STEPS.get(asked['step'], asked['step'])} " if "step" in asked and "step" not in like else ""
    of = f" of {kind_in_words(asked['kind'])}" if "kind" in asked else ""
    return f"no {step}step{of} was checked"


def kind_in_words(kind: str) -> str:
    """Several models of a kind."""
    return _MODELS.get(kind, f"{kind}s")


_STEPS = {"infer": "inference", "train": "training", "decode": "decode"}


def _is_like(row: CheckedStep, like: Mapping[str, str]) -> bool:
    return all(getattr(row, name) == value for name, value in like.items())
