"""The conditions of a run: what is read from a machine's files and from NVIDIA's driver, and what is left out."""

from __future__ import annotations

import inspect
import os
import time
from types import SimpleNamespace as Values

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rooflight.machine import Machine, memory_use, nvml
from rooflight.machine.conditions import Conditions, conditions, other_processes, profiling_permission
from rooflight.machine.installed_gpus import (
    cuda_version,
    device_name,
    driver_version,
    pci_bus_id_of,
    process_memory_bytes,
    uuid_of,
)
from tests.fixtures.pretend_driver import PCI, UUID, PretendDriver

CPUINFO = """processor\t: 0
model name\t: AMD EPYC 9654  96-Core Processor
cpu MHz\t\t: 2400.000
flags\t\t: fpu avx2 hypervisor

processor\t: 1
model name\t: AMD EPYC 9654  96-Core Processor
cpu MHz\t\t: 3551.208
flags\t\t: fpu avx2 hypervisor
"""
STATUS = "Name:\tpython\nNSpid:\t4711\t7\nCapEff:\t{bits:016x}\nCpus_allowed_list:\t0-3,8\nSeccomp:\t2\n"
PERFMON, SYS_ADMIN = 1 << 38, 1 << 21


def lay_out(root, files, **environ):
    """A machine made of files."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Machine(root, environ)


def gpu(driver):
    return nvml.Nvml(driver).find(uuid=UUID)


# --- the processor ---


def test_a_processor_with_quota_affinity_and_limits(tmp_path):
    machine = lay_out(tmp_path, {
        "/proc/cpuinfo": CPUINFO,
        "/proc/self/status": STATUS.format(bits=0),
        "/proc/self/cgroup": "0::/jobs/one\n",
        "/sys/fs/cgroup/jobs/cpu.max": "400000 100000\n",
        "/sys/fs/cgroup/jobs/one/cpu.max": "150000 100000\n",
        "/sys/fs/cgroup/jobs/memory.max": "16000000000\n",
        "/sys/fs/cgroup/jobs/one/memory.max": "max\n",
        "/sys/devices/system/cpu/online": "0-63\n",
        "/sys/devices/system/cpu/smt/active": "1\n",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave\n",
        "/proc/loadavg": "0.31 0.40 0.22 1/812 4711\n",
        "/proc/meminfo": "MemTotal:       131072000 kB\nMemFree: 1 kB\n",
    })  # fmt: skip
    found = conditions("cpu", machine=machine)
    found.pop("threads", None)  # torch's, when something has imported it
    assert found == {
        "cpu": "AMD EPYC 9654 96-Core Processor",
        "cores": "5 usable of 64, 1.5 by quota",  # 0-3 and 8; the tighter of the two groups
        "smt": "on",
        "governor": "performance and powersave",
        "load_average": "0.31, 0.40, 0.22 (1, 5, 15 minutes)",
        "memory_total": "134 GB, 16.0 GB by limit",  # 131,072,000 * 1,024 bytes
        "clock": "3551 MHz",  # the fastest core
    }


def test_the_clock_of_a_processor_is_a_span_over_the_run(tmp_path):
    recorder = Conditions("cpu", machine=lay_out(tmp_path, {"/proc/cpuinfo": CPUINFO}))
    recorder.before()
    lay_out(tmp_path, {"/proc/cpuinfo": CPUINFO.replace("3551.208", "2900.1")})
    assert recorder.after()["clock"] == "2900 to 3551 MHz"


def test_a_quota_of_the_older_control_groups(tmp_path):
    files = {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000\n", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}
    assert lay_out(tmp_path, files).core_quota() == 2.5
    files["/sys/fs/cgroup/cpu/cpu.cfs_quota_us"] = "-1\n"
    assert lay_out(tmp_path, files).core_quota() is None


def test_an_empty_machine_says_nothing(tmp_path):
    found = conditions("cpu", machine=Machine(tmp_path, {}))
    assert found.keys() <= {"threads"}
    assert conditions("cuda", machine=Machine(tmp_path, {})).keys() <= {"profiling_permission"} or nvml.connect()


@given(numbers=st.sets(st.integers(0, 400), min_size=1))
def test_cores_are_counted_from_ranges(tmp_path_factory, numbers):
    parts, left = [], sorted(numbers)
    while left:
        last = first = left.pop(0)
        while left and left[0] == last + 1:
            last = left.pop(0)
        parts.append(str(first) if first == last else f"{first}-{last}")
    text = f"Cpus_allowed_list:\t{','.join(parts)}\n"
    machine = lay_out(tmp_path_factory.mktemp("cores"), {"/proc/self/status": text})
    assert machine.usable_cores() == len(numbers)


READ = ["/proc/cpuinfo", "/proc/self/status", "/proc/self/cgroup", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory.max",
        "/sys/devices/system/cpu/online", "/proc/loadavg", "/proc/meminfo", "/proc/driver/nvidia/version",
        "/proc/driver/nvidia/params", "/proc/1/cgroup", "/proc/version"]  # fmt: skip
KEYS = ["CapEff:", "NSpid:", "Cpus_allowed_list:", "MemTotal:", "RmProfilingAdminOnly:", "model name :", "cpu MHz :",
        "0::/", "NVRM version:", "flags :"]  # fmt: skip
LINES = st.one_of(
    st.binary(max_size=60), st.builds(lambda key, rest: f"{key} {rest}\n".encode(), st.sampled_from(KEYS), st.text())
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(files=st.dictionaries(st.sampled_from(READ), st.lists(LINES, max_size=4).map(b"\n".join), max_size=6))
def test_no_file_whatever_is_in_it_raises(tmp_path_factory, files):
    machine = lay_out(tmp_path_factory.mktemp("strange"), files)
    for device in ("cpu", "cuda:0"):
        found = conditions(device, machine=machine)
        assert all(isinstance(text, str) and text for text in found.values())
    machine.driver_version(), machine.own_pids()
    assert machine.may_read_counters() in (True, False, None)


# --- the driver's files ---


@pytest.mark.parametrize(("line", "version"), [
    ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version: 11.4.0", "535.129.03"),
    ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)", "580.95.05"),
    ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  470.57  Tue", "470.57"),
])  # fmt: skip
def test_the_driver_s_version_from_its_own_line(tmp_path, line, version):
    assert lay_out(tmp_path, {"/proc/driver/nvidia/version": line}).driver_version() == version


@pytest.mark.parametrize(("only", "bits", "driver", "words"), [
    (0, 0, "580.95.05", "all users"),
    (1, 0, "580.95.05", "administrators, and this is none"),
    (1, SYS_ADMIN, "535.129.03", "administrators, and this is one"),
    (1, PERFMON, "535.129.03", "administrators, and this is none"),  # PERFMON opens counters from driver 565 on
    (1, PERFMON, "580.95.05", "administrators, and this is one"),
])  # fmt: skip
def test_permission_for_counters(tmp_path, only, bits, driver, words):
    machine = lay_out(tmp_path, {
        "/proc/driver/nvidia/params": f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {only}\n",
        "/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Thu",
        "/proc/self/status": STATUS.format(bits=bits),
    })  # fmt: skip
    assert profiling_permission(machine) == words
    assert machine.may_read_counters() == (words != "administrators, and this is none")


# --- the GPU ---


def test_a_gpu_at_one_moment(tmp_path):
    driver = PretendDriver()
    driver.processes = [(os.getpid(), 900_000_000), (99, 2_000_000_000), (98, 500_000_000)]
    driver.used_bytes = 3_400_000_000
    machine = lay_out(tmp_path, {"/proc/driver/nvidia/params": "RmProfilingAdminOnly: 0\n", "/proc/cpuinfo": CPUINFO,
                                 "/proc/loadavg": "1.00 2.00 3.00 1/1 1\n"})  # fmt: skip
    recorder = Conditions("cuda:0", machine=machine, gpu=gpu(driver))
    recorder.sample()
    assert recorder.summary() == {
        "sm_clock": "1980 MHz", "memory_clock": "3201 MHz", "power": "312 W of 700 W", "temperature": "45 °C",
        "utilisation": "7%", "device_memory_before": "3.40 GB used, 146 GB free of 150 GB", "utilisation_before": "7%",
        "throttled": "no", "mig": "off", "ecc": "on", "compute_mode": "default", "persistence": "on",
        "other_processes": "2, 2.50 GB", "device_memory": "3.40 GB of 150 GB in use",
        "profiling_permission": "all users", "host_cpu": "AMD EPYC 9654 96-Core Processor", "host_cores": "2 usable",
        "host_load_average": "1.00, 2.00, 3.00 (1, 5, 15 minutes)",
    }  # fmt: skip


def test_a_run_shows_the_span_of_what_was_seen(tmp_path):
    driver = PretendDriver()
    recorder = Conditions("cuda:0", machine=Machine(tmp_path, {}), gpu=gpu(driver))
    driver.clocks, driver.power_mw, driver.reasons = {1: 345, 2: 1593}, 75_000, 0x1  # idle: says nothing about the run
    recorder.before()
    driver.clocks, driver.power_mw, driver.temperature, driver.reasons = {1: 1980, 2: 3201}, 690_000, 61, 0
    recorder.sample()
    driver.clocks, driver.power_mw, driver.reasons = {1: 1755, 2: 3201}, 699_600, 0x4
    found = recorder.after()
    assert found["sm_clock"] == "1755 to 1980 MHz"
    assert found["memory_clock"] == "3201 MHz"
    assert found["power"] == "690 to 700 W of 700 W"
    assert found["temperature"] == "45 to 61 °C"
    assert found["throttled"] == "power cap"


def test_a_gpu_that_was_only_seen_idle_shows_its_idle_clocks(tmp_path):
    driver = PretendDriver()
    driver.clocks, driver.reasons = {1: 345, 2: 1593}, 0x1
    recorder = Conditions("cuda:0", machine=Machine(tmp_path, {}), gpu=gpu(driver))
    recorder.before()
    found = recorder.after()
    assert (found["sm_clock"], found["throttled"]) == ("345 MHz", "no")


def test_what_the_driver_counted_and_noted_between_two_looks(tmp_path):
    driver = PretendDriver()
    driver.samples = {5: [(100, 1980)], 6: [(100, 3201)], 0: [(100, 100_000)]}
    recorder = Conditions("cuda:0", machine=Machine(tmp_path, {}), gpu=gpu(driver))
    recorder.before()
    time.sleep(0.01)
    driver.fields[74] += 4_000_000  # held down for 4 ms by the power cap, and free again when we look
    driver.fields[75] -= 1  # a counter that runs backwards was reset: no news
    driver.samples = {5: [(100, 1980), (120, 1410)], 6: [(100, 3201)], 0: [(100, 100_000), (130, 655_000)]}
    found = recorder.after()
    assert found["throttled"].startswith("power cap (4 ms of ")
    assert found["sm_clock"] == "1410 to 1980 MHz"
    assert found["power"] == "312 to 655 W of 700 W"


def test_a_counter_that_claims_more_time_than_there_was_is_not_believed(tmp_path):
    driver = PretendDriver()
    recorder = Conditions("cuda:0", machine=Machine(tmp_path, {}), gpu=gpu(driver))
    recorder.before()
    driver.fields[75] += 10**15
    assert recorder.after()["throttled"] == "no"


def test_reasons_in_words():
    driver = PretendDriver()
    driver.reasons = 0x8 | 0x20 | 0x40 | 0x80
    assert gpu(driver).reasons() == ("hardware slowdown", "heat", "power brake")
    driver.missing = {"nvmlDeviceGetCurrentClocksEventReasons"}  # the older name of the same
    assert gpu(driver).reasons() == ("hardware slowdown", "heat", "power brake")
    driver.missing.add("nvmlDeviceGetCurrentClocksThrottleReasons")
    assert gpu(driver).reasons() is None


def test_older_drivers_count_by_policy():
    driver = PretendDriver()
    driver.missing = {"nvmlDeviceGetFieldValues"}
    assert gpu(driver).violations_ns() == {"power cap": 7_000_000, "heat": 0}


def test_a_driver_that_answers_nothing_leaves_gaps(tmp_path):
    driver = PretendDriver()
    found = gpu(driver)
    driver.missing = {name for name in dir(PretendDriver) if name.startswith("answer_")}
    driver.missing = {"nvml" + name.removeprefix("answer_") for name in driver.missing}
    recorder = Conditions("cuda:0", machine=Machine(tmp_path, {}), gpu=found)
    recorder.before()
    assert recorder.after() == {}


def test_a_slice_is_found_by_its_own_name_and_reads_its_board():
    driver = PretendDriver()
    driver.slice = True
    found = gpu(driver)
    assert found.is_slice and found.mig() is True
    assert found.clock_mhz("sm") == 1980  # only the board answers that
    assert found.power_w() == pytest.approx(312.4)


def test_a_gpu_is_found_by_what_torch_calls_it():
    found = nvml.Nvml(PretendDriver()).find(uuid=None, pci_bus_id=PCI)
    assert found is not None and found.name() == "NVIDIA H200"
    assert nvml.Nvml(PretendDriver()).find(uuid="0" * 36, pci_bus_id="00000000:FF:00.0") is None
    properties = Values(uuid=UUID, pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)
    assert (uuid_of(properties), pci_bus_id_of(properties)) == (UUID, PCI)
    assert pci_bus_id_of(Values(uuid=UUID)) is None


def test_memory_in_use_leaves_out_what_the_driver_keeps():
    driver = PretendDriver()
    assert gpu(driver).memory_used_bytes() == 1_000_000


def test_processes_of_a_container_have_other_numbers(tmp_path):
    machine = lay_out(tmp_path, {})
    driver = PretendDriver()
    driver.processes = [(90_001, 900_000_000)]
    assert other_processes(gpu(driver), machine=machine, here=True) == "none"
    driver.processes.append((90_002, None))
    assert other_processes(gpu(driver), machine=machine, here=True) == "1"
    assert other_processes(gpu(driver), machine=machine, here=False) == "2"


def test_every_question_has_the_form_that_nvidia_ml_py_takes(tmp_path):
    pynvml = pytest.importorskip("pynvml")
    driver = PretendDriver()
    driver.slice = True
    driver.samples = {5: [(1, 1)], 6: [(1, 1)], 0: [(1, 1)]}
    recorder = Conditions("cuda:0", machine=Machine(tmp_path, {}), gpu=gpu(driver))
    recorder.before()
    recorder.after()
    driver.missing = {"nvmlDeviceGetFieldValues", "nvmlDeviceGetCurrentClocksEventReasons"}
    gpu(driver).violations_ns(), gpu(driver).reasons()
    library = nvml.Nvml(driver)
    library.gpus(), library.driver_version(), library.find(pci_bus_id=PCI)
    assert len({name for name, _ in driver.asked}) == 24
    for name, arguments in driver.asked:
        inspect.signature(getattr(pynvml, name)).bind(*arguments)
    fields = {name for name, _ in pynvml.c_nvmlFieldValue_t._fields_}
    assert {"fieldId", "nvmlReturn", "value"} <= fields
    assert {"uiVal", "dVal", "ullVal"} <= {name for name, _ in pynvml.c_nvmlValue_t._fields_}
    assert {"timeStamp", "sampleValue"} <= {name for name, _ in pynvml.c_nvmlSample_t._fields_}
    assert "violationTime" in {name for name, _ in pynvml.c_nvmlViolationTime_t._fields_}
    assert pynvml.nvmlMemory_v2 == PretendDriver.nvmlMemory_v2


def test_a_library_that_does_not_start_says_why():
    class Broken:
        def nvmlInit(self):  # noqa: N802
            raise RuntimeError("Driver Not Loaded")

    assert nvml.start(Broken()) == (None, "NVML does not start: Driver Not Loaded")
    assert (nvml.connect() is None) == (nvml.absence() is not None)


# --- this machine ---


def test_this_machine_tells_its_processor():
    recorder = Conditions("cpu")
    recorder.before()
    found = recorder.after()
    if hasattr(os, "sched_getaffinity"):
        assert found["cores"].split()[0] == str(len(os.sched_getaffinity(0)))
    assert device_name("cpu") and device_name("meta") == "meta"
    assert found.get("cpu", device_name("cpu")) == device_name("cpu")


def test_without_a_gpu_nothing_raises():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert process_memory_bytes("cuda") is None
    assert device_name("cuda:5") == "cuda:5"
    assert "sm_clock" not in conditions("cuda")
    assert cuda_version() == torch.version.cuda
    assert driver_version() is None or driver_version()[0].isdigit()


def schedule(*threads):
    return {f"/proc/self/task/{7 + n}/schedstat": f"{ran} {waited} 12\n" for n, (ran, waited) in enumerate(threads)}


def test_how_long_threads_waited_for_a_core_is_told_by_the_kernel(tmp_path):
    machine = lay_out(tmp_path, schedule((1_000, 500), (1_000, 0)))
    watched = Conditions("cpu", machine=machine)
    watched.before()
    lay_out(tmp_path, schedule((61_000, 30_500), (9_000, 0)))
    assert watched.after()["waited_for_a_core"] == f"{30_000 / 98_000:.0%} of the time"


@pytest.mark.parametrize("text", ["", "1 2", "nonsense here now", "-5 1 2", "1 2 3 4"])
def test_a_schedule_that_cannot_be_read_is_absent(tmp_path, text):
    machine = lay_out(tmp_path, {"/proc/self/task/7/schedstat": text})
    assert "waited_for_a_core" not in conditions("cpu", machine=machine)


def test_this_process_knows_how_long_it_waited():
    if not os.path.exists("/proc/self/schedstat"):
        pytest.skip("this kernel keeps no schedule")
    assert conditions("cpu")["waited_for_a_core"].endswith("% of the time")


# --- memory: how much there is, how much is taken ---


def test_memory_of_a_machine(tmp_path):
    """16,000,000 KiB, of which 4,000,000 KiB are available: 12,000,000 KiB = 12.288 GB are used."""
    machine = lay_out(tmp_path, {"/proc/meminfo": "MemTotal: 16000000 kB\nMemFree: 5 kB\nMemAvailable: 4000000 kB\n"})
    memory = memory_use.ram(machine)
    assert (memory.total_bytes, memory.used_bytes, memory.free_bytes) == (16_384_000_000, 12_288_000_000, 4_096_000_000)
    assert str(memory) == "12.3 GB used, 4.10 GB free of 16.4 GB"
    assert conditions("cpu", machine=machine)["memory_before"] == "12.3 GB used, 4.10 GB free of 16.4 GB"


def test_memory_of_a_container(tmp_path):
    """What its own limit leaves counts: 8 GB allowed, 5 GB held, of which 2 GB are files that can be read again."""
    files = {
        "/proc/meminfo": "MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\n",
        "/proc/self/cgroup": "0::/jobs/one\n",
        "/sys/fs/cgroup/jobs/one/memory.max": "8000000000\n",
        "/sys/fs/cgroup/jobs/one/memory.current": "5000000000\n",
        "/sys/fs/cgroup/jobs/one/memory.stat": "anon 3000000000\ninactive_file 2000000000\n",
        "/sys/fs/cgroup/jobs/memory.max": "16000000000\n",
        "/sys/fs/cgroup/jobs/memory.current": "9000000000\n",
    }
    memory = memory_use.ram(lay_out(tmp_path, files))
    assert (memory.total_bytes, memory.used_bytes, memory.free_bytes) == (8_000_000_000, 3_000_000_000, 5_000_000_000)
    assert str(memory) == "3.00 GB used, 5.00 GB free of 8.00 GB (the limit of this container or job)"
    # A full machine leaves less than the limit does.
    (tmp_path / "proc/meminfo").write_text("MemTotal: 64000000 kB\nMemAvailable: 1000000 kB\n")
    assert memory_use.ram(Machine(tmp_path, {})).free_bytes == 1_024_000_000


def test_memory_of_an_old_container(tmp_path):
    """Control groups of the first version have other names."""
    files = {
        "/proc/meminfo": "MemTotal: 64000000 kB\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "4000000000\n",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": "1500000000\n",
        "/sys/fs/cgroup/memory/memory.stat": "cache 1\ntotal_inactive_file 500000000\n",
    }
    memory = memory_use.ram(lay_out(tmp_path, files))
    assert (memory.used_bytes, memory.free_bytes) == (1_000_000_000, 3_000_000_000)


def test_memory_that_nobody_tells(tmp_path, monkeypatch):
    assert memory_use.ram(Machine(tmp_path, {})) is None
    here = memory_use.ram()
    assert here is not None and here.total_bytes > 0

    def sysconf(name):  # macOS tells how much there is, and not how much is free
        if name == "SC_AVPHYS_PAGES":
            raise ValueError("unrecognized configuration name")
        return {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1_000_000}[name]

    monkeypatch.setattr(Machine, "memory_bytes", lambda *_: None)
    monkeypatch.setattr(os, "sysconf", sysconf)
    assert str(memory_use.ram()) == "4.10 GB, of which it is unknown how much is free"
    monkeypatch.delattr(os, "sysconf")  # Windows
    assert memory_use.ram() is None


def test_a_gpu_as_it_was_found(tmp_path):
    """Before the run somebody held 3.4 GB and kept it busy; the driver's own 0.7 GB are neither used nor free."""
    driver = PretendDriver()
    driver.used_bytes, driver.utilisation = 3_400_000_000, 98
    recorder = Conditions("cuda:0", machine=Machine(tmp_path, {}), gpu=gpu(driver))
    driver.used_bytes, driver.utilisation = 90_000_000_000, 40
    recorder.before()
    driver.utilisation = 73
    found = recorder.after()
    assert found["device_memory_before"] == "3.40 GB used, 146 GB free of 150 GB"
    assert found["utilisation_before"] == "98%"
    assert found["utilisation"] == "40 to 73%"
    assert found["device_memory"] == "90.0 GB of 150 GB in use"
    driver.missing = {"nvmlDeviceGetUtilizationRates"}
    assert "utilisation" not in conditions_of(driver, tmp_path)


def conditions_of(driver, folder):
    recorder = Conditions("cuda:0", machine=Machine(folder, {}), gpu=gpu(driver))
    recorder.sample()
    return recorder.summary()
