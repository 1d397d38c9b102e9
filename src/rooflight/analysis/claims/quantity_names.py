"""The quantity that a row or a header names, as people write it: with a unit, a phase, a word for measured or
estimated, for one sample, or as a ratio of two."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace

from rooflight.analysis.claims.quantities import COUNTER, METRIC, QUANTITIES, ClaimQuantity, KindName
from rooflight.units import table_unit

_BRACKETS = re.compile(r"(?P<name>.+?),?\s*[(\[]\s*(?:in\s+)?(?P<unit>[^()\[\]]+?)\s*[)\]]")
_BEHIND = re.compile(r"(?P<name>.+?)[\s,_]+(?:in\s+)?(?P<unit>[^\s()\[\]_]+)")
_WORK = re.compile(r"(?:[KMGTP] ?)?FLOPS?", re.IGNORECASE)
"""What may be FLOPs or FLOP/s: people write both so."""
_PREFIXED = re.compile(r"(?P<unit>[KMGT])(?P<name>flops?(?:/s)?|macs?|params?|madds?)", re.IGNORECASE)
_PHASED = re.compile(r"(?P<phase>forward|backward|training|inference|optimizer)(?: pass| step)? (?P<name>.+)")
_MEASURED = "measured|actual|observed|profiled|recorded|timed|counted|achieved"
_ESTIMATED = "theoretical|estimated|predicted|calculated|computed|ideal|expected|modelled|analytical|paleo"
_WORD_FIRST = re.compile(rf"(?:(?P<measured>{_MEASURED})|(?P<estimated>{_ESTIMATED}))\s+(?P<name>.+)", re.IGNORECASE)
_WORD_LAST = re.compile(
    rf"(?P<name>.+?),?\s+[(\[]?(?:(?P<measured>{_MEASURED})|"
    rf"(?P<estimated>{_ESTIMATED}|(?:by |= ?|from )?flops? ?/ ?peak))[)\]]?",
    re.IGNORECASE,
)
_BY_PEAK = re.compile(r"theoretical|ideal|/ ?peak|paleo", re.IGNORECASE)
_PER_SAMPLE = re.compile(r"(?:/|\b(?:per|a|an|each)\s)\s*(?:image|img|sample|picture|example|frame)\b", re.IGNORECASE)
_PER_TOKEN = re.compile(r"(?:/|\bper\s)\s*(?:token|tok)\b", re.IGNORECASE)
_PRECISION = re.compile(r"(?:fp|bf|tf|int)[0-9]{1,2}|single|double|half", re.IGNORECASE)


_KIND_WORDS = re.compile(rf"\b(?:{_MEASURED}|{_ESTIMATED})\b|[()\[\],]|\s", re.IGNORECASE)


@dataclass(frozen=True)
class NamedQuantity:
    """A quantity as a row names it: `flops per image`, `wall time of conv2 / wall time`, a counter's own name."""

    quantity: ClaimQuantity
    written: str
    per_sample: bool = False
    metric: str = ""
    parts: tuple[Operand, Operand] | None = None
    """Of a ratio."""
    unit: str = ""
    """That the name has, for values without one: `GFLOPs`, `memory (MB)`."""
    kind: KindName | None = None
    """That its words tell: a `theoretical time` is computed."""
    precision: str = ""
    """That its words tell: `peak TFLOPS (fp32)`."""

    @property
    def is_by_peak(self) -> bool:
        """Do its words say that it is FLOPs over a peak, and no other model's?"""
        return self.kind == "estimated" and _BY_PEAK.search(self.written) is not None

    @property
    def may_be_a_speed(self) -> bool:
        """FLOPs whose name is also written for FLOP/s: `TFLOPS`."""
        bare = _KIND_WORDS.sub("", self.written)
        return (
            self.quantity.name in ("flops", "executed_flops")
            and not self.per_sample
            and _WORK.fullmatch(bare) is not None
        )


@dataclass(frozen=True)
class Operand:
    """One side of a ratio: `parameters of resnet50`, `measured flops on A100`."""

    named: NamedQuantity
    of: str = ""
    on: str = ""


class UnknownQuantity(ValueError):
    """Nothing by that name; the message says what was meant."""


def named(text: str) -> NamedQuantity:
    """The quantity that a row names."""
    written = " ".join(text.split())
    if METRIC.fullmatch(written.lower()):
        return NamedQuantity(COUNTER, written, metric=written.lower())
    if (name := _SPELLED.get(_plain(written))) is not None:
        unit = _own_unit(written, QUANTITIES[name])
        return NamedQuantity(QUANTITIES[name], written, unit=unit, kind=_kind_of(_WORD_FIRST.fullmatch(written)))
    if (without := _without_kind(written)) is not None:
        return without
    if " / " in written:
        above, _, below = written.partition(" / ")
        return NamedQuantity(QUANTITIES["ratio"], written, parts=(_operand(above), _operand(below)))
    shorter = " ".join(_PER_SAMPLE.sub(" ", written).split()).strip()
    if shorter != written and shorter:
        return replace(_of_a_sample(shorter, written), written=written, per_sample=True)
    if (with_unit := _with_unit(written)) is not None:
        return with_unit
    raise UnknownQuantity(_unknown(written))


def _of_a_sample(shorter: str, written: str) -> NamedQuantity:
    """`time per image (ms)` and `ms/img` without the sample."""
    try:
        return named(shorter)
    except UnknownQuantity:
        raise UnknownQuantity(_unknown(written)) from None


def _unknown(written: str) -> str:
    """Why a name is no quantity, and what was meant."""
    plain = _plain(written)
    if (phase := _PHASED.fullmatch(plain)) is not None and phase["name"] in _SPELLED:
        return f"{written!r} names a phase: write {phase['name']} as quantity, and {phase['phase']} in the column phase"
    if plain == "ratio":
        return "a ratio of what? Write it as `wall time / gpu busy`, with spaces around the /"
    said = f"{written!r} is no quantity that can be checked"
    if _PER_TOKEN.search(plain):
        return f"{said}: nothing is known for one token, state it for the step or for a sample"
    near = [
        word
        for word in difflib.get_close_matches(plain, _SPELLED, n=3, cutoff=0.8)
        if word.split()[:-1] == plain.split()[:-1] or len(word.split()) == len(plain.split()) == 1
    ]
    names = list(dict.fromkeys(_SPELLED[word] for word in near if len(plain) > 4))
    hint = f"did you mean {' or '.join(names)}?" if names else "a ledger knows nothing of it"
    return f"{said}: {hint}"


def _kind_of(match: re.Match[str] | None) -> KindName | None:
    if match is None:
        return None
    return "measured" if match["measured"] else "estimated"


def _without_kind(written: str) -> NamedQuantity | None:
    """`measured time (ms)`, `time by FLOPs / peak`: the quantity without the word that tells its kind."""
    match = _WORD_LAST.fullmatch(written) or (None if " / " in written else _WORD_FIRST.fullmatch(written))
    if match is None:
        return None
    try:
        return replace(named(match["name"]), written=written, kind=_kind_of(match))
    except UnknownQuantity:
        return None


def _own_unit(written: str, quantity: ClaimQuantity) -> str:
    """A name that is a unit itself: `GFLOP/s`, `% of roof`."""
    if quantity.unit == "part" and ("%" in written or "percent" in written.lower()):
        return "%"
    unit = table_unit(written, quantity.unit) if quantity.unit == "flop/second" else None
    return written if unit is not None and unit.power else ""


_WEIGHED = {"params": "param_bytes", "output_shape": "output_bytes", "input_shape": "input_size"}
"""Quantities that are another one where they are in bytes."""


def _with_unit(written: str) -> NamedQuantity | None:
    """`FLOPs (G)`, `memory [MB]`, `DRAM GB`, `GFLOPs` with the prefix in front, `GB/s` alone; and `peak (fp32)`."""
    for base, name in (("byte/second", "traffic"), ("second", "time")):
        unit = table_unit(written, base)
        if unit is not None and unit.power:
            return NamedQuantity(QUANTITIES[name], written, unit=written)
    prefixed = _PREFIXED.fullmatch(written)
    if prefixed is not None and _plain(prefixed["name"]) in _SPELLED:
        quantity = QUANTITIES[_SPELLED[_plain(prefixed["name"])]]
        return NamedQuantity(quantity, written, unit=written if quantity.unit == "flop/second" else prefixed["unit"])
    match = _BRACKETS.fullmatch(written) or _BEHIND.fullmatch(written)
    if match is None:
        return None
    try:
        inner = named(match["name"])
    except UnknownQuantity:
        return None
    return _in_unit(inner, match["unit"], written)


def _in_unit(inner: NamedQuantity, text: str, written: str) -> NamedQuantity | None:
    """A quantity whose name has this unit, or this precision, behind it; `None` where it cannot have it."""
    if _PRECISION.fullmatch(text):
        return replace(inner, written=written, precision=text.lower())
    base, name = inner.quantity.unit, inner.quantity.name
    if base not in ("shape", "word") and (unit := table_unit(text, base)) is not None:
        is_twice = bool(inner.unit) and table_unit(inner.unit, base) != unit and inner.unit.lower() != text.lower()
        return None if is_twice else replace(inner, written=written, unit=text)
    if name in _WEIGHED and table_unit(text, "byte") is not None:
        return replace(inner, written=written, quantity=QUANTITIES[_WEIGHED[name]], unit=text)
    if name == "dram_bytes" and table_unit(text, "byte/second") is not None:
        return replace(inner, written=written, quantity=QUANTITIES["traffic"], unit=text)
    return None


def _operand(text: str) -> Operand:
    match = re.fullmatch(r"(?P<name>.+?)(?:\s+of\s+(?P<of>\S+))?(?:\s+on\s+(?P<on>.+))?", text.strip())
    assert match is not None
    return Operand(named(match["name"]), match["of"] or "", match["on"] or "")


def _plain(text: str) -> str:
    """`Wall-Time_s` and `wall time` are one."""
    spaced = re.sub(r"[\s_]+", " ", text.lower()).removesuffix(" s").removesuffix("(s)")
    return re.sub(r" ?/ ?sec(?:ond)?$", "/s", " ".join(spaced.split()))


_SPELLED = {
    _plain(word): name for name, quantity in QUANTITIES.items() if name != "ratio" for word in (name, *quantity.spelled)
}
"""Every spelling and the quantity it stands for; a ratio is spelled by its two sides."""
