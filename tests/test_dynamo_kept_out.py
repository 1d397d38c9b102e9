"""A trace compiles nothing, so it does not import torch's compiler; whoever needs that meanwhile gets the real one.

Each in a process of its own: what is imported stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEFORE = "import sys, torch, rooflight\nfrom torch import nn\nfrom rooflight.trace import dynamo\n"


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", BEFORE + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("model", ["mnist-cnn", "gpt2"])
def test_a_traced_step_leaves_no_trace_of_it(model: str) -> None:
    run(f"""
ledger = rooflight.estimate({model!r}, step="train")
assert {{op.phase for op in ledger.ops}} == {{"forward", "backward", "optimizer"}}
assert "torch._dynamo" not in sys.modules and not dynamo.is_loaded()
assert "__dynamo_disable" not in vars(torch.optim.Optimizer.add_param_group.__wrapped__)

found = torch.compile(nn.Linear(2, 2), backend="eager")(torch.ones(3, 2))
assert found.shape == (3, 2) and dynamo.is_loaded()
again = rooflight.estimate({model!r}, step="train")
assert again.ops == ledger.ops
""")


def test_a_model_that_compiles_a_part_of_itself_runs_as_it_was_written() -> None:
    run("""
class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.compiled = []

    def forward(self, x):
        self.compiled = [torch.compile(self.inner, backend=None_is_called)]
        return self.compiled[0](x)

def None_is_called(graph, inputs):
    raise AssertionError("compiled inside a trace")

ledger = rooflight.estimate(Lazy(), torch.randn(4, 8), step="train")
assert {"aten::addmm", "aten::relu", "aten::mm"} <= {op.packet for op in ledger.ops}
assert dynamo.is_loaded()
# Afterwards it compiles again.
seen = []
backend = lambda graph, inputs: seen.append(graph) or graph.forward
torch.compile(nn.Linear(2, 2), backend=backend)(torch.ones(3, 2))
assert seen
""")


def test_what_was_imported_meanwhile_answers_as_the_real_one() -> None:
    run("""
with dynamo.kept_out():
    import torch._dynamo as kept
    assert not hasattr(kept, "__file__") and not dynamo.is_loaded()
    marked = torch._disable_dynamo(lambda: 3)
    assert marked() == 3 and "__dynamo_disable" in vars(marked.__wrapped__) and not dynamo.is_loaded()
assert "torch._dynamo" not in sys.modules and "__dynamo_disable" not in vars(marked.__wrapped__)
import torch._dynamo
assert kept.config is torch._dynamo.config and kept.disable is torch._dynamo.disable is not None
assert dynamo.is_loaded()
""")


def test_a_part_that_nobody_has_loaded_yet_is_one_of_the_real_one() -> None:
    run("""
with dynamo.kept_out():
    import torch._dynamo.tensor_version_op
    assert torch._dynamo.tensor_version_op._tensor_version
assert sys.modules["torch._dynamo"].tensor_version_op is torch._dynamo.tensor_version_op
try:
    with dynamo.kept_out():
        import torch._dynamo.nothing
except ModuleNotFoundError as error:
    assert error.name == "torch._dynamo.nothing"
else:
    raise AssertionError
""")


def test_its_parts_can_be_imported_meanwhile() -> None:
    run("""
with dynamo.kept_out():
    from torch._dynamo.eval_frame import OptimizedModule
    import torch._dynamo.config
    assert dynamo.is_loaded() and torch._dynamo.eval_frame.OptimizedModule is OptimizedModule
    assert OptimizedModule is torch._dynamo.OptimizedModule
    assert torch._dynamo.eval_frame.__spec__.origin == torch._dynamo.eval_frame.__file__
assert torch._dynamo is sys.modules["torch._dynamo"] and not any("StandIn" in repr(one) for one in sys.meta_path)

""")
