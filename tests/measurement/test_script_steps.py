"""The steps of a script that knows nothing of it: where they end, and what each is used for."""

from __future__ import annotations

import os
import sys
import threading
from time import perf_counter

import pytest
import torch
from torch import nn

import rooflight
from rooflight.errors import BadInput
from rooflight.measurement.scripts.results import recorded_script
from rooflight.measurement.scripts.schedule import ScriptRun
from rooflight.measurement.scripts.settings import StepRange, parse_steps
from rooflight.measurement.scripts.steps import Cycle
from tests.fixtures.notes import note_texts

# A linear layer of 8 x 8 on 4 samples: 2 * 4 * 8 * 8 FLOPs, and the same for the gradient of its weights.
LINEAR = 2 * 4 * 8 * 8


@pytest.fixture
def script(tmp_path):
    """Begin to look at the steps of this process; gives what looks."""
    begun = []

    def script(steps="2:"):
        begun.append(ScriptRun(tmp_path, steps, stop_after=False))
        begun[-1].open(perf_counter())
        return begun[-1]

    before = nn.Module.__call__, torch.optim.Optimizer._patch_step_function, torch.optim.SGD.step
    yield script
    for run in begun:
        run.close()
    assert (nn.Module.__call__, torch.optim.Optimizer._patch_step_function) == before[:2]


@pytest.fixture
def result(tmp_path):
    return lambda: recorded_script(tmp_path, took_s=1.0, command="rooflight run --ops -- python train.py")


def flops(ledger):
    return sum(op.cost.flops for op in ledger.ops if op.cost is not None and op.cost.flops)


class Trained:
    """A layer and its optimizer."""

    def __init__(self, kind=torch.optim.SGD):
        self.model = nn.Linear(8, 8)
        self.optimizer = kind(self.model.parameters(), lr=0.1)

    def step(self, passes=1):
        for _ in range(passes):
            self.model(torch.randn(4, 8)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


# --- where steps end ---


@pytest.mark.parametrize(("turns", "ends"), [
    ("AAAA", [0, 1, 2, 3]),
    ("ABABAB", [0, 1, 3, 5]),  # that A is not alone is known from B on
    ("AAAAABAAAAABAAAAAB", [0, 1, 2, 3, 4, 5, 11, 17]),
    ("ABCABCABC", [0, 1, 2, 5, 8]),
    (2 * (10 * "A" + "B") + "AB", [*range(11), 21, 23]),
    ("ABAB" + 16 * "C", [0, 1, 3, 4, 5, *range(15, 20)]),  # A and B have stopped coming
])  # fmt: skip
def test_the_one_that_comes_most_rarely_ends_a_step(turns, ends):
    cycle, names = Cycle(), {name: object() for name in turns}
    assert [place for place, name in enumerate(turns) if cycle.closes(names[name])] == ends


@pytest.mark.parametrize(("text", "steps", "recorded"), [
    ("10:30", StepRange(10, 30), 14),
    ("10:", StepRange(10), 14),
    (":9", StepRange(3, 9), 7),
    ("2:3", StepRange(2, 3), 3),
    ("5:5", StepRange(5, 5), 5),
])  # fmt: skip
def test_ranges_of_steps(text, steps, recorded):
    assert parse_steps(text) == steps
    assert parse_steps(str(steps)) == steps
    assert steps.recorded == recorded


@pytest.mark.parametrize("text", ["10", "a:b", "1:", "9:3", "-3:4", "٣:٤"])
def test_what_is_no_range_is_one_line(text):
    with pytest.raises(BadInput, match=f"--steps {text}"):
        parse_steps(text)


# --- what they are used for ---


def test_some_are_timed_and_one_is_recorded(script, result):
    run, trained = script("3:"), Trained()
    for _ in range(10):
        trained.step()
    status = run.status
    assert (status.found, status.timed, status.recorded, status.doing) == ("train", [3, 4, 5, 6], [7], "over")
    found = result()
    assert found.complaints == ()
    assert flops(found.ledger) == 2 * LINEAR
    assert found.ledger.header.step == "train"
    assert note_texts(found.ledger.header.notes)[0].startswith("steps 1-2 untouched, 3-6 timed, 7 recorded (took ")
    (step,) = [row for row in found.ledger.measurements if row.scope == "step"]
    assert step.quantities["wall_time_s"].value == status.plain_s


def test_afterwards_nothing_is_left(script):
    before = nn.Module.__call__
    script()
    trained = Trained(torch.optim.Adagrad)
    assert nn.Module.__call__ is not before
    for _ in range(6):
        trained.step()
    assert nn.Module.__call__ is before
    assert not hasattr(torch.optim.Adagrad.step, "_rooflight_follows")


def test_passes_before_an_optimizers_step_belong_to_it(script, result):
    script()
    trained = Trained()
    for _ in range(6):
        trained.step(passes=3)
    assert flops(result().ledger) == 3 * 2 * LINEAR


def test_two_optimizers_in_turn_are_one_step(script, result):
    run = script()
    critic, generator = Trained(), Trained(torch.optim.Adam)
    for _ in range(8):
        critic.step(passes=2)
        generator.step()
    assert run.status.recorded == [6]
    ledger = result().ledger
    assert flops(ledger) == 3 * 2 * LINEAR
    assert ledger.header.optimizer == "SGD + Adam"


def test_what_prepares_data_is_no_model(script, result):
    script()
    trained, prepare, loss = Trained(), nn.Flatten(), nn.MSELoss()
    for _ in range(7):
        batch = torch.cat([prepare(torch.randn(1, 2, 4)) for _ in range(4)])
        loss(trained.model(batch), torch.zeros(4, 8)).backward()
        trained.optimizer.step()
    header = result().ledger.header
    assert (header.model, header.batch) == ("Linear", 4)


def test_an_optimizer_inside_another_is_one(script):
    class Outer(torch.optim.SGD):
        def step(self, closure=None):
            inner.step()
            return super().step(closure)

    run = script()
    trained = Trained(Outer)
    inner = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    for _ in range(3):
        trained.step()
    assert run.status.steps == 3


def test_a_step_that_a_scaler_skips_is_none(script):
    run = script()
    trained, scaler = Trained(), torch.amp.GradScaler("cpu", init_scale=2.0)
    for factor in (1.0, float("inf"), 1.0):
        scaler.scale(trained.model(torch.randn(4, 8)).sum() * factor).backward()
        scaler.step(trained.optimizer)
        scaler.update()
        trained.optimizer.zero_grad()
    assert run.status.steps == 2


def test_calls_of_a_model_are_steps_where_nothing_is_trained(script, result):
    run, model, loss = script(), nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), nn.MSELoss()
    with torch.no_grad():
        for _ in range(8):
            loss(model(torch.randn(4, 8)), torch.zeros(4, 8))
    assert (run.status.found, run.status.recorded) == ("infer", [6])
    ledger = result().ledger
    assert (ledger.header.step, flops(ledger)) == ("infer", LINEAR)


def test_training_takes_over(script, result):
    run, trained = script(), Trained()
    with torch.no_grad():
        for _ in range(10):
            trained.model(torch.randn(4, 8))
    assert (run.status.found, run.status.doing) == ("infer", "over")
    for _ in range(6):
        trained.step()
    assert run.status.found == "train"
    assert flops(result().ledger) == 2 * LINEAR


def test_a_step_with_an_evaluation_in_it_is_not_the_one(script, result):
    run, trained = script(), Trained()
    for number in range(1, 10):
        trained.step()
        if number == 5:
            with torch.no_grad():
                trained.model(torch.randn(4, 8))
    assert run.status.recorded == [6, 7]
    assert flops(result().ledger) == 2 * LINEAR


def test_a_model_that_moves_between_types_and_devices(script, result):
    script()
    trained = Trained()
    for _ in range(7):
        trained.model.to(torch.float64).to("cpu", torch.float32)
        trained.step()
    assert flops(result().ledger) == 2 * LINEAR


def test_an_optimizer_that_has_not_stepped_yet_is_waited_for(script, result):
    run, critic, generator = script(), Trained(), Trained(torch.optim.Adam)
    for _ in range(6):
        for _ in range(9):
            critic.step()
        generator.step()
    assert run.status.recorded == [6]
    assert flops(result().ledger) == 10 * 2 * LINEAR


@pytest.mark.parametrize(("steps", "recorded"), [("2:", 26), ("2:9", 9)])
def test_an_optimizer_that_never_steps_is_waited_for_only_so_long(script, result, steps, recorded):
    run, trained, unused = script(steps), Trained(), Trained(torch.optim.Adam)
    again = torch.optim.Adam(trained.model.parameters())  # of a model that is trained: nobody waits for it
    for _ in range(27):
        trained.step()
    assert run.status.recorded == [recorded] and unused and again
    assert any(
        "another optimizer (Adam) had not stepped yet" in note for note in note_texts(result().ledger.header.notes)
    )


def test_a_new_optimizer_goes_on_where_another_ended(script, result):
    run, kept = script(), []
    for _ in range(4):
        kept.append(Trained())
        for _ in range(3):
            kept[-1].step()
    assert run.status.recorded == [6]
    assert flops(result().ledger) == 2 * LINEAR


@pytest.mark.parametrize("count", [5, 10])
def test_an_inference_before_is_no_result_of_a_training(script, result, count):
    script()
    trained = Trained()
    with torch.no_grad():
        for _ in range(count):
            trained.model(torch.randn(4, 8))
    for _ in range(3):
        trained.step()
    found = result()
    assert found.ledger is None
    assert "ended after 3 optimizer steps" in found.complaints[0]


# --- what programs do that does not go with it ---


def test_a_profiler_of_the_program_comes_first(script, result):
    run, trained = script("2:"), Trained()
    for _ in range(5):
        trained.step()
    with torch.profiler.profile() as profiler:
        for _ in range(2):
            trained.step()
    keys = {row.key: row.count for row in profiler.key_averages()}
    assert keys["aten::addmm"] == 2 and not any("rooflight" in key for key in keys)
    for _ in range(3):
        trained.step()
    assert run.status.recorded == [9]
    assert "another step was taken than was to be measured: its own profiler ran" in note_texts(
        result().ledger.header.notes
    )


def test_a_profiler_around_everything_is_waited_for_only_so_long(script, result):
    run, trained = script("2:"), Trained()
    with torch.profiler.profile():
        for _ in range(14):
            trained.step()
    assert run.status.recorded == [11]
    assert any(
        "not measured: torch's profiler is running already" in note for note in note_texts(result().ledger.header.notes)
    )


def test_a_recording_of_the_program_comes_first(script, result):
    run, trained = script("2:"), Trained()
    for _ in range(5):
        trained.step()
    with rooflight.record() as recording:
        trained.step()
    for _ in range(4):
        trained.step()
    assert flops(recording.ledger) == 2 * LINEAR
    assert run.status.recorded == [8]
    assert flops(result().ledger) == 2 * LINEAR
    assert any("it recorded something itself" in note for note in note_texts(result().ledger.header.notes))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_step_that_forks_is_not_the_one(script, result):
    run, trained = script("2:"), Trained()
    for _ in range(5):
        trained.step()
    assert run.status.doing == "recorded"
    child = os.fork()
    if not child:
        os._exit(0 if run._watch is None and not torch.autograd._profiler_enabled() else 1)
    assert os.waitpid(child, 0)[1] == 0
    for _ in range(3):
        trained.step()
    assert run.status.recorded == [7]
    assert flops(result().ledger) == 2 * LINEAR


@pytest.mark.parametrize(("steps", "message"), [
    ("2:3", "step 3 was put off (it recorded something itself), and 3 was the last that was asked for"),
    ("2:", "in 2 steps one after the other it recorded something itself: choose others with --steps"),
])  # fmt: skip
def test_steps_that_all_are_put_off_end_it(script, result, monkeypatch, steps, message):
    monkeypatch.setattr("rooflight.measurement.scripts.schedule._PUT_OFFS", 1)
    script(steps)
    trained = Trained()
    for _ in range(8):
        trained.step()
        with rooflight.record():
            pass
    (line,) = result().complaints
    assert message in line


# --- what can go wrong ---


def test_an_inherited_step_stays_inherited(script):
    class Mine(torch.optim.SGD):
        pass

    trained = Trained()
    run = script()
    mine = Trained(Mine)
    mine.step()
    trained.step()
    run.close()
    assert "step" not in vars(Mine)


def test_a_program_of_few_steps_is_told_what_to_write(script, result):
    script("3:")
    trained = Trained()
    for _ in range(4):
        trained.step()
    found = result()
    assert found.ledger is None
    (line,) = found.complaints
    assert "ended after 4 optimizer steps, and step 7 was to be recorded" in line
    assert "--steps 2:4" in line


def test_a_program_without_steps_is_told_what_to_do(script, result):
    script()
    nn.Linear(8, 8)(torch.randn(4, 8)).sum().backward()
    assert "no optimizer of torch stepped" in result().complaints[0]


def test_an_error_in_the_recorded_step_is_the_programs(script, result, monkeypatch):
    run, trained = script("2:3"), Trained()
    trained.step()
    trained.step()
    trained.model(torch.randn(4, 8))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        trained.model(torch.randn(4, 9))
    monkeypatch.setattr(sys, "last_type", RuntimeError, raising=False)  # as Python leaves it where a program ends so
    run._at_exit()
    found = result()
    ledger = found.ledger
    assert found.complaints == ()
    assert "3 recorded" in note_texts(ledger.header.notes)[0]
    assert flops(ledger) == LINEAR
    assert "ended-early" in [note.code for note in ledger.header.notes]


def test_an_error_of_ours_never_reaches_the_program(script, result, monkeypatch):
    def fails(*_):
        raise ValueError("out of luck")

    monkeypatch.setattr("rooflight.measurement.live.StepWatch.start", fails)
    script()
    trained = Trained()
    for _ in range(8):
        trained.step()
    assert result().complaints == ("measuring stopped (ValueError: out of luck), and the program ran on without it",)


def test_what_cannot_be_recorded_does_not_stop_the_program(script, result):
    def trained():
        torch.manual_seed(0)
        table = nn.Embedding(8, 4)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        for _ in range(8):
            (
                torch.eye(8).to_mkldnn().to_dense() @ nn.functional.dropout(table(torch.arange(8)))
            ).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return table.weight

    script()
    watched = trained()
    (line,) = result().complaints
    assert line.startswith("measuring stopped (")
    assert line.endswith("and the program ran on without it")
    assert "a _mkldnn tensor, which cannot be followed" in line
    assert torch.equal(watched, trained())


def test_steps_of_a_second_thread_are_left_out(script, result):
    run, trained, other = script(), Trained(), Trained()
    for _ in range(8):
        trained.step()
        if run.status.doing == "timed":
            thread = threading.Thread(target=other.step)
            thread.start()
            thread.join()
    assert flops(result().ledger) == 2 * LINEAR
    assert any("a second thread ran steps too" in note for note in note_texts(result().ledger.header.notes))
