"""`rooflight.accuracy`: how far this version's predictions are from steps that were timed, and which of them resemble
a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from rooflight import views
from rooflight.errors import BadInput
from rooflight.hardware.devices import find, names, several
from rooflight.ledger import Note
from rooflight.prediction.checked_steps import (
    KERNELS,
    PARTS,
    CheckedStep,
    ErrorSpread,
    RowSource,
    judged,
    kind_in_words,
    shipped_steps,
    spread_of,
)

KINDS = ("convnet", "transformer", "hybrid", "mlp", "recurrent", *PARTS)
LENGTHS = ((1e-3, "below 1 ms"), (1e-2, "1 to 10 ms"), (1e-1, "10 to 100 ms"), (float("inf"), "100 ms and more"))
_WORST = 10
_FEW = 5
"""Steps below which the error of a device says little."""
_SERIES = ("rtx", "xeon", "epyc")
"""How names of different chips begin."""
_ZOOS = ("timm:", "torchvision:", "hf:")
_ARCHITECTURE = re.compile(r"[a-z]+?(?=v\d|[\d_./-]|$)")
_FACTORY = re.compile(r"\.py(:|$)")
_VARIANTS = ("tf_", "legacy_", "adv_", "ens_", "jx_")
"""How names of ported weights begin: the network is another name's."""

_WHATS = ("all", "inference", "training", "single ops", "chains of ops")

By = Literal["device", "kind", "length", "bound", "evidence", "source", "likeness", "kernels"]


class AccuracyGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows and their errors."""

    by: By
    """What they have in common: `device`, `kind` of model, `length` of the step, what it is `bound` by, `evidence`
    (is something like each of its ops timed?), `source`, `likeness`; `kernels`: of a device, times of kernels alone."""
    name: str
    """Which device, kind, ..."""
    tier: str
    """That predicted them; several are joined by commas."""
    what: str
    """`inference`, `training`, `single ops`, `chains of ops`, or `all`."""
    errors: ErrorSpread
    """Of its rows."""


class WorstRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row that is far off."""

    row: CheckedStep
    """With what was measured, and all predictions."""
    tier: str
    """That is so far off."""
    error: float
    """Relative."""
    inside: bool
    """Did its interval hold?"""


class Accuracy(views.Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Errors of predictions on rows that come with rooflight."""

    rooflight: str
    """The version that predicted."""
    made: str
    """The day."""
    on: str | None
    """The device that was asked for; several with commas between them."""
    like: str | None
    """The model that was asked for."""
    tier: str | None
    """The tier that was asked for; `None`: that of each device."""
    steps: ErrorSpread | None
    """Of all whole steps; `None`: there are none."""
    groups: tuple[AccuracyGroup, ...]
    """By device, kind, length, bound, evidence and source; by likeness where a model was asked for."""
    worst: tuple[WorstRow, ...]
    """The rows that are farthest off, by ratio."""
    rows: tuple[CheckedStep, ...]
    """All that were asked for."""
    sources: dict[str, RowSource]
    """Who timed them, by name."""
    notes: tuple[Note, ...]
    """What was never checked."""

    def by(self, by: By) -> tuple[AccuracyGroup, ...]:
        """The groups of one kind."""
        return tuple(group for group in self.groups if group.by == by)


def accuracy(on: str | Sequence[str] | None = None, like: str | None = None, tier: str | None = None) -> Accuracy:
    """How far predictions are from steps that were timed, published or recorded: those that come with rooflight.

    `on`: a device; several in a list, or separated by commas. `like`: a model by name, or a kind (`convnet`,
    `transformer`, `hybrid`, `mlp`, `recurrent`): the rows that resemble it, by the same model, the same architecture,
    the same kind. `tier`: `calibrated`, `published`, `transferred` or `spec`; by default the one that `predict` takes
    for each device.

        >>> rooflight.accuracy(on="t4")
        >>> rooflight.accuracy(like="resnet50").by("likeness")
    """
    table = shipped_steps()
    devices = None if on is None else _devices(on)
    _check_tier(tier)
    rows = tuple(row for row in table.rows if devices is None or row.device in devices)
    pairs = judged(rows, tier)
    levels = [] if like is None else _resembling(like, rows)
    if like is not None:
        widest = levels[-1][1] if levels else []
        pairs = judged(widest, tier)
        rows = tuple(widest)
    steps = [pair for pair in pairs if pair[0].is_step]
    return Accuracy(
        rooflight=table.rooflight,
        made=table.made,
        on=None if devices is None else ",".join(devices),
        like=like,
        tier=tier,
        steps=spread_of(steps) if steps else None,
        groups=(
            *(_group("likeness", name, "all", some) for name, of in levels if (some := judged(_timed(of), tier))),
            *_groups("device", pairs, lambda row: row.device if row.scope != KERNELS else None),
            *_groups("kernels", pairs, lambda row: row.device if row.scope == KERNELS else None),
            *_groups("kind", pairs, lambda row: row.kind if row.scope != KERNELS else None, whole=True),
            *_groups("length", steps, _length, whole=True),
            *_groups("bound", steps, lambda row: "host" if row.host_bound else "device", whole=True),
            *_groups("evidence", pairs, _evidence, whole=True),
            *_groups("source", pairs, lambda row: row.source if row.scope != KERNELS else None, whole=True),
        ),
        worst=_worst(pair for pair in pairs if pair[0].scope != KERNELS),
        rows=rows,
        sources={name: source for name, source in table.sources.items() if any(row.source == name for row in rows)},
        notes=tuple(_notes(devices, like, tier, rows)),
    )


def _devices(on: str | Sequence[str]) -> list[str]:
    """Each once, as `predict` takes them."""
    return list(dict.fromkeys(_device(name.strip()) for name in (several(on) if isinstance(on, str) else on)))


def _device(on: str) -> str:
    """Its name in the table. Some devices have rows and no place in the database."""
    if on.casefold() == "here":
        from rooflight.prediction.resolve_devices import device_of

        return device_of(on).name
    of_rows = {row.device.casefold(): row.device for row in shipped_steps().rows}
    if on.casefold() in of_rows:
        return of_rows[on.casefold()]
    return find(on).name


def _check_tier(tier: str | None) -> None:
    known = sorted({name for row in shipped_steps().rows for name in row.predictions})
    if tier is not None and tier not in known:
        raise BadInput("no-rows", f"--tier={tier}: no row was predicted so; there are {', '.join(known)}")


# --- groups ---


def _timed(rows: Sequence[CheckedStep]) -> list[CheckedStep]:
    """Without times of kernels alone, which are no steps, and are told apart from them."""
    return [row for row in rows if row.scope != KERNELS]


def _groups(
    by: By,
    pairs: Sequence[tuple[CheckedStep, str]],
    name_of: Callable[[CheckedStep], str | None],
    *,
    whole: bool = False,
) -> list[AccuracyGroup]:
    """Those of a name together; `whole`: whatever the step, else by step."""
    found: dict[tuple[str, str], list[tuple[CheckedStep, str]]] = {}
    for row, tier in pairs:
        name = name_of(row)
        if name is not None:
            found.setdefault((name, "all" if whole else _what(row)), []).append((row, tier))
    return [
        _group(by, name, what, some) for (name, what), some in sorted(found.items(), key=lambda pair: _order(*pair[0]))
    ]


def _order(name: str, what: str) -> tuple[int, int, str, int]:
    """Devices as the database has them, lengths from short to long, all else by name."""
    place = _WHATS.index(what)
    for known in (names(), [word for _, word in LENGTHS], KINDS):
        if name in known:
            return 0, list(known).index(name), name, place
    return 1, 0, name, place


def _group(by: By, name: str, what: str, pairs: Sequence[tuple[CheckedStep, str]]) -> AccuracyGroup:
    tiers = ", ".join(sorted({tier for _, tier in pairs}))
    return AccuracyGroup(by=by, name=name, tier=tiers, what=what, errors=spread_of(pairs))


def _what(row: CheckedStep) -> str:
    if row.kind in PARTS:
        return {"op": "single ops", "chain of ops": "chains of ops"}[row.kind]
    return {"infer": "inference", "train": "training"}[row.step]


def _length(row: CheckedStep) -> str:
    return next(words for most, words in LENGTHS if row.published_s < most)


def _evidence(row: CheckedStep) -> str | None:
    if row.scope == KERNELS:
        return None
    return "some ops are a guess" if row.guessed else "the like of every op was timed"


def _worst(pairs: Iterable[tuple[CheckedStep, str]]) -> tuple[WorstRow, ...]:
    def ratio(pair: tuple[CheckedStep, str]) -> float:
        times = 1 + pair[0].error(pair[1])
        return max(times, 1 / times) if times > 0 else float("inf")

    return tuple(
        WorstRow(row=row, tier=tier, error=row.error(tier), inside=row.is_inside(tier))
        for row, tier in sorted(pairs, key=ratio, reverse=True)[:_WORST]
    )


# --- likeness ---


def plain_name(model: str) -> str:
    """Without the zoo and the tag of its weights.

    >>> plain_name("timm:vit_base_patch16_224.augreg")
    'vit_base_patch16_224'
    """
    for zoo in _ZOOS:
        model = model.removeprefix(zoo)
    return model.rpartition("/")[2].partition(".")[0].lower().replace("-", "_")


def architecture(model: str) -> str:
    """What networks of one design have in common in their names.

    >>> [architecture(name) for name in ("resnet50", "tf_efficientnetv2_s", "vit_b_16", "gpt2_large")]
    ['resnet', 'efficientnet', 'vit', 'gpt']
    """
    name = plain_name(model)
    for variant in _VARIANTS:
        name = name.removeprefix(variant)
    match = _ARCHITECTURE.match(name)
    return match[0] if match is not None else name


def _resembling(like: str, rows: Sequence[CheckedStep]) -> list[tuple[str, list[CheckedStep]]]:
    """Rows of the same model, of the same architecture, of the same kind: each holds those before it."""
    if like in KINDS:
        plural = like if like in PARTS else kind_in_words(like)
        return [(plural, [row for row in rows if row.kind == like])]
    if _FACTORY.search(like):
        raise BadInput(
            "no-rows",
            f"--like={like}: rows are of models with names, and that is a file of yours: say what kind of model it is: "
            f"{', '.join(KINDS[: -len(PARTS)])}",
        )
    everything = [row for row in shipped_steps().rows if row.kind not in PARTS]
    name, design = plain_name(like), architecture(like)
    kinds = [row.kind for row in everything if plain_name(row.model) == name] or [
        row.kind for row in everything if architecture(row.model) == design
    ]
    if not kinds and not like.startswith("hf:"):
        raise BadInput(
            "no-rows",
            f"--like={like}: no row is of such a model; name another, or its kind: {', '.join(KINDS[: -len(PARTS)])}",
        )
    kind = max(sorted(set(kinds)), key=kinds.count) if kinds else "transformer"
    whole = [row for row in rows if row.kind not in PARTS]
    levels = [
        (f"the same model: {name}", [row for row in whole if plain_name(row.model) == name]),
        (f"the same architecture: {design}", [row for row in whole if architecture(row.model) == design]),
        (f"the same kind: {kind}", [row for row in whole if row.kind == kind or architecture(row.model) == design]),
    ]
    return [(words, some) for words, some in levels if some]


# --- what must be said ---

_WOULD = "a step timed there with `rooflight measure`, beside `rooflight predict`, would check it"


def _other_boards(device: str) -> list[str]:
    """With timed steps, of the same chip by name: `v100-pcie-32` for `v100-sxm2-16`."""
    chip = device.partition("-")[0]
    others = [name for name in shipped_steps().tiers if name != device and name.partition("-")[0] == chip]
    return others if chip not in _SERIES else []


def _notes(
    devices: Sequence[str] | None, like: str | None, tier: str | None, rows: Sequence[CheckedStep]
) -> Iterable[Note]:
    table = shipped_steps()
    for device in devices or ():
        yield from _notes_of(device)
    checked = None if devices is None else [name for name in devices if any(row.device == name for row in table.rows)]
    if not rows and like is not None and checked != []:
        of = "" if checked is None else f" of {', '.join(checked)}"
        yield Note("never-checked", f"no timed step{of} resembles {like}: {_WOULD}")
    if devices is None:
        without = [name for name in names() if name not in table.tiers]
        if without:
            yield Note("never-checked", f"never checked on {', '.join(without)}: {_WOULD}")
    if tier is not None and rows and not judged(rows, tier):
        yield Note("no-row-of-tier", f"no row of these was predicted by the tier {tier}")


def _notes_of(device: str) -> Iterable[Note]:
    rows = [row for row in shipped_steps().rows if row.device == device]
    others = _other_boards(device)
    if not rows:
        beside = f" (other boards of the chip were: {', '.join(others)})" if others else ""
        yield Note(
            "never-checked", f"never checked on {device}: no timed step of it comes with rooflight{beside}; {_WOULD}"
        )
    elif sum(row.is_step for row in rows) < _FEW and others:
        yield Note(
            "few-steps",
            f"{device} has few steps; other boards of the chip have more: rooflight accuracy --on {others[0]}",
        )
