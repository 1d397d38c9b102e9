"""The script of one GPU as that of the fullest rank of a layout: cut by tensors, then into stages, then by data."""

from __future__ import annotations

from collections.abc import Sequence

from rooflight.ledger import Ledger
from rooflight.memory.allocation_script import AllocationScript
from rooflight.memory.sharding import data_parallel, stages, tensor
from rooflight.memory.sharding.draft import RankDraft, most_requested
from rooflight.parallel.blocks import Model, model_of
from rooflight.parallel.layout import Layout, ParallelOptions
from rooflight.parallel.state_memory import ZERO_STAGE
from rooflight.step.costed_step import Step

_NEARLY = 0.6
"""Of what the stage asks for that asks for most. Blocks that do not serve made a fourth of a difference at most where
all stages were played (VGG-16 in two stages)."""
Groups = tuple[tuple[int, ...], ...]
"""The units of every stage."""


class FullestRank:
    """A change of scripts of one step, whatever its batch: of one micro-batch."""

    def __init__(
        self, ledger: Ledger, layout: Layout, options: ParallelOptions, micro_batches: int, groups: Groups
    ) -> None:
        self.ledger = ledger
        self.model: Model = model_of(ledger)
        self.layout, self.options, self.micro_batches, self.groups = layout, options, micro_batches, groups

    def __call__(self, script: AllocationScript) -> dict[int, AllocationScript]:
        """By stage, those of which one is the fullest: which, the allocator decides."""
        scripts = [self._of_stage(script, stage) for stage in range(max(len(self.groups), 1))]
        sizes = [most_requested(cut) for cut in scripts]
        return {stage: cut for stage, cut in enumerate(scripts) if sizes[stage] >= _NEARLY * max(sizes)}

    def _of_stage(self, script: AllocationScript, stage: int) -> AllocationScript:
        draft, layout, count = RankDraft(self.ledger, script), self.layout, self.micro_batches
        tensor.divide(draft, self.model, layout.tensor, sequence=self.options.sequence_parallel)
        ops: Sequence[int] = range(len(self.ledger.ops))
        if len(self.groups) > 1:
            units = [self.model.units[number] for number in self.groups[stage]]
            ops = sorted(index for unit in units for index in (*unit.forward, *unit.backward))
            stages.keep_stage(draft, ops, [unit.path for unit in units], count)
            stages.hold_micro_batches(draft, ops, self._in_flight(stage) - 1)
        self._data(draft)
        stages.add_up_gradients(draft, ops, count)
        return draft.script()

    def _data(self, draft: RankDraft) -> None:
        ranks, options = self.layout.data, self.options
        caps = {"first_bytes": options.first_bucket_bytes, "cap_bytes": options.bucket_bytes}
        kind = ZERO_STAGE[self.layout.mode]
        if kind == 3:
            data_parallel.shard(draft, self.model, ranks)
        elif kind:
            data_parallel.zero(draft, kind, ranks, **caps)
        else:
            data_parallel.replicate(draft, ranks, **caps)

    def _in_flight(self, stage: int) -> int:
        return stages.in_flight(stage, len(self.groups), self.micro_batches, interleave=self.options.interleave)

    def words(self, stage: int) -> tuple[str, ...]:
        """The assumptions, of a rank of the stage that was found to be the fullest."""
        layout, sentences = self.layout, []
        if layout.tensor > 1:
            rest = "the rest too, whole while a matmul needs it" if self.options.sequence_parallel else "the rest whole"
            sentences.append(f"memory: activations between divided matmuls in {layout.tensor} parts, {rest}")
        if len(self.groups) > 1:
            held = self._in_flight(stage)
            batches = f"{held} micro-batches" if held > 1 else "one micro-batch"
            sentences.append(
                f"memory is that of stage {stage + 1} of {len(self.groups)}, the fullest, with "
                f"activations of {batches} at once; a weight that two stages use lies on both"
            )
        if layout.data > 1:
            kind = ZERO_STAGE[layout.mode]
            sentences += _DATA_WORDS[kind] if self._trains else _WITHOUT_TRAINING.get(kind, ())
        if self.micro_batches > 1 and self._trains:
            sentences.append("memory: gradients of all micro-batches are added up where they lie")
            sentences.append(
                "memory: inputs of all micro-batches are there from the start"
                if len(self.groups) > 1
                else "memory: the inputs of a micro-batch come when it runs"
            )
        if self.options.recompute != "none":
            sentences.append("memory: activations that are computed again are counted as kept")
        return (*sentences, *((_OUTSIDE,) if layout.gpus > 1 else ()))

    @property
    def _trains(self) -> bool:
        return any(op.phase == "backward" for op in self.ledger.ops)


_OUTSIDE = "memory: what NCCL takes for itself is not in it, and streams share their cached blocks"
_DATA_WORDS = {
    0: ("memory: buckets lie beside the gradients, as large as all of them (torch's gradient_as_bucket_view=False)",),
    1: ("memory: every piece of optimizer state in equal parts, gradients whole, a bucket until the next is full",),
    2: ("memory: every piece of optimizer state and of gradients in equal parts, these once their bucket is full",),
    3: (
        "memory: every weight, gradient and piece of optimizer state in equal parts; of gathered weights those of the "
        "unit that computes and a buffer for one, with its whole gradients until they are scattered (fully_shard)",
        "memory: weights around the units stay gathered until backward is over",
    ),
}


_WITHOUT_TRAINING = dict.fromkeys(
    (1, 2), ("memory: every GPU has all weights: without training there is nothing that ZeRO 1 and 2 share out",)
)


def fullest_rank(
    step: Step, layout: Layout, options: ParallelOptions, micro_batches: int, groups: Groups
) -> FullestRank:
    """The rank of a step of one micro-batch, the same object for the same question: what was played of it is known."""
    return step.once(FullestRank, layout, options, micro_batches, groups)
