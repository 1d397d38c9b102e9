"""Why ops on a CPU take longer than their FLOPs ask for: by hand, and on steps that a shared machine measured."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from rooflight.analysis import cpu_causes
from rooflight.analysis.cause import account
from rooflight.analysis.comparison.why import Reasons
from rooflight.analysis.time_causes import explain_time
from rooflight.files import load
from rooflight.ledger import FORMAT_VERSION, Cost, Ledger, Measurement, Op, Storage, Tensor, Value
from rooflight.summary.measured import Measured
from tests.fixtures.measured_ledgers import HEADER

FILES = sorted((Path(__file__).parents[1] / "data" / "cpu_versions").glob("*.json.gz"))
RATES = {"peak.fp32": 200e9, "cores": 2, "threads": 2, "page_fault": 1e-6}


def product(rates=None, **measured):
    """A product of 100 x 100 matrices: 2 million FLOPs."""
    tensors = [Tensor(storage, (100, 100), "fp32") for storage in (1, 2, 3)]
    cost = Cost("by hand", macs=10**6, flops=2 * 10**6, other_flops=0, bytes_read=80_000, bytes_written=40_000)
    op = Op(
        index=0, phase="forward", module="", call=0, name="aten::mm", ordinal=0, precision="fp32",
        args={"self": tensors[0], "mat2": tensors[1]}, outputs=(tensors[2],), cost=cost,
    )  # fmt: skip
    quantities = {key: Value(value, "by hand") for key, value in {"host_time_s": 1e-3, **measured}.items()}
    values = {key: Value(value, "by hand") for key, value in {**RATES, **(rates or {})}.items() if value is not None}
    return Ledger(
        format_version=FORMAT_VERSION,
        header=msgspec.structs.replace(HEADER, device="a CPU", rates=values),
        modules=(),
        storages=tuple(Storage(id=t.storage, nbytes=t.nbytes, category="activation") for t in tensors),
        ops=(op,),
        measurements=(Measurement(scope="op", ops=(0,), quantities=quantities),),
    )


def causes(ledger):
    (row,) = explain_time(ledger)
    assert row.asked + math.fsum(cause.amount for cause in row.causes) + row.unexplained == pytest.approx(row.measured)
    return row.asked, {cause.name: cause.amount for cause in row.computed}


def test_a_processor_that_is_not_described_has_no_causes():
    assert explain_time(msgspec.structs.replace(product(), header=HEADER)) == []


def test_the_least_time_is_that_of_the_flops_on_all_cores():
    assert causes(product()) == (pytest.approx(10e-6), {})
    assert causes(product({"peak.fp32": None})) == (0, {})


def test_fewer_threads_than_cores():
    """One thread of two cores takes twice as long: 10 us more. More threads than cores cost nothing."""
    assert causes(product({"threads": 1}))[1] == {cpu_causes.THREADS: pytest.approx(10e-6)}
    assert causes(product({"threads": 4}))[1] == {}


def test_what_the_kernel_counted():
    _, found = causes(product(page_faults=250, core_wait_s=3e-4))
    assert found == {cpu_causes.FAULTS: pytest.approx(250e-6), cpu_causes.WAITED: pytest.approx(3e-4)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_measured_step_is_accounted_for_up_to_its_wall_time(path):
    ledger = load(path)
    rows = explain_time(ledger)
    timed = [row for row in ledger.measurements if row.scope == "op" and "host_time_s" in row.quantities]
    assert len(rows) == len(timed) > 80
    assert all(row.asked >= 0 for row in rows)
    of_step, _ = Reasons(Measured(ledger)).whole("time")
    wall = next(row.quantities["wall_time_s"].value for row in ledger.measurements if row.scope == "step")
    assert of_step.measured == wall
    told = math.fsum(cause.amount for cause in of_step.causes)
    assert of_step.asked + told + of_step.unexplained == pytest.approx(wall)
    assert 0.02 < of_step.unexplained / wall < 0.095  # as docs/why.md says
    named = {cause.name for cause in account(rows).causes}
    assert named - {cpu_causes.FAULTS} == {cpu_causes.THREADS, cpu_causes.WAITED}


def test_a_cause_is_never_made_from_the_time_it_explains():
    ledger = load(FILES[0])
    rows = explain_time(ledger)
    longer = [
        msgspec.structs.replace(
            row,
            quantities={
                name: msgspec.structs.replace(value, value=2 * value.value) if name == "host_time_s" else value
                for name, value in row.quantities.items()
            },
        )
        for row in ledger.measurements
    ]
    again = explain_time(msgspec.structs.replace(ledger, measurements=tuple(longer)))
    assert [(row.asked, row.computed) for row in again] == [(row.asked, row.computed) for row in rows]
    assert [row.measured for row in again] == [2 * row.measured for row in rows]


def test_every_cause_is_on_the_page():
    page = (Path(__file__).parents[2] / "docs" / "why.md").read_text()
    names = [value for name, value in vars(cpu_causes).items() if name.isupper() and isinstance(value, str)]
    assert len(names) == 5
    assert [name for name in names if f"| {name} |" not in page and name != cpu_causes.WATCHED] == []
