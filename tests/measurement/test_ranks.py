"""Several processes of one step: each writes its own ledger, and they are put together."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import rooflight
from rooflight.errors import BadInput, CannotMeasure
from rooflight.ledger import Kernel, Measurement, Value
from rooflight.measurement.api import measure
from rooflight.measurement.ranks import refuse_collectives
from rooflight.profiles.joined_ranks import join
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import self_check
from tests.fixtures.measured_ledgers import toy
from tests.fixtures.notes import note_texts
from tests.fixtures.recordings import recording

TWO = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def torchrun(*arguments, folder):
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return subprocess.run(
        [*TWO, *map(str, arguments)], capture_output=True, text=True, timeout=600, check=False, cwd=folder, env=own
    )


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """A training step measured by two processes."""
    folder = tmp_path_factory.mktemp("ranks")
    done = torchrun(
        "-m", "rooflight", "measure", "mnist-cnn", "--batch", 2, "--step", "train", "--repeat", 2, "--on", "cpu",
        "-o", "run.json", folder=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["run.rank0.json", "run.rank1.json"]
    assert done.stdout.count("mnist-cnn, ") == 1 or done.stdout.count("CPU time") >= 1  # one process shows its tables
    return [rooflight.load(folder / f"run.rank{rank}.json") for rank in range(2)]


def as_rank(ledger, rank, world=2):
    """The ledger as another process would have written it."""
    header = msgspec.structs.replace(ledger.header, rank=rank, world=world)
    ops = tuple(msgspec.structs.replace(op, rank=rank) for op in ledger.ops)
    return msgspec.structs.replace(ledger, header=header, ops=ops)


@pytest.fixture(scope="module")
def real():
    return measure(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(2, 8), step="train", repeat=1, device="cpu")


# --- two processes ---


def test_every_rank_writes_what_it_measured(ranks):
    assert [(ledger.header.rank, ledger.header.world) for ledger in ranks] == [(0, 2), (1, 2)]
    for rank, ledger in enumerate(ranks):
        assert {op.rank for op in ledger.ops} == {rank}
        rows = [row for row in ledger.measurements if row.scope == "op"]
        assert len(rows) == len(ledger.ops) and all("host_time_s" in row.quantities for row in rows)
    assert [op.key[1:] for op in ranks[0].ops] == [op.key[1:] for op in ranks[1].ops]


def test_counters_are_for_one_rank(ranks):
    assert not any("rank 0 only" in note for note in note_texts(ranks[0].header.notes))
    assert any("counters are read on rank 0 only" in note for note in note_texts(ranks[1].header.notes))


def test_measured_ranks_are_joined(ranks, tmp_path):
    joined = join(list(reversed(ranks)))
    assert len(joined.ops) == len(ranks[0].ops) + len(ranks[1].ops)
    assert len({op.key for op in joined.ops}) == len(joined.ops)
    assert joined.header.rank == 0 and joined.header.world == 2
    assert joined.modules == ranks[0].modules
    assert rooflight.load(rooflight.save(joined, tmp_path / "both.json.gz")) == joined
    steps = [row for row in joined.measurements if row.scope == "step"]
    assert [row.name for row in steps] == ["rank 0", "rank 1"]
    assert not any("missing" in note for note in note_texts(joined.header.notes) if "ranks" in note)


@pytest.mark.slow
def test_a_step_with_collectives_is_measured_and_not_repeated_alone(tmp_path):
    """DDP talks to the other rank in every backward: both run as many steps, or both would wait for ever."""
    (tmp_path / "ddp.py").write_text(
        "import time, torch, torch.distributed as dist, rooflight\n"
        "dist.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))\n"
        "ledger = rooflight.measure(model, torch.ones(2, 4), step='train', repeat=2)\n"
        "rooflight.save(ledger, f'rank{dist.get_rank()}.json')\n"
        "dist.destroy_process_group()\n"
        "time.sleep(0.5)\n"  # gloo's thread drops its last work; while the interpreter ends it cannot, and torch aborts
    )
    done = torchrun("ddp.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = (rooflight.load(tmp_path / f"rank{rank}.json") for rank in range(2))
    for ledger in (first, second):
        assert any(op.name.startswith("c10d::") for op in ledger.ops)
        assert any(row.scope == "step" and "wall_time_s" in row.quantities for row in ledger.measurements)
    assert len(join([first, second]).ops) == len(first.ops) + len(second.ops)


# --- joining ---


def test_numbers_of_a_rank_move_behind_those_before(real, tmp_path):
    kernels = (Kernel(name="k", ops=(1, 2)), Kernel(name="of nobody"))
    graph = Measurement(scope="graph", name="g", ops=(0, 1), quantities={"kernels": Value(2, "kineto")})
    real = msgspec.structs.replace(real, kernels=kernels, measurements=(*real.measurements, graph))
    joined = join([as_rank(real, 0), as_rank(real, 1)])
    many = len(real.ops)
    assert [op.index for op in joined.ops] == list(range(2 * many))
    assert [kernel.ops for kernel in joined.kernels] == [(1, 2), (), (many + 1, many + 2), ()]
    assert len({storage.id for storage in joined.storages}) == 2 * len(real.storages)
    graphs = [row for row in joined.measurements if row.scope == "graph"]
    assert [(row.name, row.ops) for row in graphs] == [("rank 0: g", (0, 1)), ("rank 1: g", (many, many + 1))]
    assert rooflight.load(rooflight.save(joined, tmp_path / "joined.json")) == joined
    lives = {storage.id: storage for storage in joined.storages}
    for op in joined.ops[many:]:
        for tensor in (*op.inputs, *op.outputs):
            storage = lives[tensor.storage]
            assert storage.born is None or many <= storage.born <= op.index
            assert storage.dies is None or storage.dies > op.index
    rows = [row for row in joined.measurements if row.scope == "op"]
    assert [row.ops for row in rows] == [(index,) for index in range(2 * many)]


def test_ops_with_lists_of_tensors_move_too():
    ledgers = [as_rank(rooflight.estimate("mnist-cnn", step="train", batch=2), rank) for rank in range(2)]
    joined = join(ledgers)
    lists = [op for op in joined.ops if op.name.startswith("aten::_foreach")]
    known = {storage.id for storage in joined.storages}
    assert len(lists) == 2 * 3  # momentum: multiply, add, add
    assert all(tensor.storage in known for op in lists for tensor in op.inputs)
    assert not {t.storage for t in lists[0].inputs} & {t.storage for t in lists[-1].inputs}


def test_one_ledger_joined_is_itself(real):
    assert join([real]).ops == real.ops
    assert join([real]).storages == real.storages


def test_the_self_check_of_joined_ranks_still_holds():
    recorded = recording("h200/mnist-cnn-train-tf32")
    joined = join([as_rank(recorded, 0), as_rank(recorded, 1)])
    (check,) = (check for check in self_check(Measured(joined)) if check.name == "tensor_flops_tf32")
    assert check.difference == 0


@given(st.permutations(range(4)), st.sets(st.integers(0, 3), min_size=1))
def test_any_order_gives_the_same_and_missing_ranks_are_named(order, present):
    ledgers = [as_rank(toy(), rank, world=4) for rank in order if rank in present]
    joined = join(ledgers)
    assert [op.rank for op in joined.ops] == [rank for rank in sorted(present) for _ in toy().ops]
    missing = sorted(set(range(4)) - present)
    notes = [note for note in note_texts(joined.header.notes) if note.endswith("of 4 are missing")]
    assert notes == ([f"ranks {', '.join(map(str, missing))} of 4 are missing"] if missing else [])


@pytest.mark.parametrize(("change", "message"), [
    ({"model": "other"}, "different runs: model is toy on rank 0, and other on rank 1"),
    ({"step": "infer"}, "different runs: step"), ({"world": 4}, "different runs: world"),
    ({"dtype": "bf16"}, "different runs: dtype"), ({"execution": "compile"}, "different runs: execution"),
    ({"rank": 0}, "rank 0 is there twice"),
])  # fmt: skip
def test_ledgers_that_do_not_belong_together_are_refused(change, message):
    second = as_rank(toy(), 1)
    second = msgspec.structs.replace(second, header=msgspec.structs.replace(second.header, **change))
    with pytest.raises(BadInput, match=message):
        join([as_rank(toy(), 0), second])


def test_nothing_to_join():
    with pytest.raises(BadInput, match="nothing to join"):
        join([])


def test_collectives_are_refused_by_name():
    refuse_collectives(toy().ops)
    op = msgspec.structs.replace(toy().ops[0], name="_c10d_functional::all_reduce")
    with pytest.raises(CannotMeasure, match=r"_c10d_functional::all_reduce.*rooflight\.region"):
        refuse_collectives([*toy().ops, op])


def test_report_joins_the_ranks_it_is_given(tmp_path, run):
    paths = [str(rooflight.save(as_rank(toy(), rank, world=2), tmp_path / f"run.rank{rank}.json")) for rank in (0, 1)]
    _, out, _ = run("report", *paths, "--json")
    ops = json.loads(out)["ops"]
    assert len(ops) == 2 * len(toy().ops)
