"""Text for LaTeX: every sign in ASCII that pdflatex sets in any document, how wide it is, where a line may end."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

_WIDTHS = {
    0.29: ",.:;[]il·", 0.31: "!|", 0.32: "j", 0.34: "-", 0.4: "'()`st", 0.41: "If", 0.42: "r", 0.46: "cez▁▂▃▄▅▆▇█",
    0.48: "?", 0.51: '"$*/0123456789–', 0.53: "J\\{}gkqvxy", 0.56: "Sadhnou°", 0.62: "Z^bpµ", 0.63: "L", 0.66: "F•",
    0.69: "EP", 0.73: "BCTw", 0.77: "ARVXYDU", 0.79: "&+=@OQ_~GHKN<>×−±≤≥≈≠", 0.84: "#%mß√", 0.95: "M",
    1.04: "W→←↔—∞ÆŒæœ", 1.35: "…",
}  # fmt: skip
"""In em of Computer Modern or Latin Modern at 10 pt, with the widest kern that may follow, in whichever encoding is the
wider; read with tftopl of cmr, cmbx, ec-lmr, ec-lmbx, ecrm and ecbx at 7 to 10 pt, each over how much wider it is."""
SPACE = 0.334
BOLD = 1.15
"""Bold is at most so much wider."""

_WRITTEN = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"$\sim$", "^": r"\textasciicircum{}", "×": r"$\times$", "−": r"$-$", "–": "--", "—": "---",
    "·": r"$\cdot$", "µ": r"\textmu{}", "…": r"\ldots{}", "±": r"$\pm$", "→": r"$\rightarrow$", "←": r"$\leftarrow$",
    "↔": r"$\leftrightarrow$", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "≤": r"$\leq$",
    "≥": r"$\geq$", "≈": r"$\approx$", "≠": r"$\neq$", "∞": r"$\infty$", "√": r"$\surd$", "°": r"$^\circ$",
    "•": r"\textbullet{}", '"': r"\char34{}", "ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "œ": r"\oe{}",
    "Œ": r"\OE{}", "ø": r"\o{}", "Ø": r"\O{}", "ł": r"\l{}", "Ł": r"\L{}", "ı": r"\i{}",
    "“": "``", "”": "''", "„": "''", "‘": "`", "’": "'", "‐": "-", "‑": "-", "‒": "--", "⋅": r"$\cdot$", "⁄": "/",
    **{bar: f"\\rule{{.4em}}{{.{height:02d}em}}" for bar, height in zip("▁▂▃▄▅▆▇█", range(8, 72, 8), strict=True)},
}  # fmt: skip
_AS_WIDE_AS = {"“": "–", "”": "–", "„": "–", "‘": "`", "’": "'", "‐": "-", "‑": "-", "‒": "–", "⋅": "·", "ø": "o",
               "Ø": "O", "ł": "f", "Ł": "L", "ı": "i", "⁄": "/"}  # fmt: skip
_ACCENTS = {"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
            "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c", "\u0323": "d"}  # fmt: skip
_GREEK = re.compile(
    r"GREEK (SMALL|CAPITAL) LETTER (ALPHA|BETA|GAMMA|DELTA|EPSILON|ZETA|ETA|THETA|IOTA|KAPPA|LAMDA|MU"
    r"|NU|XI|PI|RHO|SIGMA|TAU|UPSILON|PHI|CHI|PSI|OMEGA)"
)
_GREEK_CAPITALS = ("Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega")
_JOINED = re.compile("--|''|``|,,|[!?]`")
"""What fonts join to another sign."""


@dataclass(frozen=True)
class Sign:
    """One sign of a text."""

    tex: str
    """How it is written."""
    em: float
    """How wide it is, at most, in em of upright roman at 10 pt."""
    opens: bool = False
    """May a line end behind it, in a word that has no room?"""


_EM = {sign: em for em, alike in _WIDTHS.items() for sign in alike}


@lru_cache(maxsize=4096)
def sign(char: str) -> Sign:
    """One sign, whatever it is: what nobody knows stands as its code point."""
    if char in _WRITTEN or char in _EM:
        return Sign(_WRITTEN.get(char, char), _EM[_AS_WIDE_AS.get(char, char)], char in "._/×:,;=+-)]>|@&–—\\")
    kind, name = unicodedata.category(char), unicodedata.name(char, "")
    if kind == "Cf" or name.startswith("VARIATION SELECTOR"):
        return Sign("", 0.0)
    greek = _GREEK.fullmatch(name)
    if greek is not None:
        return _greek(greek[2].replace("LAMDA", "LAMBDA").capitalize(), capital=greek[1] == "CAPITAL")
    how, _, parts = unicodedata.decomposition(char).rpartition("> ")
    made_of = [chr(int(part, 16)) for part in parts.split()]
    if not how and len(made_of) == 2 and made_of[0].isascii() and made_of[1] in _ACCENTS:
        return Sign(f"\\{_ACCENTS[made_of[1]]}{{{made_of[0]}}}", sign(made_of[0]).em)
    if 0 < len(made_of) <= 3 and (how or len(made_of) == 1) and " " not in made_of:
        inside = [sign(part) for part in made_of]
        if not any(part.tex.startswith("U+") for part in inside):
            tex = "".join(part.tex for part in inside)
            raised = {"<super": r"\textsuperscript{%s}", "<sub": r"\textsubscript{%s}"}.get(how, "%s")
            return Sign(raised % tex, width(inside))
    code = f"U+{ord(char):04X}"
    return Sign(code, sum(_EM[letter] for letter in code), opens=True)


def _greek(name: str, *, capital: bool) -> Sign:
    if capital and name not in _GREEK_CAPITALS:  # those that look like Latin ones
        return sign({"Eta": "H", "Rho": "P", "Chi": "X"}.get(name, name[0]))
    return Sign(f"$\\{name if capital else name.lower()}$", 0.84)


def signs(word: str) -> list[Sign]:
    """A word's signs; none of them is a space. A line may also end before a capital in the middle of a word, but not
    inside a number, nor between two that are alike."""
    row = [sign(char) for char in word]
    for at, (char, then) in enumerate(pairwise(word)):
        if char.islower() and then.isupper():
            row[at] = replace(row[at], opens=True)
        elif char == then or (char in ",." and then.isdecimal() and at and word[at - 1].isdecimal()):
            row[at] = replace(row[at], opens=False)
    return [part for each in row for part in (_letters(each) if each.tex.startswith("U+") else [each])]


def _letters(code: Sign) -> list[Sign]:
    """A code point may have to be broken, too."""
    *first, last = (sign(char) for char in code.tex)
    return [*(replace(letter, opens=False) for letter in first), replace(last, opens=True)]


def words(text: str) -> list[str]:
    """What stands between spaces, ends of lines and other signs that only keep things apart; a hyphen before a number
    is a minus."""
    text = unicodedata.normalize("NFC", text)
    spaced = "".join(" " if unicodedata.category(char) in ("Zs", "Zl", "Zp", "Cc") else char for char in text)
    return ["−" + word[1:] if re.match(r"-[\d.]", word) else word for word in spaced.split()]


def width(of: Sequence[Sign]) -> float:
    return sum(part.em for part in of)


def text_width(text: str) -> float:
    """In one line, without its indent; in em."""
    each = words(text)
    return sum(width(signs(word)) for word in each) + SPACE * max(len(each) - 1, 0)


def pieces(word: str) -> Iterator[list[Sign]]:
    """The parts of a word between which a line may end."""
    piece: list[Sign] = []
    for part in signs(word):
        piece.append(part)
        if part.opens and len(piece) > 1:
            yield piece
            piece = []
    if piece:
        yield piece


def widest_piece(text: str) -> float:
    return max((width(piece) for word in words(text) for piece in pieces(word)), default=0.0)


def latex(text: str, room: float | None = None) -> str:
    """Text in one line; with `room` (em), as words that never need more of a line than that."""
    return " ".join(_word(word, room) for word in words(text))


def _parts(word: str, room: float) -> list[list[Sign]]:
    """What of a word stands together in a line of so much room: all of it, its pieces, or single signs."""
    letters = signs(word)
    if width(letters) <= room:
        return [letters]
    parts: list[list[Sign]] = []
    for piece in pieces(word):
        parts += [piece] if width(piece) <= room else [[letter] for letter in piece]
    return parts


def _word(word: str, room: float | None) -> str:
    parts = [signs(word)] if room is None else _parts(word, room)
    hyphens = len(word) - len(word.lstrip("-"))
    if room is None or len(parts) > 1 or not 0 < hyphens < len(word):
        return "\\allowbreak{}".join(map(_joined, parts))
    # A hyphen that begins a word is a sign or an option: no line may end behind it.
    return f"\\mbox{{{_joined(parts[0][:hyphens])}}}{_joined(parts[0][hyphens:])}"


def _joined(of: Sequence[Sign]) -> str:
    written = ""
    for part in of:
        joins = bool(written) and _JOINED.search(written[-1] + part.tex[:1]) is not None
        written += ("{}" if joins else "") + part.tex
    return written


def lines(text: str, room: float) -> list[str]:
    """Text broken into lines of at most `room` em, each as LaTeX; a sign wider than that has a line for itself."""
    full: list[str] = []
    line: list[Sign] = []
    blank = Sign(" ", SPACE)
    for word in words(text):
        for number, part in enumerate(_parts(word, room)):
            longer = [*line, blank, *part] if line and number == 0 else [*line, *part]
            if line and width(longer) > room:
                full.append(_joined(line))
                longer = list(part)
            line = longer
    return [*full, _joined(line)] if line else full
