"""`--parallel`: how the GPUs are divided between data, tensor and pipeline parallelism, and where each rank lies.

Ranks are placed as Megatron-LM places them: tensor parallel ranks next to one another, then data parallel ones, then
pipeline stages, so that the chattiest share a node.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import Literal

from rooflight.errors import BadInput
from rooflight.parallel.fabric import RankGroup
from rooflight.parallel.gradients import BUCKET_BYTES, FIRST_BUCKET_BYTES
from rooflight.spec import part_of

DataMode = Literal["ddp", "zero1", "zero2", "zero3", "fsdp"]
"""How data parallel ranks share the work: whole replicas, or states cut up (`fsdp` is `zero3` as torch does it)."""

Recompute = Literal["none", "selective", "full"]

MODES: tuple[DataMode, ...] = ("ddp", "fsdp", "zero1", "zero2", "zero3")
WORDS = (*MODES, "tp", "pp")
_KINDS = ", ".join(WORDS)
FORMS = f"{_KINDS}, or tensor x pipeline x data as 8x4x2 or tp8pp4dp2"

_PARTS = re.compile(r"(tp|pp|dp)=?(\d+)")
_NUMBERS = re.compile(r"(\d+)x(\d+)x(\d+)")


@dataclass(frozen=True)
class Layout:
    """How many ranks of each kind. Their product is the number of GPUs."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    mode: DataMode = "ddp"
    gpus_per_node: int = 8

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)

    def in_nodes_of(self, most: int) -> Layout:
        """The same GPUs in nodes that hold at most so many: in as few and as evenly as can be, ranks of one tensor side
        by side. Nodes that were asked for stay, if they hold so many; one node is what nobody asked for."""
        if self.nodes > 1 and self.gpus_per_node <= most:
            return self
        if self.gpus <= most:
            return replace(self, gpus_per_node=most)
        used = most - most % self.tensor if self.tensor <= most else most
        each = -(-self.gpus // -(-self.gpus // used))
        return replace(self, gpus_per_node=min(used, -(-each // self.tensor) * self.tensor))

    @property
    def name(self) -> str:
        """`ddp`, `fsdp`, `tp`, `pp`, or `8x4x2` (tensor x pipeline x data) where several are above 1."""
        if self.tensor == self.pipeline == 1:
            return self.mode
        if self.data == self.pipeline == 1:
            return "tp"
        return "pp" if self.data == self.tensor == 1 else f"{self.tensor}x{self.pipeline}x{self.data}"

    @property
    def tensor_group(self) -> RankGroup:
        return self._group(self.tensor, apart=1)

    @property
    def data_group(self) -> RankGroup:
        return self._group(self.data, apart=self.tensor)

    @property
    def pipeline_group(self) -> RankGroup:
        return self._group(self.pipeline, apart=self.tensor * self.data)

    def _group(self, ranks: int, *, apart: int) -> RankGroup:
        """Ranks that lie `apart` GPUs from one another: so many of them fit into a node."""
        return RankGroup(ranks, min(ranks, max(self.gpus_per_node // apart, 1)))


@dataclass(frozen=True)
class ParallelOptions:
    """How the run is done, where the layout leaves it open."""

    micro_batches: int | None = None
    """Of a replica's batch; `None`: `micro_batches_a_stage` where the batch has as many, 1 without a pipeline."""
    interleave: int = 1
    """Chunks of layers a pipeline stage."""
    sequence_parallel: bool = False
    recompute: Recompute = "none"
    """Activations made again in backward: those of attention (`selective`), or all of a block (`full`)."""
    overlap: bool = True
    """Communication beside computation, where the framework does that."""
    first_bucket_bytes: float = FIRST_BUCKET_BYTES
    bucket_bytes: float = BUCKET_BYTES
    micro_batches_a_stage: int = 4
    """GPipe (Huang et al. 2019) found the bubble of training negligible from 4 on. Decoding takes 1: each micro-batch
    reads all weights again."""


def parse(text: str, *, gpus: int, nodes: int = 1) -> Layout:
    """The layout that `--parallel` asks for, with `gpus` GPUs in each of `nodes` nodes."""
    if gpus < 1 or nodes < 1:
        raise BadInput("out-of-range", f"--gpus={gpus} --nodes={nodes}: give at least 1 of each")
    total = gpus * nodes
    plain = re.sub(r"[\s_-]", "", text.lower())
    if total == 1:
        raise BadInput("option-needs-another", f"--parallel={text} needs more than one GPU: add --gpus or --nodes")
    if plain == "dp":
        plain = "ddp"
    for mode in MODES:
        if mode == plain:
            return Layout(data=total, mode=mode, gpus_per_node=gpus)
    if plain == "tp":
        return Layout(tensor=total, gpus_per_node=gpus)
    if plain == "pp":
        return Layout(pipeline=total, gpus_per_node=gpus)
    return _product(text, plain, gpus=gpus, total=total)


def replica_batch(total_batch: int, *, parallel: str | None, gpus: int, nodes: int = 1) -> int:
    """What each replica has of a batch that all of them share."""
    return part_of(total_batch, replicas(parallel=parallel, gpus=gpus, nodes=nodes))


def replicas(*, parallel: str | None, gpus: int, nodes: int = 1) -> int:
    """Into how many parts a batch is divided."""
    return 1 if gpus * nodes == 1 else parse(parallel or "ddp", gpus=gpus, nodes=nodes).data


def _product(text: str, plain: str, *, gpus: int, total: int) -> Layout:
    if (numbers := _NUMBERS.fullmatch(plain)) is not None:
        tensor, pipeline, data = (int(number) for number in numbers.groups())
    else:
        tensor, pipeline, data = _named(text, plain, total)
    if min(tensor, pipeline, data) < 1:
        raise BadInput("out-of-range", f"--parallel={text}: every number must be at least 1")
    if (product := tensor * pipeline * data) != total:
        raise BadInput(
            "layout-mismatch",
            f"--parallel={text} is {tensor} x {pipeline} x {data} = {product} GPUs (tensor x pipeline x data), "
            f"and there are {total}: change --gpus, --nodes or the numbers",
        )
    return Layout(tensor, pipeline, data, gpus_per_node=gpus)


def _named(text: str, plain: str, total: int) -> tuple[int, int, int]:
    """`tp8pp4dp2` in any order, with or without x, comma, + or =; the ranks left over are data parallel."""
    bare = re.sub(r"(?<=\d)[x,+*/]", "", plain)
    parts = _PARTS.findall(bare)
    if not parts or "".join(f"{axis}{number}" for axis, number in parts) != bare.replace("=", ""):
        near = difflib.get_close_matches(plain, WORDS, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else f"give {FORMS}"
        raise BadInput("unknown-layout", f"--parallel={text} is not known: {hint}")
    axes = [axis for axis, _ in parts]
    if len(set(axes)) < len(axes):
        raise BadInput("unknown-layout", f"--parallel={text} names {max(axes, key=axes.count)} twice: give each once")
    sizes = {axis: int(number) for axis, number in parts}
    tensor, pipeline = sizes.get("tp", 1), sizes.get("pp", 1)
    rest = total // (tensor * pipeline) if tensor * pipeline else 0
    return tensor, pipeline, sizes.get("dp", max(rest, 1))
