"""Pages of memory that the kernel has handed out to this process so far."""

from __future__ import annotations

import sys


def page_faults() -> int | None:
    """Without those that had to be read from a disk; `None` on Windows, which does not tell."""
    if sys.platform == "win32":
        return None
    import resource  # there is none on Windows, and this module is imported everywhere

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
