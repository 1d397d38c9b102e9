"""How quantities are written for people. Inside, everything is in SI units; this is the last step before the screen."""

from __future__ import annotations

STEERING = {
    **dict.fromkeys([*range(32), *range(127, 160), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]),
    **dict.fromkeys([*range(9, 14), *range(28, 32), 0x85, 0x2028, 0x2029], " "),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}
"""What ends a line becomes a space; what a terminal obeys, or what turns the direction of reading, goes; half a letter,
as of a path that is not UTF-8, cannot be written."""
_PREFIXES = tuple((1000**power, prefix) for power, prefix in zip(range(8, 0, -1), "YZEPTGMk", strict=True))


def printable(text: str) -> str:
    """One line that is only read, whatever somebody has called a module, a kernel or a file."""
    return text if text.isprintable() else text.translate(STEERING)


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
    """Three digits, the last ones too where they are noughts: `0.699`, `45.0`, `1,234`."""
    if value is None:
        return "–"
    if not value or abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:#.3g}".removesuffix(".")


def percent(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1%}" if value >= 0.0005 or value == 0 else "<0.1%"


def shape(dims: tuple[int, ...] | None) -> str:
    """`64×64×24×24`; a scalar is `1`."""
    if dims is None:
        return "–"
    return "×".join(map(str, dims)) if dims else "1"


_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def seconds(value: float | None) -> str:
    """`22.9 ms`: three digits."""
    if value is None:
        return "–"
    if value == 0:
        return "0 s"
    size, unit = next(((size, unit) for size, unit in _STEPS if abs(value) >= size * 0.9995), _STEPS[-1])
    return f"{_rounded(value / size)} {unit}"


def per_second(value: float | None) -> str:
    """A count by the second, with three digits: `7.26`, `39.0`, `1,779`, `13.9 k`."""
    if value is None:
        return "–"
    return count(value) if abs(value) >= 10_000 else _rounded(value)


def tera(value: float | None) -> str:
    """FLOP/s as TFLOP/s, without the unit."""
    return "–" if value is None else _short(value / 1e12)


def peak_tera(value: float) -> str:
    """A peak as its data sheet gives it: `494.5 TFLOP/s`."""
    return f"{value / 1e12:,g} TFLOP/s"


def giga(value: float | None) -> str:
    """B/s as GB/s, without the unit."""
    return "–" if value is None else _short(value / 1e9)


def _short(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) < 0.01:
        return "<0.01"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def whole_bytes(value: float | None) -> str:
    return bytes_(None if value is None else round(value))


def whole_count(value: float | None) -> str:
    return count(round(value) if isinstance(value, float) and value.is_integer() else value)


def quotient(value: float | None) -> str:
    """A ratio with three digits: `1.00`, `12.3`, `1,234`."""
    if value is None:
        return "–"
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else _rounded(value)


def share(value: float | None) -> str:
    """A part of a whole; one that takes away from it has a minus."""
    return percent(value) if value is None or value >= 0 else f"-{percent(-value)}"


def signed_percent(value: float | None) -> str:
    """A relative difference: exactly equal is `0`, and what is not never reads so."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    return f"{value:+.2%}" if abs(value) >= 0.0001 else f"{value:+.0e}"


def _rounded(value: float) -> str:
    """Three digits, also after rounding."""
    magnitude = abs(value)
    return f"{value:,.{2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0}f}"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    return f"{value:.2f}" if magnitude < 10 else f"{value:.1f}" if magnitude < 100 else f"{value:.0f}"
