"""Traces of built-in models, kept for the next process: importing torch and tracing takes longer than all that a report
or a prediction does with a trace.

A kept trace is what a process that has just loaded torch would find: it is known by the versions, the code that traces,
the environment that torch reads, and all that describes the step. Whoever has loaded torch, and may have changed its
switches, has his steps traced.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace as replace_field

import rooflight
from rooflight import user_cache
from rooflight._version import __version__
from rooflight.files import UNDECODABLE
from rooflight.ledger import Ledger
from rooflight.models import builtin_names
from rooflight.spec.fields import is_own
from rooflight.trace import TraceOptions

_MOST = 200_000_000
"""Bytes: a trace takes some hundred kilobytes, one of a large language model's training ten million."""
_CODE = ("ledger.py", "spec", "models", "trace")


@dataclass(frozen=True)
class KeptTrace:
    """The place of one trace."""

    name: str
    command: str

    @classmethod
    def of(
        cls,
        model: object,
        which: Mapping[str, Any],
        options: TraceOptions,
        batch: int | None,
        switches: Mapping[str, str] | None,
        *,
        scales: bool,
    ) -> KeptTrace | None:
        """`None` where it cannot be kept: others' models and losses change, a CPU's kernels are this machine's, and
        data is another every time. `switches`: those of torch, if it was not loaded before. `scales`: it was found to
        serve every batch."""
        by_name = isinstance(model, str) and model in builtin_names()
        has_own = is_own(options.loss) or is_own(options.optimizer)
        if switches is None or not by_name or has_own or options.runs or not options.target.startswith("cuda"):
            return None
        try:
            versions = (__version__, _code(), version("torch"))
        except (OSError, PackageNotFoundError):  # torch, or rooflight, as no package brings it
            return None
        described = [versions, switches, model, which, asdict(replace(options, command="")), batch, scales]
        written = msgspec.json.encode(described, enc_hook=repr, order="sorted")
        return cls(f"trace-{blake2b(written, digest_size=20).hexdigest()}.msgpack", options.command)

    def read(self) -> Ledger | None:
        content = user_cache.read(self.name)
        if content is None:
            return None
        try:
            ledger = msgspec.msgpack.decode(content, type=Ledger)
        except UNDECODABLE:
            return None
        return replace_field(ledger, header=replace_field(ledger.header, command=self.command))

    def write(self, ledger: Ledger) -> None:
        content = msgspec.msgpack.encode(ledger)
        if msgspec.msgpack.decode(content, type=Ledger) == ledger:  # not so if it held a NaN
            user_cache.write(self.name, content, most=_MOST)


def switches_of_torch() -> dict[str, str] | None:
    """The environment that torch will read; `None` where it has been loaded: it sets variables of its own then, and
    somebody may have changed its switches."""
    if "torch" in sys.modules:
        return None
    return {name: value for name, value in os.environ.items() if name.startswith(("TORCH", "PYTORCH"))}


@cache
def _code() -> str:
    """What traces: in a clone it changes under one version."""
    digest = blake2b(digest_size=20)
    root = Path(rooflight.__file__).parent
    for name in _CODE:
        for path in sorted((root / name).rglob("*.py")) or [root / name]:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
