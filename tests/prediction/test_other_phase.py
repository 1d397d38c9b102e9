"""Ops beside the passes and the optimizer (clipping, averages of weights): every table, total and layout has them."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import rooflight
from rooflight import summary
from rooflight.estimation.derivation import derive
from rooflight.hardware.calibration import shipped
from rooflight.ledger import OTHER, PHASES, Ledger, Op, total
from rooflight.parallel.blocks import model_of
from rooflight.parallel.layout import parse
from rooflight.prediction.cluster.combined import ParallelStep, predict
from rooflight.prediction.cluster.step import TimedStep
from rooflight.reporting.sections.derivation import derivation_text
from rooflight.step.host_calls import host_seconds
from rooflight.summary.functions import row_names
from tests.fixtures.parallel_steps import device, op_seconds, plain_fabric, tiny_ledger


def with_others(ledger: Ledger) -> Ledger:
    """The first half of the optimizer's ops as if they were somebody's own."""
    places = [op.index for op in ledger.ops if op.phase == "optimizer"]
    own = set(places[: len(places) // 2])

    def renamed(op: Op) -> Op:
        return replace(op, phase="other", module=OTHER) if op.index in own else op

    return replace(ledger, ops=tuple(map(renamed, ledger.ops)))


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return with_others(tiny_ledger())


def test_it_is_kept_in_files(ledger: Ledger, tmp_path: Path) -> None:
    rooflight.save(ledger, tmp_path / "step.json")
    assert rooflight.load(tmp_path / "step.json").ops == ledger.ops


def test_sums_have_it_last_and_leave_nothing_out(ledger: Ledger) -> None:
    sums = summary.totals_by_phase(ledger)
    assert tuple(sums) == PHASES == ("forward", "backward", "optimizer", "other")
    assert sums["other"].ops and sum(row.bytes for row in sums.values()) == total(ledger.ops).bytes
    rows = summary.rows(ledger, "module")
    assert rows[-1].name == OTHER and rows[-1].totals.ops == sum(op.module == OTHER for op in ledger.ops)
    assert rows[0].totals.ops + sum(row.totals.ops for row in rows if row.kind == "outside") == len(
        [op for op in ledger.ops if op.kind != "view"]
    )


def test_it_is_explained(ledger: Ledger) -> None:
    found = derivation_text(derive(ledger, OTHER, rows=row_names(ledger), notes=[]))
    assert "aten::_foreach" in found


def test_the_host_launches_it_as_without_autograd(ledger: Ledger) -> None:
    calibration = shipped("h200")
    assert calibration is not None
    costs = host_seconds(ledger, calibration.host)
    others = [costs[op.index] for op in ledger.ops if op.phase == "other" and op.kind == "compute"]
    assert others and min(others) > 0


def _run(ledger: Ledger, parallel: str) -> ParallelStep:
    step = TimedStep(ledger, [op_seconds(op) for op in ledger.ops], [0.0] * len(ledger.ops))
    return predict(lambda _: step, parse(parallel, gpus=4), plain_fabric(), batch=8, device=device())


@pytest.mark.parametrize("parallel", ["ddp", "zero2", "fsdp", "tp", "pp"])
def test_many_gpus_share_it_as_they_share_the_update(parallel: str, ledger: Ledger) -> None:
    times = [_run(some, parallel) for some in (tiny_ledger(), ledger)]
    before, after = (dict(run.kernel_s) for run in times)
    assert times[0].time_s == pytest.approx(times[1].time_s)
    assert after["other"] > 0 and after["optimizer"] + after["other"] == pytest.approx(before["optimizer"])


def test_no_unit_of_the_model_has_it(ledger: Ledger) -> None:
    units = model_of(ledger).units
    own = {index for unit in units for index in (*unit.forward, *unit.backward)}
    assert not own & {op.index for op in ledger.ops if op.phase == "other"}
