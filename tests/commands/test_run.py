"""`rooflight run -- COMMAND`: real programs with regions, however they end."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from rooflight.files import load
from rooflight.measurement.cupti.library import has_driver
from rooflight.measurement.regions.ledger import _CUT_OFF
from rooflight.summary.region_tree import regions_of
from tests.fixtures.paths import ROOT

PREFIX = "import os, signal, sys, time\nfrom rooflight.measurement.regions import region\n"
TWO_REGIONS = """
print("begins")
for step in range(5):
    with region("step"):
        with region("layer"):
            pass
print("ends", *sys.argv[1:])
"""


@pytest.fixture
def program(tmp_path):
    """Write a program; gives the arguments that run it."""

    def program(text):
        path = tmp_path / "main.py"
        path.write_text(PREFIX + text)
        return [sys.executable, str(path)]

    return program


def arguments(*words):
    return [sys.executable, "-m", "rooflight.commands.main", "run", *map(str, words)]


def run(*words, **options):
    done = subprocess.run(arguments(*words), capture_output=True, text=True, timeout=600, check=False, **options)
    assert "Traceback" not in done.stderr
    return done


def test_the_programs_output_then_a_table(program):
    done = run("--", *program(TWO_REGIONS), "--force", "-o", "x", "--debug", "--help")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["begins", "ends --force -o x --debug --help"]
    assert lines[2].startswith("main.py · 2 regions")
    rows = {words[0]: words[2] for words in (line.split() for line in lines) if words[:1] in (["step"], ["layer"])}
    assert rows == {"step": "5", "layer": "5"}
    assert "note: all regions: " in done.stdout
    assert done.stderr == ""


def test_json_is_alone_on_the_output(program):
    done = run("--json", "--", *program(TWO_REGIONS))
    assert "begins" in done.stderr
    document = json.loads(done.stdout)
    assert set(document) == {"header", "regions", "program", "doubt", "exit_code"}
    assert document["exit_code"] == 0
    assert [(row["name"], row["executions"]) for row in document["regions"]] == [("step", 5), ("layer", 5)]
    layer = document["regions"][1]
    assert layer["time_s"] == layer["quantities"]["wall_time_s"]["value"] > 0
    assert layer["flops"] is None
    assert document["header"]["command"].startswith("rooflight run -- ")


def test_the_ledger_is_saved_and_an_existing_file_is_kept(program, tmp_path):
    saved = tmp_path / "run.json.gz"
    assert run("-o", saved, "--", *program(TWO_REGIONS)).returncode == 0
    ledger = load(saved)
    assert [row.name for row in regions_of(ledger)] == ["step", "layer"]
    before = saved.read_bytes()
    ran = tmp_path / "ran"
    again = run("-o", saved, "--", *program(f"open({str(ran)!r}, 'w')"))
    assert (again.returncode, again.stdout) == (2, "")
    assert "--force" in again.stderr and len(again.stderr.splitlines()) == 1
    assert saved.read_bytes() == before
    assert not ran.exists()  # told before the program ran
    assert run("-o", saved, "--force", "--", *program(TWO_REGIONS)).returncode == 0


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_full_output_does_not_cost_the_file(program, tmp_path, form):
    saved = tmp_path / "run.json"
    command = arguments(*form, "-o", saved, "--", *program(TWO_REGIONS.replace("print", "str")))
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=600, check=False)
    assert done.returncode == 2
    wrote, failed = done.stderr.splitlines()
    assert str(saved) in wrote and os.strerror(errno.ENOSPC) in failed
    assert [row.name for row in regions_of(load(saved))] == ["step", "layer"]


def test_the_command_that_is_kept_has_its_options(program, tmp_path):
    saved, command = tmp_path / "run.json", program(TWO_REGIONS)
    assert run("--counters", "none", "--level", "l2", "-o", saved, "--", *command).returncode == 0
    asked = ["rooflight", "run", "--counters", "none", "--level", "l2", "--", *map(str, command)]
    assert shlex.split(load(saved).header.command) == asked


def test_a_reader_that_has_gone_does_not_cost_the_file(program, tmp_path):
    saved = tmp_path / "t.csv"
    reading, writing = os.pipe()
    os.close(reading)
    command = arguments("-o", saved, "--", *program(TWO_REGIONS.replace("print", "str")))
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=600, check=False)
    os.close(writing)
    assert str(saved) in done.stderr and str(tmp_path / "t.json") in done.stderr
    assert saved.read_text().startswith("region,inside,share_of_parent,executions,")


def test_a_file_that_cannot_be_written_does_not_cost_the_table(program, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    done = run("-o", folder / "run.json", "--", *program(f"os.rmdir({str(folder)!r})\n{TWO_REGIONS}"))
    assert done.returncode == 2
    assert "main.py · 2 regions" in done.stdout
    assert str(folder) in done.stderr and len(done.stderr.splitlines()) == 1


def test_tables_as_files(program, tmp_path):
    run("-o", tmp_path / "t.csv", "--", *program(TWO_REGIONS))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert [(row["region"], row["executions"]) for row in rows] == [("step", "5"), ("layer", "5")]
    # What was measured is beside it: the next one says so before it runs, and replaces it only when it may.
    assert len(regions_of(load(tmp_path / "t.json"))) == 2
    refused = run("-o", tmp_path / "t.md", "--", *program(TWO_REGIONS))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert str(tmp_path / "t.json") in refused.stderr and "--force" in refused.stderr
    run("-o", tmp_path / "t.md", "--force", "--", *program(TWO_REGIONS))
    lines = [line.replace("&nbsp;", "").split("|") for line in (tmp_path / "t.md").read_text().splitlines()]
    assert {words[1].strip(): words[3].strip() for words in lines if len(words) > 3}["step"] == "5"
    refused = run("-o", tmp_path / "t.txt", "--", *program(TWO_REGIONS))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "t.txt" in refused.stderr and ".json" in refused.stderr


def test_a_page_with_charts(program, tmp_path):
    done = run("-o", tmp_path / "page.html", "--", *program(TWO_REGIONS))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "main.py" in page
    kept = tmp_path / "page.json"
    line = done.stderr.splitlines()[-1]
    assert str(tmp_path / "page.html") in line and line.endswith(f"rooflight report {kept}")
    assert [row.name for row in regions_of(load(kept))] == ["step", "layer"]


# --- how a program ends ---


def test_a_program_that_fails_keeps_its_exit_code_and_what_it_measured(program):
    done = run("--", *program("with region('x'): pass\nwith region('x'):\n    sys.exit(7)"))
    assert done.returncode == 7
    assert "main.py · 1 region " in done.stdout
    assert re.search(r"\b7\b", done.stderr)


def test_a_traceback_is_the_programs(program):
    command = arguments("--", *program("with region('x'): pass\nwith region('x'): 1 / 0"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert done.stderr.count("ZeroDivisionError") == 1
    assert "1 region " in done.stdout


def test_a_program_without_regions_is_told_so(program):
    done = run("--", *program("print('hello')"))
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert done.stderr.startswith("rooflight: ") and len(done.stderr.splitlines()) == 1
    assert json.loads(run("--json", "--", *program("")).stdout)["regions"] == []


def test_a_region_that_was_never_executed_is_told(program):
    done = run("--", *program("with region('x', when=False): pass"))
    assert "note: x: " in done.stdout


def test_a_script_by_itself_is_no_command(program):
    _, script = program("")
    done = run("--", script, "--epochs", 2)
    assert done.returncode == 2
    assert f"`rooflight run -- python {script} --epochs 2`" in done.stderr


def test_input_reaches_the_program(program):
    done = run("--", *program("with region('x'): print(input().upper())"), input="hello\n")
    assert done.stdout.startswith("HELLO\n")


WAITS = """
for _ in range(3):
    with region("x"): pass
print("ready", flush=True)
"""


def interrupted(program, text, number, *, group=False):
    process = subprocess.Popen(
        arguments("--", *program(text)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    (os.killpg if group else os.kill)(process.pid, number)
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


@pytest.mark.parametrize("group", [False, True])
def test_ctrl_c_goes_to_the_program_and_what_it_measured_is_shown(program, group):
    text = WAITS + "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    time.sleep(0.2)\n    sys.exit(130)"
    code, out, err = interrupted(program, text, signal.SIGINT, group=group)
    assert code == 130
    assert "main.py · 1 region " in out
    assert re.search(r"\b130\b", err)


def test_ctrl_c_at_a_terminal_reaches_the_program_once(program):
    text = "heard = []\nsignal.signal(signal.SIGINT, lambda *_: heard.append(1))\n" + WAITS
    command = arguments(
        "--",
        *program(text + "while not heard: time.sleep(0.01)\ntime.sleep(1)\nprint('heard', len(heard), flush=True)"),
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    shown = b""
    while b"ready" not in shown:
        shown += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    with suppress(OSError):  # the terminal is gone when the last process has left it
        while part := os.read(terminal, 1000):
            shown += part
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert b"heard 1" in shown
    assert "main.py · 1 region ".encode() in shown


def test_a_program_told_to_end_still_writes(program):
    code, out, _ = interrupted(program, WAITS + "time.sleep(60)", signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert "main.py · 1 region " in out and _CUT_OFF.text not in " ".join(out.split())


def test_a_killed_program_leaves_what_it_had(program):
    done = run("--", *program(WAITS + "os.kill(os.getpid(), signal.SIGKILL)"))
    assert done.returncode == 128 + signal.SIGKILL
    assert "main.py · 1 region " in done.stdout
    assert _CUT_OFF.text in " ".join(done.stdout.split())


def test_a_program_that_leaves_at_once_leaves_what_it_had(program):
    done = run("--", *program(WAITS + "os._exit(3)"))
    assert done.returncode == 3
    assert "main.py · 1 region " in done.stdout


def test_the_programs_own_answer_to_sigterm_stays(program):
    text = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n" + WAITS + "time.sleep(60)"
    code, out, _ = interrupted(program, text, signal.SIGTERM)
    assert code == 5
    assert "main.py · 1 region " in out


# --- several processes ---


RANKS = """
import subprocess
if "RANK" not in os.environ:
    ranks = [subprocess.Popen([sys.executable, __file__], env={**os.environ, "RANK": str(r), "WORLD_SIZE": "2"})
             for r in range(2)]
    sys.exit(max(rank.wait() for rank in ranks))
for _ in range(3 + int(os.environ["RANK"])):
    with region("step"): pass
"""


def test_every_rank_writes_its_own_and_they_are_joined(program, tmp_path):
    done = run("-o", tmp_path / "run.json", "--", *program(RANKS))
    assert done.returncode == 0, done.stderr
    ledger = load(tmp_path / "run.json")
    assert (ledger.header.rank, ledger.header.world) == (0, 2)
    assert [(row.name, row.quantities["executions"].value) for row in regions_of(ledger)] == [
        ("step", 3),
        ("step (rank 1)", 4),
    ]


def test_ranks_that_wrote_nothing_are_named(program, tmp_path):
    done = run("-o", tmp_path / "run.json", "--", *program(RANKS.replace('"2"', '"4"')))
    assert done.returncode == 0, done.stderr
    header = load(tmp_path / "run.json").header
    assert header.world == 4
    assert header.notes[0].code == "missing-ranks" and "ranks 2, 3 of 4" in header.notes[0].text
    assert "ranks 2, 3 of 4" in done.stdout


def test_a_launcher_with_a_region_of_its_own_is_no_rank(program, tmp_path):
    launcher = RANKS.replace("not in os.environ:", 'not in os.environ:\n    with region("launch"): pass')
    done = run("-o", tmp_path / "run.json", "--", *program(launcher))
    assert done.returncode == 0, done.stderr
    ledger = load(tmp_path / "run.json")
    assert (ledger.header.world, len(regions_of(ledger))) == (2, 3)
    assert not any(note.code == "missing-ranks" for note in ledger.header.notes)


WORKERS = """
import multiprocessing
def work(_):
    with region("load"): pass
if __name__ == "__main__":
    with region("main"):
        processes = [multiprocessing.get_context("METHOD").Process(target=work, args=(i,)) for i in range(2)]
        for process in processes: process.start()
        for process in processes: process.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_program_write_too(program, tmp_path, method):
    done = run("-o", tmp_path / "run.json", "--", *program(WORKERS.replace("METHOD", method)))
    assert done.returncode == 0, done.stderr
    names = [row.name for row in regions_of(load(tmp_path / "run.json"))]
    assert names[0] == "main"
    assert [name.partition(" (process ")[0] for name in names[1:]] == ["load", "load"]


# --- what was asked for ---


def test_counters_that_were_asked_for_and_are_not_there_are_an_error(program):
    done = run("--counters", "cupti", "--", *program(TWO_REGIONS))
    assert done.returncode == 2
    if has_driver():
        assert "step" in done.stdout and "--counters" in done.stderr
    else:  # known before a program of hours is run
        assert (done.stdout, len(done.stderr.splitlines())) == ("", 1) and "--counters" in done.stderr


def test_the_environment_of_the_program_is_its_own(program):
    text = "print(os.environ.get('PYTHONPATH'), os.environ['ROOFLIGHT_COUNTERS'], os.environ['ROOFLIGHT_LEVEL'])"
    environment = {**os.environ, "PYTHONPATH": "/nowhere"}
    done = run("--counters", "none", "--level", "l2", "--", *program(text), env=environment)
    assert done.stdout == "/nowhere none l2\n"


def test_nothing_is_left_behind(program, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    run("--", *program(TWO_REGIONS), env={**os.environ, "TMPDIR": str(folder)})
    assert list(folder.iterdir()) == []


def test_help_says_how():
    done = run("--help")
    assert done.returncode == 0
    assert "rooflight run -- python main.py" in done.stdout


def test_the_shipped_example_runs():
    example = ROOT / "examples" / "mnist_regions.py"
    done = run("--json", "--", sys.executable, example, "--epochs", 1, "--batch", 2, "--steps", 3)
    document = json.loads(done.stdout)
    assert {row["name"]: row["executions"] for row in document["regions"]} == {"step": 3, "conv2": 3}
    assert "epoch 1: loss" in done.stderr
