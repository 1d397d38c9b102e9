"""`rooflight doctor`: what it makes of its checks, and the checks of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from rooflight.analysis.inferred_errors import INFERRED_ERRORS
from rooflight.commands.doctor import REQUIREMENTS, CapabilityMissing, command, refuse, show, without_counters
from rooflight.errors import CannotMeasure, RooflightError
from rooflight.machine import Machine, nvml
from rooflight.machine.conditions import Conditions
from rooflight.measurement.cupti.cupti import REMEDIES
from rooflight.measurement.doctor import (
    CHECKS,
    Check,
    CheckResult,
    Diagnosis,
    Limited,
    by_ncu,
    counters,
    processor,
    try_all,
    undisturbed,
)
from tests.fixtures.paths import ROOT
from tests.fixtures.pretend_driver import UUID, PretendDriver

CLOSED = "the driver keeps the counters for administrators: run as root"


def fails(error):
    def probe():
        raise error

    return probe


def diagnosed(**errors):
    """This program's checks on a machine where all work but these."""
    checks = [
        Check(check.id, check.title, fails(errors[check.id]) if check.id in errors else lambda: "fine", check.remedy, check.needs)
        for check in CHECKS
    ]  # fmt: skip
    return Diagnosis(try_all(checks))


NO_GPU = dict.fromkeys(
    ("gpu", "counters_cupti"), CannotMeasure("no-driver", "no driver was found: docker run --gpus all")
)
NO_COUNTERS = {name: CannotMeasure("counters-unavailable", CLOSED) for name in ("counters_cupti", "counters_ncu")}


def results(**errors):
    return {name: found.status for name, found in diagnosed(**errors).checks.items()}


# --- checks ---


def test_a_check_shows_what_it_found_or_the_line_of_its_error():
    found = try_all([
        Check("a", "first", lambda: "fine", "remedy of a"),
        Check("b", "second", fails(Limited("disturbed", "slow")), "remedy of b"),
        Check("c", "third", fails(CannotMeasure("no-gpu", "no GPU: use --counters=none")), "remedy of c"),
        Check("d", "fourth", fails(RuntimeError("\nCUDA error: busy\nCompile with ...")), "remedy of d", needs="b"),
        Check("e", "fifth", fails(KeyError()), needs="a"),
        Check("f", "sixth", fails(AssertionError("is not tried")), "remedy of f", needs="c"),
        Check("g", "seventh", fails(AssertionError("is not tried")), needs="f"),
    ])  # fmt: skip
    assert list(found.values()) == [
        CheckResult("first", "ok", "fine"),
        CheckResult("second", "limited", "slow", "remedy of b"),
        CheckResult("third", "no", "no GPU: use --counters none", "remedy of c"),
        CheckResult("fourth", "no", "CUDA error: busy", "remedy of d"),
        CheckResult("fifth", "no", "KeyError"),
        CheckResult("sixth", "no", "needs third"),
        CheckResult("seventh", "no", "needs sixth"),
    ]


def test_checks_have_names_of_their_own_and_need_earlier_ones():
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len({check.title for check in CHECKS}) == len(CHECKS)
    for place, check in enumerate(CHECKS):
        assert not check.needs or check.needs in ids[:place]
    assert {name for names in REQUIREMENTS.values() for name in names} <= set(ids)


def test_without_a_gpu_the_processor_is_measured():
    ok = {"torch", "estimate", "time", "memory", "cpu", "ram"}
    assert {name for name, status in results(**NO_GPU).items() if status == "ok"} == ok


def test_without_torch_only_the_machine_is_seen():
    found = results(torch=ModuleNotFoundError("No module named 'torch'"))
    assert {name for name, status in found.items() if status == "ok"} == {"cpu", "ram"}


def test_the_probe_of_this_machine_ends_in_an_answer():
    try:
        answer = counters()
    except CannotMeasure as error:
        answer = str(error)
    assert answer and "\n" not in answer and "Traceback" not in answer and "crashed" not in answer


@pytest.mark.parametrize(("ending", "line"), [
    ("from rooflight.errors import BadInput\n    raise BadInput('unknown-counter', 'no counter x: choose y')", "no counter x: choose y"),
    ("import os\n    os._exit(139)", "the probe of the counters crashed: it ended with code 139"),
])  # fmt: skip
def test_a_probe_that_does_not_succeed_ends_in_one_line(tmp_path, monkeypatch, ending, line):
    """A counter that this GPU lacks is the wrong input to CUPTI, and no crash; libraries that do not fit may crash."""
    (tmp_path / "sitecustomize.py").write_text(
        f"from rooflight.measurement.cupti import ranges\ndef probe(**_):\n    {ending}\nranges.probe = probe\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CannotMeasure) as refusal:
        counters()
    assert str(refusal.value) == line


def test_ncu_needs_the_same_permission_as_cupti(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotMeasure, match="ncu is not on PATH"):
        by_ncu(Machine(tmp_path))
    (tmp_path / "ncu").write_text("#!/bin/sh\n")
    (tmp_path / "ncu").chmod(0o755)
    assert by_ncu(Machine(tmp_path)) == f"kernel by kernel, {tmp_path}/ncu"
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/params").write_text("RmProfilingAdminOnly: 1\n")
    with pytest.raises(CannotMeasure) as refusal:
        by_ncu(Machine(tmp_path))
    assert refusal.value.text == REMEDIES[35]


@pytest.mark.parametrize(("change", "text"), [
    ({}, "throttled no, other processes none"),
    ({"reasons": 0x40, "clocks": {1: 1410, 2: 3201}}, "sm clock 1410 MHz"),
    ({"reasons": 0x2}, "throttled clocks set by hand"),
    ({"processes": [(7001, 2 * 10**9)]}, "other processes 1, 2.00 GB"),
])  # fmt: skip
def test_what_disturbs_a_measurement_on_the_gpu_is_limited(tmp_path, change, text):
    driver = PretendDriver()
    for name, value in change.items():
        setattr(driver, name, value)
    seen = Conditions("cuda", machine=Machine(tmp_path, {}), gpu=nvml.Nvml(driver).find(uuid=UUID))
    seen.sample()
    if not change:
        assert text in undisturbed(seen.summary())
        return
    with pytest.raises(Limited) as limited:
        undisturbed(seen.summary())
    assert text in str(limited.value)


def test_a_quota_makes_times_jump(tmp_path):
    for name, text in {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\n",
        "proc/self/status": "Cpus_allowed_list:\t0-15\n", "sys/fs/cgroup/cpu.max": "max 100000\n",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    machine = Machine(tmp_path, {})
    assert "Xeon(R) Platinum 8480C, cores 16 usable" in processor(machine)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("150000 100000\n")
    with pytest.raises(Limited, match=r"1\.5 by quota: times on the CPU will jump"):
        processor(machine)


# --- the command ---


@pytest.mark.parametrize(("required", "strict", "missing"), [
    ((), False, None), (("time",), False, None), (("time",), True, None), ((), True, "CUPTI counters cannot be had here"),
    (("gpu",), False, "NVIDIA GPU cannot be had here"), (("time", "counters"), False, "CUPTI counters cannot be had here"),
])  # fmt: skip
def test_exit_codes_without_a_gpu(required, strict, missing):
    diagnosis = diagnosed(**NO_GPU)
    if missing is None:
        refuse(diagnosis, required=required, strict=strict)
        return
    with pytest.raises(CapabilityMissing) as raised:
        refuse(diagnosis, required=required, strict=strict)
    assert raised.value.exit_code == 3 and isinstance(raised.value, RooflightError)
    assert str(raised.value) == f"{missing}: no driver was found: docker run --gpus all"


def test_limited_is_enough_unless_strict():
    diagnosis = diagnosed(conditions=Limited("disturbed", "other processes 1"))
    refuse(diagnosis, required=tuple(REQUIREMENTS), strict=True)
    refuse(diagnosis, required=(), strict=False)
    with pytest.raises(CapabilityMissing, match="conditions only limited here: other processes 1"):
        refuse(diagnosis, required=(), strict=True)


def test_ncu_alone_is_enough_for_counters():
    refuse(diagnosed(counters_cupti=NO_COUNTERS["counters_cupti"]), required=("counters",), strict=True)
    with pytest.raises(CapabilityMissing, match="CUPTI counters cannot be had here: the driver keeps"):
        refuse(diagnosed(**NO_COUNTERS), required=("counters",), strict=False)


def test_where_no_counter_can_be_read_doctor_offers_what_can_be_inferred():
    closed = diagnosed(**NO_COUNTERS)
    assert "infers executed FLOPs" in without_counters(closed) and INFERRED_ERRORS.text in without_counters(closed)
    assert without_counters(diagnosed()) == without_counters(diagnosed(**NO_GPU)) == ""


@pytest.mark.parametrize("width", [60, 80, 150])
def test_what_is_shown_fits_the_terminal(width, monkeypatch, capfd):
    monkeypatch.setenv("COLUMNS", str(width))
    show(diagnosed(conditions=Limited("disturbed", "other processes 1"), **NO_COUNTERS))
    out, _ = capfd.readouterr()
    assert all(len(line) <= width for line in out.splitlines())
    for part in ("what can be measured here", "to change it", "✗ no", "! limited", "✓ ok", "pip install 'rooflight"):
        assert part in out
    assert "\x1b" not in out


def test_when_all_is_well_it_says_so(capfd):
    show(diagnosed())
    out, _ = capfd.readouterr()
    assert "nothing stands in the way" in out and "to change it" not in out


def test_this_machine_as_json():
    done = CliRunner().invoke(command, ["--json"], catch_exceptions=False)
    assert done.exit_code == 0
    document = json.loads(done.output)
    assert set(document) == {"checks", "versions", "ram", "gpus", "without_counters"}
    ram, checks = document["ram"], document["checks"]
    assert ram["used_bytes"] + ram["free_bytes"] <= ram["total_bytes"]
    assert ram["total_bytes"] > 2**20
    assert list(checks) == [check.id for check in CHECKS]
    assert {checks[name]["status"] for name in ("torch", "estimate", "time", "memory", "ram")} == {"ok"}
    assert "s a step of mnist-cnn, on " in checks["time"]["detail"]
    for found in checks.values():
        assert set(found) == {"title", "status", "detail", "remedy"}
        assert found["status"] in ("ok", "limited", "no") and found["detail"] and "\n" not in found["detail"]
    assert document["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))


def run_without_torch(program):
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environ)


def test_a_torch_that_cannot_be_imported_is_told_in_one_line():
    done = run_without_torch(
        "import sys; sys.modules['torch'] = None\nfrom rooflight.commands.doctor import CapabilityMissing, command\n"
        "try:\n    command(standalone_mode=False, args=[])\nexcept CapabilityMissing as error:\n    sys.exit(error.exit_code)\n"
    )
    assert done.returncode == 3, done.stderr
    assert "import of torch halted" in done.stdout and "--force-reinstall 'torch>=2.8'" in done.stdout
    assert "Traceback" not in done.stderr


def test_importing_the_command_does_not_import_torch():
    done = run_without_torch(
        "import sys, rooflight.commands.doctor, rooflight.measurement.doctor; assert 'torch' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr


def test_help_tells_the_exit_codes():
    done = CliRunner().invoke(command, ["--help"])
    assert done.exit_code == 0 and "Exit codes: 0" in done.output and "--require" in done.output
