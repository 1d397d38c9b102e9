"""What the name and the sizes of a oneDNN primitive say: what it does, with which instructions, in which formats.

A name is `convolution jit:avx512_core forward_training f32 aBcd16b+ABcd16b16a>aBcd16b`, sizes are
`g4mb2_ic60oc44_ih28oh28kh3...` (`measurement/collectors/onednn.py` writes both). In a format, letters are dimensions
from the outermost in; a number and a letter at its end are a block: `aBcd16b` holds 16 channels side by side, so 3
channels take the room, and the work, of 16.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

UNVECTORED = "scalar"
"""Instructions of a reference implementation."""
_BLOCK = re.compile(r"(\d{1,12})([a-z])")
_SIZE = re.compile(r"([a-z]+)(\d{1,12})")
_INSTRUCTIONS = (
    # From the widest: `avx512_core_amx` is no `avx512`, and `avx2_vnni` no `avx`.
    ("amx", "amx"), ("avx10", "avx512"), ("avx512", "avx512"), ("avx2", "avx2"), ("avx", "avx"), ("sse41", "sse"),
)  # fmt: skip


@dataclass(frozen=True)
class Primitive:
    """A primitive, read from its name."""

    kind: str
    """`convolution`, `reorder`, `matmul`, ..."""
    implementation: str
    """As `jit:avx512_core`, `ref:any`."""
    direction: str
    """As `forward_training`, `backward_data`; empty: it has none."""
    formats: str
    """Of operands and result; empty: not told."""
    sizes: str
    """Of its problem, as oneDNN writes them."""

    @property
    def instructions(self) -> str | None:
        """The widest that its implementation uses; `scalar` for one that oneDNN wrote without vectors in mind; `None`:
        its name does not tell."""
        if re.search(r"\bref\b|:ref|^simple", self.implementation) and "gemm" not in self.implementation:
            return UNVECTORED
        return next((kind for word, kind in _INSTRUCTIONS if word in self.implementation), None)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {name: int(number) for name, number in _SIZE.findall(self.sizes.replace("_", ""))}

    @property
    def channels(self) -> str:
        """Of a convolution, in words: `3 to 64 channels`."""
        sizes = self._sizes
        groups = f" in {sizes['g']} groups" if "g" in sizes else ""
        return f"{sizes.get('ic', 0)} to {sizes.get('oc', 0)} channels{groups}"

    @property
    def useful_flops(self) -> int | None:
        """Of a convolution, all of its kernel's places counted: two for every product."""
        sizes = self._sizes
        if self.kind != "convolution" or not {"mb", "ic", "oc"} <= sizes.keys():
            return None
        places = math.prod(sizes[name] for name in ("od", "oh", "ow", "kd", "kh", "kw") if name in sizes)
        return 2 * sizes["mb"] * (sizes["ic"] // sizes.get("g", 1)) * sizes["oc"] * places

    @property
    def padded(self) -> float:
        """How many times the useful work it does because channels fill up whole vectors; 1: none is told of.

        Vectors lie along the channels that come out, of the gradient of the input along those that go in, of depthwise
        layers along the groups. The other channels are gone through one by one, however their blocks end.
        """
        sizes, weights = self._sizes, self.formats.partition(">")[0].partition("+")[2]
        if self.kind != "convolution" or not weights or not {"ic", "oc"} <= sizes.keys():
            return 1.0
        groups, blocks = sizes.get("g", 1), _blocks(weights)
        # Weights begin with the groups where there are any, then come channels out and in.
        if groups > 1 and "a" in blocks:
            block, channels = blocks["a"], groups
        elif self.direction == "backward_data":
            block, channels = blocks.get("c" if groups > 1 else "b", 1), sizes["ic"] // groups
        else:
            block, channels = blocks.get("b" if groups > 1 else "a", 1), sizes["oc"] // groups
        return math.ceil(channels / block) * block / channels


def _blocks(layout: str) -> dict[str, int]:
    """By dimension: how many of it lie side by side, all blocks of it together."""
    blocks: dict[str, int] = {}
    for number, letter in _BLOCK.findall(layout):
        blocks[letter] = blocks.get(letter, 1) * int(number)
    return blocks


def primitive_of(name: str, sizes: str = "") -> Primitive | None:
    """`None` for what is no primitive's name."""
    words = name.split()
    if len(words) < 2 or not re.fullmatch(r"\w+(:\w+)+", words[1]):
        return None
    formats = next((word for word in words[2:] if ">" in word and not re.match(r"(f|bf|s|u)\d", word)), "")
    direction = next((word for word in words[2:] if word.startswith(("forward", "backward"))), "")
    return Primitive(words[0], words[1], direction, formats, sizes)
