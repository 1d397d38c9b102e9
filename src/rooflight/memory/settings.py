"""The settings of torch's CUDA allocator, as PYTORCH_CUDA_ALLOC_CONF gives them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rooflight.errors import BadInput
from rooflight.ledger import Note

MIB = 1 << 20
_FIRST, _INTERVALS = 20, 16
"""Sizes are told apart by powers of two from 1 MiB to 64 GiB."""
_KNOWN_ELSEWHERE = frozenset({
    "backend", "pinned_use_cuda_host_register", "pinned_num_register_threads", "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb", "pinned_free_catch_all", "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb", "release_lock_on_cudamalloc",
    "graph_capture_record_stream_reuse", "throw_on_cudamalloc_oom",
})  # fmt: skip
"""Settings that move no byte of device memory."""


@dataclass(frozen=True)
class AllocatorSettings:
    """Torch's defaults, unless told otherwise."""

    expandable_segments: bool = False
    large_segment_bytes: int = 20 * MIB
    """What requests of 1 to 10 MiB are cut from; with expandable segments also the page that is mapped."""
    max_split_bytes: int | None = None
    """Blocks of this size or more are not split, and not given to smaller requests."""
    max_non_split_rounding_bytes: int = 20 * MIB
    garbage_collection_threshold: float = 0.0
    """Part of what the memory fraction allows, from which on old free blocks are given back first: torch heeds it only
    where there is such a fraction."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * _INTERVALS
    """For sizes up to 2 MiB, up to 4 MiB, ...: into how many parts the step between two powers of two is divided."""
    memory_fraction: float | None = None
    """Of the device's memory: what the process may hold, as torch.cuda.set_per_process_memory_fraction sets it too."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """Of a setting that does nothing, to whoever set it."""
        if self.garbage_collection_threshold and self.memory_fraction is None:
            return (
                Note(
                    "setting-without-effect",
                    "torch heeds garbage_collection_threshold only under a memory fraction: add "
                    "per_process_memory_fraction:0.9, or call torch.cuda.set_per_process_memory_fraction",
                ),
            )
        return ()

    def divisions(self, nbytes: int) -> int:
        interval = max(0, nbytes.bit_length() - 1 - _FIRST)
        return self.roundup_power2_divisions[min(interval, _INTERVALS - 1)]


def parse(text: str) -> AllocatorSettings:
    """`expandable_segments:True,max_split_size_mb:128` and the like.

    >>> parse("max_split_size_mb:40").max_split_bytes
    41943040
    """
    values: dict[str, object] = {}
    for name, value in _pairs(text):
        if name in _READERS:
            field, read = _READERS[name]
            values[field] = read(name, value)
        elif name not in _KNOWN_ELSEWHERE:
            raise BadInput("unknown-key", f"unknown allocator setting {name!r}; known: {', '.join(_READERS)}")
        elif name == "backend" and value != "native":
            raise BadInput(
                "unknown-choice",
                f"allocator backend {value!r} is not modelled, only torch's own: leave it out, or say backend:native",
            )
    # As torch has it: what is not split may exceed a request by a large segment, unless told otherwise.
    values.setdefault("max_non_split_rounding_bytes", values.get("large_segment_bytes", 20 * MIB))
    settings = AllocatorSettings(**values)  # type: ignore[arg-type]
    segment = settings.large_segment_bytes
    for name in ("max_split_size_mb", "max_non_split_rounding_mb"):
        nbytes = getattr(settings, _READERS[name][0])
        if nbytes is not None and nbytes < segment:
            raise BadInput(
                "out-of-range",
                f"allocator setting {name} must be at least a large segment, which is {segment // MIB}, got "
                f"{nbytes // MIB}",
            )
    return settings


def _pairs(text: str) -> list[tuple[str, str]]:
    """Split at the commas that are outside of brackets."""
    pairs = []
    for part in filter(None, map(str.strip, re.findall(r"(?:\[[^\]]*\]?|[^,\[])+", text))):
        name, colon, value = part.partition(":")
        if not colon:
            raise BadInput("missing-value", f"allocator setting {part!r} has no value: write NAME:VALUE,...")
        pairs.append((name.strip(), value.strip()))
    return pairs


def _truth(name: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise BadInput("not-a-truth-value", f"allocator setting {name} must be True or False, got {value!r}")
    return value == "True"


def _mib(name: str, value: str, *, least: int = 1) -> int:
    """In bytes."""
    if not value.isascii() or not value.isdigit() or int(value) < least:
        raise BadInput(
            "out-of-range", f"allocator setting {name} must be a whole number of at least {least}, got {value!r}"
        )
    return int(value) * MIB


def _fraction(name: str, value: str, *, or_one: bool = False) -> float | None:
    """`or_one`: the whole is allowed, which is no limit."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if or_one and number == 1:
        return None
    if not 0 < number < 1:
        raise BadInput("out-of-range", f"allocator setting {name} must lie between 0 and 1, got {value!r}")
    return number


def _divisions(name: str, value: str) -> tuple[int, ...]:
    """One number for all sizes, or `[256:1,512:2,>:4]`: each holds from so many MiB to the next power of two, the first
    also for all below it, `>` for all above the last. Sizes in between that none is given for are not divided, nor are
    those that 0 is given for."""
    if not value.startswith("["):
        return (_power(name, value),) * _INTERVALS
    if not value.endswith("]"):
        raise BadInput(
            "bad-setting", f"allocator setting {name}: the list has no end, write [256:1,512:2,>:4]; got {value!r}"
        )
    divisions = [0] * _INTERVALS
    last: int | None = None
    for entry in value.strip("[]").split(","):
        size, _, parts = entry.strip().partition(":")
        if size == ">":
            start = 0 if last is None else last + 1
            divisions[start:] = [_parts(name, parts)] * (_INTERVALS - start)
            continue
        interval = min(_power(name, size).bit_length() - 1, _INTERVALS - 1)
        if last is None:
            divisions[:interval] = [_parts(name, parts)] * interval
        divisions[interval] = _parts(name, parts)
        last = interval
    return tuple(divisions)


def _parts(name: str, value: str) -> int:
    return 0 if value == "0" else _power(name, value)


def _power(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < 1 or int(value) & (int(value) - 1):
        raise BadInput("bad-setting", f"allocator setting {name} takes powers of two, got {value!r}")
    return int(value)


_READERS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "expandable_segments": ("expandable_segments", _truth),
    "large_segment_size_mb": ("large_segment_bytes", partial(_mib, least=11)),
    "max_split_size_mb": ("max_split_bytes", _mib),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mib),
    "garbage_collection_threshold": ("garbage_collection_threshold", _fraction),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "per_process_memory_fraction": ("memory_fraction", partial(_fraction, or_one=True)),
}
"""By the name torch knows a setting under: the field it is here, and what reads its value."""
