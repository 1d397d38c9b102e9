"""`rooflight.region`: time, memory and counters of a piece of anybody's program.

    with rooflight.region("conv2") as r:      # inside a forward, or around a step or an epoch
        x = self.conv2(x)
    print(r.flops, r.bytes_read, r.time_s)

A region never changes what the program computes, and cannot run it again.

On a CPU a clock disturbs nobody: every execution is timed, those inside others too. The first `PLAIN_EXECUTIONS` are
also asked for memory, which takes longer. The first of all sets things up (library handles, lazy state): its time is
kept, and given only where there is no other.

On a GPU every execution is used for one thing only, and the executions complete each other:

1. The first one sets things up.
2. One without counters: time, growth and peak of memory.
3. Counters, one pass an execution.
4. More times, for a median. After that a region only counts its executions.

There one region is measured at a time in a process, since waiting for the GPU or counting would disturb the others:
what is entered meanwhile, inside it or in another thread, has its turn when that one has all it needs. Inside one that
is timed, two events are recorded and nobody waits for them: they tell its part of that time, and nothing else. First
executions hold nobody up: their time is dropped when something was measured inside them.

A region inside one of the same name is part of it. Counters see all that the GPU does at that time, whichever thread
asked for it. What a region spent in those directly inside it is summed over the same executions that its own time is
of, so that parts and what lies in none of them make up the whole. The program, from its first region to its last, is
accounted for in the same way, on a CPU and in the thread of the first region: on a GPU the host's clock does not tell
in which region the time was spent.

A region does not see the types of the tensors inside it, and compilers also load constants by HFMA2, which counts as
fp16 arithmetic of the CUDA cores. So that count is part of `flops` only where 16-bit work is sure: tensor cores ran
fp16 or bf16, or autocast was on when the region was entered. It stands in `quantities` either way.

One thing may show: torch keeps a single peak of memory, so it begins anew at one execution of every region.

`scope` is what the program writes, `scheduler` decides what an execution is used for, `plain` and `counters` measure
it, `execution_times` and `store` keep what came out, `ledger` brings that into a file, and `settings` is what the
environment says.
"""

from rooflight.measurement.regions.scope import RegionScope, region, regions, regions_ledger, save_regions
from rooflight.measurement.regions.store import Region

__all__ = ["Region", "RegionScope", "region", "regions", "regions_ledger", "save_regions"]
