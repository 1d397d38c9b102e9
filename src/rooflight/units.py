"""How quantities are written for people. Inside, everything is in SI units; this is the last step before the screen."""

from __future__ import annotations

_PREFIXES = (
    (10**24, "Y"),
    (10**21, "Z"),
    (10**18, "E"),
    (10**15, "P"),
    (10**12, "T"),
    (10**9, "G"),
    (10**6, "M"),
    (10**3, "k"),
)


def count(value: int | float | None) -> str:
    """`4.09 G`; whole numbers under 10,000 as they are; unknown as a dash."""
    if value is None:
        return "–"
    if abs(value) < 10_000:
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{_three_digits(value / size)} {prefix}"
    return f"{value:,}"


def bytes_(value: int | None) -> str:
    """`15.0 MB`, powers of 1,000."""
    if value is None:
        return "–"
    if abs(value) < 10_000:
        return f"{value:,} B"
    text = count(value)
    return f"{text}B"


def exact(value: int | float | None) -> str:
    """All digits: `1,358,954,496`."""
    return "–" if value is None else f"{value:,}"


def ratio(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def percent(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1%}" if value >= 0.0005 or value == 0 else "<0.1%"


def shape(dims: tuple[int, ...] | None) -> str:
    """`64×64×24×24`; a scalar is `1`."""
    if dims is None:
        return "–"
    return "×".join(map(str, dims)) if dims else "1"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    return f"{value:.2f}" if magnitude < 10 else f"{value:.1f}" if magnitude < 100 else f"{value:.0f}"
