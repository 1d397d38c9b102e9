"""Released models by their names: configurations written from their published figures, known without torch."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

_UNITS = {"M": 10**6, "B": 10**9, "T": 10**12}


@dataclass(frozen=True)
class ReleasedModel:
    """One released model, which transformers builds from `config`: an entry of `released.toml`, where the fields are
    explained. It has `parameters` or `published`."""

    name: str
    title: str
    family: str
    type: str
    hub: str
    config: Mapping[str, Any]
    cls: str = ""
    parameters: int | None = None
    published: str = ""

    def has(self, count: int) -> bool:
        """Is this its number of parameters, as far as it is known?"""
        if self.parameters is not None:
            return count == self.parameters
        number, unit = self.published.split()
        return f"{count / _UNITS[unit]:.{len(number.partition('.')[2])}f}" == number

    @property
    def about(self) -> str:
        """What it is, in one line."""
        size = f"{self.parameters:,}" if self.parameters else self.published
        return f"{self.title}; {size} parameters"


def _read() -> Mapping[str, ReleasedModel]:
    entries = tomllib.loads((files(__package__) / "released.toml").read_text(encoding="utf-8"))
    return MappingProxyType({name: _entry(name, dict(fields)) for name, fields in entries.items()})


def _entry(name: str, fields: dict[str, Any]) -> ReleasedModel:
    # TOML has no null.
    config = {key: None if value == "none" else value for key, value in fields.pop("config").items()}
    return ReleasedModel(name=name, config=config, cls=fields.pop("class", ""), **fields)


RELEASED = _read()
