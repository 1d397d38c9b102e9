"""Tools that say how much memory a step takes, each asked for the peak as its own documentation does it."""

from __future__ import annotations

from peers.cases import Case
from peers.tools import Answer, Tool, mem_tracker, mem_tracker_as_cuda
from rooflight.models.workload import Workload

DEVICE = "h200"


def _rooflight(workload: Workload, case: Case) -> Answer:
    """Trace and memory, without the prediction of time that `rooflight.predict` makes of the same trace."""
    from rooflight.hardware.devices import find
    from rooflight.memory.predict import MemoryPredictor
    from rooflight.prediction.traces import Traces
    from rooflight.trace import TraceOptions

    loss = None if case.optimizer is None else "mse"
    options = TraceOptions(target="cuda", on="meta", loss=loss, optimizer=case.optimizer)
    traces = Traces(workload.model, workload.args, step=workload.step, seq=None, past=None, dtype=None, overrides=None,
                    input_shape=None, download=False)  # fmt: skip
    steps, _ = traces.steps((), options)
    memory = MemoryPredictor().of(steps[0], find(DEVICE))
    return Answer(peak_bytes=memory.peak_allocated_bytes, ops=len(steps[0].ledger.ops))


def _torchinfo(workload: Workload, case: Case) -> Answer:
    """Its `Estimated Total Size`: inputs, twice the outputs of modules with parameters, parameters."""
    import torchinfo

    inputs = workload.args
    found = torchinfo.summary(workload.model, input_data=inputs, device=inputs[0].device, verbose=0)
    return Answer(peak_bytes=found.total_input + found.total_output_bytes + found.total_param_bytes)


def _accelerate(workload: Workload, case: Case) -> Answer:
    """`Total Size` or `Training using Adam`, as `accelerate estimate-memory` works them out of a model in fp32."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    total, _ = calculate_maximum_sizes(workload.model.float())
    half = workload.dtype != "fp32"
    if case.optimizer is None:
        return Answer(peak_bytes=int(total / 2 if half else total))
    return Answer(peak_bytes=int(max(estimate_training_usage(total, "float16" if half else "float32").values())))


def _mem_tracker(workload: Workload, case: Case) -> Answer:
    return mem_tracker(workload, case, steps=_steps(case))


def _mem_tracker_as_cuda(workload: Workload, case: Case) -> Answer:
    return mem_tracker_as_cuda(workload, case, steps=_steps(case))


def _steps(case: Case) -> int:
    """Two of training: the optimizer's state is there only after the first."""
    return 1 if case.optimizer is None else 2


_ALL = (
    Tool("rooflight", "**rooflight**", "rooflight", "", _rooflight),
    Tool("torchinfo", "torchinfo", "torchinfo", "", _torchinfo),
    Tool("accelerate", "accelerate estimate-memory", "accelerate", "", _accelerate),
    Tool("mem-tracker", "MemTracker", "torch", "", _mem_tracker),
    Tool("mem-tracker-cuda", "MemTracker, on rooflight's stand-ins for CUDA's kernels", "torch", "",
         _mem_tracker_as_cuda),
)  # fmt: skip

MEMORY_TOOLS = {tool.key: tool for tool in _ALL}
