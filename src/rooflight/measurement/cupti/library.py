"""Where CUPTI lies on this machine. Nothing is loaded here, but the driver's library to see that it is there."""

from __future__ import annotations

import ctypes as C
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CuptiPaths:
    """Where the two libraries lie. `cupti` needs `nvperf_host` to be loaded before it."""

    cupti: Path
    nvperf_host: Path


@functools.cache
def has_driver() -> bool:
    """Is the driver's own library on this machine?"""
    try:
        C.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def loaded() -> list[Path]:
    """The CUPTI libraries that are in this process already; two of them hinder each other."""
    with suppress(OSError):  # no /proc: then nobody can tell
        maps = Path("/proc/self/maps").read_text()
        names = re.findall(r"(/\S*/libcupti\.so[.\d]*)$", maps, flags=re.MULTILINE)
        return list(dict.fromkeys(Path(path) for path in names))
    return []


def _folders() -> Iterator[Path]:
    """Where CUPTI may lie, best first: in this process, torch's own, other wheels, CUDA toolkits, the system."""
    # A second copy beside one that torch has loaded would be deaf: CUDA calls back only one of them.
    yield from (path.parent for path in loaded())
    torch = importlib.util.find_spec("torch")
    roots = [Path(torch.origin).parent.parent] if torch is not None and torch.origin else []
    for root in dict.fromkeys([*roots, *map(Path, filter(None, sys.path))]):
        nvidia = root / "nvidia"
        yield nvidia / "cu13" / "lib"
        yield nvidia / "cuda_cupti" / "lib"
        yield from sorted(nvidia.glob("cu[0-9]*/lib"), reverse=True)
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    toolkits = sorted(Path("/usr/local").glob("cuda-*"), reverse=True)
    for home in [*map(Path, homes), Path("/usr/local/cuda"), *toolkits]:
        yield home / "extras" / "CUPTI" / "lib64"
        yield home / "targets" / "x86_64-linux" / "lib"
        yield home / "targets" / "sbsa-linux" / "lib"
    for folder in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        yield Path(folder)
    for machine in ("x86_64", "aarch64"):
        yield Path(f"/usr/lib/{machine}-linux-gnu")
    yield Path("/usr/lib64")


def find_library() -> CuptiPaths | None:
    """The first folder that has both libraries, or `None`. Loads nothing."""
    for folder in _folders():
        cupti = sorted(folder.glob("libcupti.so*"), key=lambda path: len(path.name))
        host = sorted(folder.glob("libnvperf_host.so*"), key=lambda path: len(path.name))
        if cupti and host:
            return CuptiPaths(cupti=cupti[0], nvperf_host=host[0])
    return None
