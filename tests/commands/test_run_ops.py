"""`rooflight run --ops`: programs that know nothing of it, however they are started and however they end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from rooflight.files import load
from rooflight.measurement.scripts.settings import BOOTSTRAP
from tests.fixtures.paths import ROOT

SCRIPTS = ROOT / "tests" / "data" / "scripts"
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
# What 12 steps of a small layer take; FLOPs of a step are 2 * 4 * 8 * 8, and as many for the gradient of the weights.
FLOPS = 2 * 2 * 4 * 8 * 8
TRAINS = """
import os, signal, sys, torch
from torch import nn
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def run(*words, env=ALONE, **options):
    command = [sys.executable, "-m", "rooflight.commands.main", "run", "--ops", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=env, **options)


@pytest.fixture
def program(tmp_path):
    """Write a program; gives the arguments that run it."""

    def program(text, *, begins=TRAINS):
        path = tmp_path / "train.py"
        path.write_text(begins + text)
        return [sys.executable, str(path)]

    return program


def codes(ledger) -> list[str]:
    return [note.code for note in ledger.header.notes]


def flops(ledger):
    return sum(op.cost.flops for op in ledger.ops if op.cost is not None and op.cost.flops)


def test_a_script_as_it_is_gives_what_it_gave_and_a_step(tmp_path):
    script = [sys.executable, str(SCRIPTS / "plain_loop.py")]
    alone = subprocess.run(script, capture_output=True, text=True, timeout=600, check=True, env=ALONE).stdout
    saved = tmp_path / "run.json"
    done = run("-o", saved, "--", *script)
    assert done.returncode == 0 and str(saved) in done.stderr and len(done.stderr.splitlines()) == 1
    # Losses and a hash of the weights, bit for bit: dropout, workers of a data loader, AdamW, a schedule.
    assert done.stdout.startswith(alone)
    assert alone.count("loss ") == 12
    assert done.stdout[len(alone) :].startswith("Sequential · ")
    ledger = load(saved)
    # Two products of 16 x 32 x 64 (the input wants no gradient) and three of 16 x 64 x 10.
    assert flops(ledger) == 2 * 2 * 16 * 32 * 64 + 3 * 2 * 16 * 64 * 10
    assert ledger.header.optimizer == "AdamW"
    assert {op.module for op in ledger.ops if op.phase == "backward"} >= {"0", "3", "<loss>"}
    assert ledger.header.command == f"rooflight run --ops -- {' '.join(script)}"
    # The data loader forks its workers anew in the seventh.
    steps, other = ledger.header.notes[0], codes(ledger)
    assert steps.code == "steps-of-program" and re.match(r"\D*1-2\b\D*3-6\b\D*8\b", steps.text)
    assert "other-step-recorded" in other


@pytest.mark.parametrize("words", [
    ["--", "true"],
    ["--", sys.executable, "-c", "pass"],
])  # fmt: skip
def test_where_there_is_nothing_to_record_one_line_says_so(words):
    done = run(*words)
    assert done.stdout == ""
    assert "torch" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_every_python_of_a_program_runs_the_users_own_customisation(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.mine = True\n")
    path = os.pathsep.join([str(BOOTSTRAP), str(tmp_path), *sys.path])
    code = "import sys; print(sys.mine, any('bootstrap' in entry for entry in sys.path), 'rooflight' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    assert done.stdout.split() == ["True", "False", "False"]


@pytest.mark.parametrize("stays", [False, True])
def test_nothing_that_goes_wrong_at_the_import_of_torch_reaches_the_program(tmp_path, stays):
    # A program may outlive `rooflight run`, whose folder is then gone; here rooflight cannot use this torch either.
    (tmp_path / "torch.py").write_text("")
    folder = tmp_path / "run"
    if stays:
        folder.mkdir()
    path = os.pathsep.join([str(BOOTSTRAP), str(tmp_path), *sys.path])
    env = {"PYTHONPATH": path, "ROOFLIGHT_RUN": str(folder), "ROOFLIGHT_OPS": "3:"}
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print('mine')"], capture_output=True, text=True, check=True, env=env
    )
    assert (done.stdout, done.stderr) == ("mine\n", "")
    assert [path.name.partition("-")[0] for path in tmp_path.glob("run/*")] == (["cannot"] if stays else [])


# --- how programs are started, and how they end ---


@pytest.mark.slow
def test_a_module_that_is_only_looked_for_is_still_seen_when_it_comes(program, tmp_path):
    begins = "import importlib.util\nassert importlib.util.find_spec('torch')\n" + TRAINS
    _, script = program("train(7)", begins=begins)
    saved = tmp_path / "run.json"
    done = run("-o", saved, "--", sys.executable, "-m", "train", cwd=os.path.dirname(script))
    assert done.returncode == 0, done.stderr
    assert flops(load(saved)) == FLOPS


@pytest.mark.slow
def test_a_program_that_was_given_enough_is_ended_if_asked(program, tmp_path):
    text = "import atexit\natexit.register(print, 'tidied up')\ntry:\n    train(10**6)\nfinally:\n    print('left the loop')"
    done = run("--stop-after", "--steps", "2:3", "-o", tmp_path / "run.json", "--", *program(text))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["left the loop", "tidied up"]
    assert re.search(r"\b1 untouched, 2 timed, 3 recorded\b", " ".join(done.stdout.split()))
    assert load(tmp_path / "run.json").header.notes[0].code == "steps-of-program"


@pytest.mark.slow
def test_a_page_and_json(program, tmp_path):
    page = tmp_path / "report.html"
    done = run("--json", "-o", page, "--", *program("train(7)\nprint('mine')"))
    assert done.returncode == 0, done.stderr
    assert "mine" in done.stderr
    assert json.loads(done.stdout)["header"]["step"] == "train"
    assert "Linear" in page.read_text()
    kept = tmp_path / "report.json"
    line = done.stderr.splitlines()[-1]
    assert str(page) in line and line.endswith(f"rooflight report {kept}, rooflight predict {kept} --on h200")
    assert flops(load(kept)) == FLOPS


@pytest.mark.slow
def test_regions_of_the_program_stay(program, tmp_path):
    text = "import rooflight\nfor _ in range(8):\n    with rooflight.region('whole step'):\n        train(1)"
    saved = tmp_path / "run.json"
    done = run("-o", saved, "--", *program(text))
    assert done.returncode == 0, done.stderr
    ledger = load(saved)
    assert flops(ledger) == FLOPS
    assert [row.name for row in ledger.measurements if row.scope == "region"] == ["whole step"]
    assert "whole step" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("text", "code", "facts"), [
    ("print(1 / 3)", 0, "torch"),
    ("train(3)", 0, r"\b3 optimizer steps\b.*\bstep 7\b.*`--steps 2:3`"),
    ("train(6)\nmodel(torch.randn(4, 8))", 0, r"\b6 optimizer steps\b.*\bstep 7\b.*`--steps 2:6`"),
    ("train(1)", 0, r"\b1 optimizer steps\b.*\b2\b"),
    ("train(6)\nos.kill(os.getpid(), signal.SIGKILL)", 137, r"\bstep 7\b"),
    ("train(6)\nos._exit(3)", 3, r"\bstep 7\b"),
])  # fmt: skip
def test_how_a_program_ends_that_leaves_nothing(program, text, code, facts):
    done = run("--", *program(text))
    assert done.returncode == code
    lines = done.stderr.splitlines()
    assert re.search(facts, lines[-1])
    assert len(lines) == (2 if code else 1)


@pytest.mark.slow
@pytest.mark.parametrize(("text", "code"), [
    ("train(9)\nos.kill(os.getpid(), signal.SIGKILL)", 137),
    ("train(9)\nos._exit(3)", 3),
    ("train(9)\nraise SystemExit(4)", 4),
    ("import threading\nthread = threading.Thread(target=train, args=(9,))\nthread.start()\nthread.join()", 0),
])  # fmt: skip
def test_what_was_recorded_is_there_however_a_program_ends(program, tmp_path, text, code):
    saved = tmp_path / "run.json"
    done = run("-o", saved, "--", *program(text))
    assert done.returncode == code
    assert flops(load(saved)) == FLOPS


@pytest.mark.slow
def test_an_error_in_the_recorded_step_costs_only_what_comes_after_it(program, tmp_path):
    saved = tmp_path / "run.json"
    done = run("-o", saved, "--", *program("train(6)\nmodel(torch.randn(4, 8))\n1 / 0"))
    assert done.returncode == 1
    assert done.stderr.count("ZeroDivisionError") == 1
    ledger = load(saved)
    assert flops(ledger) == FLOPS // 2
    assert "ended-early" in codes(ledger)


@pytest.mark.slow
def test_children_that_are_forked_end_as_they_do_without(program, tmp_path):
    # In the step that is recorded, where one trains on, and after it: torch's profiler would let neither exit.
    text = """
def child(number):
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        train(number)
        sys.exit(number)
    print(os.waitpid(pid, 0)[1] >> 8)
torch.set_num_threads(1)
train(6)
child(9)
train(4)
child(2)
"""
    saved = tmp_path / "run.json"
    done = run("-o", saved, "--", *program(text))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == ["9", "2"]
    ledger = load(saved)
    assert flops(ledger) == FLOPS
    assert "other-step-recorded" in codes(ledger)


@pytest.mark.slow
def test_a_python_without_rooflight_is_named(program):
    done = run("--", *program("train(9)", begins="import sys\nsys.modules['rooflight'] = None\n" + TRAINS))
    assert done.returncode == 0
    assert sys.executable in done.stderr
