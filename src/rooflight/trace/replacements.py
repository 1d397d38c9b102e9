"""Attributes of torch's classes and modules, exchanged for the time of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    """As it was afterwards, which is not always torch's own: another trace may be around this one."""
    own = owner.__dict__.get(name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        if own is None:  # it is inherited
            delattr(owner, name)
        else:
            setattr(owner, name, own)
