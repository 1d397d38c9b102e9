"""`rooflight doctor`: every condition it knows, on machines made of files, and what follows from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from rooflight.analysis.inferred_errors import INFERRED_ERRORS
from rooflight.commands.doctor import CapabilityMissing, command, refuse, show, without_counters
from rooflight.errors import CannotMeasure, RooflightError
from rooflight.machine import Machine, nvml
from rooflight.measurement.doctor.diagnosis import CHECKS, diagnose
from rooflight.measurement.doctor.subject import InstalledTorch, Subject, TorchDevice, numbers
from tests.fixtures.paths import ROOT
from tests.fixtures.pretend_driver import UUID, PretendDriver

H200 = TorchDevice("NVIDIA H200", (9, 0), 150_000_000_000, UUID)
CUDA_TORCH = InstalledTorch("2.11.0+cu130", cuda="13.0", devices=(H200,), arches=("sm_75", "sm_80", "sm_90", "sm_120", "compute_120"),
                   records_kernels=True)  # fmt: skip
CPU_TORCH = InstalledTorch("2.13.0+cpu")
ADMIN_BIT, PERFMON_BIT = 1 << 21, 1 << 38


def status(bits):
    return f"Name:\tpython\nCapEff:\t{bits:016x}\nCpus_allowed_list:\t0-15\n"


BARE = {
    "/proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\nflags\t: fpu avx512f\n",
    "/proc/self/status": status(0),
    "/proc/sys/kernel/perf_event_paranoid": "2\n",
    "/proc/version": "Linux version 6.8.0-45-generic\n",
    "/sys/bus/event_source/devices/cpu/type": "4\n",
}
WITH_GPU = {
    **BARE,
    "/dev/nvidia0": "",
    "/dev/nvidiactl": "",
    "/proc/driver/nvidia/params": "RmProfilingAdminOnly: 0\n",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n",
}


class Lab:
    """Builds machines in a folder."""

    def __init__(self, root):
        self.root = root
        self.driver = PretendDriver()

    def lay_out(self, files):
        for name, text in files.items():
            path = self.root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def bare(self, files=None, *, environ=None, **answers):
        self.lay_out({**BARE, **(files or {})})
        machine = Machine(self.root, {"PATH": str(self.root / "usr/bin"), **(environ or {})})
        given = dict(torch=lambda: CPU_TORCH, driver_cuda=lambda: None, nvml=lambda: (None, nvml.NOT_INSTALLED),
                     cupti=lambda: None, free_bytes=lambda: 10**11)  # fmt: skip
        return Subject(machine, (3, 12, 4), **{**given, **answers})

    def with_gpu(self, files=None, *, environ=None, **answers):
        given = dict(torch=lambda: CUDA_TORCH, driver_cuda=lambda: (13, 0),
                     nvml=lambda: (nvml.Nvml(self.driver), None), cupti=self.cupti, probe_counters=lambda: "GH100")  # fmt: skip
        return self.bare({**WITH_GPU, **(files or {})}, environ=environ, **{**given, **answers})

    def cupti(self, name="libcupti.so.13"):
        self.lay_out({f"/env/site-packages/nvidia/cu13/lib/{name}": ""})
        return self.root / "env/site-packages/nvidia/cu13/lib" / name

    def tool(self, name, output, folder="/usr/bin"):
        """A program that prints this for `--version`."""
        self.lay_out({f"{folder}/{name}": f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n"})
        (self.root / folder.lstrip("/") / name).chmod(0o755)


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def finding(subject, id):
    return next((found for found in diagnose(subject).findings if found.id == id), None)


def able(subject):
    return {found.id: found.status for found in diagnose(subject).capabilities}


# --- whole machines ---


def test_a_good_gpu_machine_can_do_everything(lab):
    lab.tool("ncu", "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880)")
    diagnosis = diagnose(lab.with_gpu())
    assert {found.status for found in diagnosis.findings} == {"ok"}
    assert {found.id: found.status for found in diagnosis.capabilities} == dict.fromkeys(
        "estimate gpu time memory kernels counters_cupti counters_ncu".split(), "ok"
    )
    details = {found.id: found.detail for found in diagnosis.findings}
    assert details["gpu"] == "NVIDIA H200, 150 GB"
    assert details["driver"] == "580.95.05, for CUDA up to 13.0"
    assert details["torch"] == "2.11.0+cu130, for CUDA 13.0"
    assert details["cupti"] == "libcupti.so.13 in nvidia/cu13/lib"
    assert details["permission"] == "for all users"
    assert details["gpu_memory"] == "1.00 MB used, 149 GB free of 150 GB, utilisation 7%"
    assert [use.memory.free_bytes for use in diagnosis.gpus] == [150_000_000_000 - 700_000_000 - 1_000_000]
    assert details["ncu"].startswith("2025.3.1.0, ")
    assert diagnosis.versions == {
        "rooflight": diagnosis.versions["rooflight"], "python": "3.12.4", "torch": "2.11.0+cu130", "torch_cuda": "13.0",
        "driver": "580.95.05", "driver_cuda": "13.0", "nvidia_ml_py": diagnosis.versions["nvidia_ml_py"],
        "ncu": "2025.3.1.0", "nsys": None,
    }  # fmt: skip


def test_memory_of_the_machine(lab):
    subject = lab.bare({"/proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 4000000 kB\n"})
    assert finding(subject, "ram").detail == "12.3 GB used, 4.10 GB free of 16.4 GB"
    assert diagnose(subject).ram.free_bytes == 4_096_000_000


def test_a_machine_without_a_gpu_estimates_and_measures_its_processor(lab):
    subject = lab.bare()
    assert able(subject) == {
        "estimate": "ok", "gpu": "no", "time": "ok", "memory": "ok", "kernels": "no", "counters_cupti": "no",
        "counters_ncu": "no",
    }  # fmt: skip
    seen = {found.id for found in diagnose(subject).findings}
    assert seen == {
        "python",
        "torch",
        "gpu",
        "cpu",
        "ram",
        "disk",
    }  # nothing about a GPU's parts


def test_a_check_that_breaks_takes_no_other_along(lab):
    def broken():
        raise RuntimeError("something\nnobody expected")

    diagnosis = diagnose(lab.with_gpu(torch=broken, free_bytes=broken))
    found = {finding.id: finding for finding in diagnosis.findings}
    assert found["torch"].status == found["disk"].status == "no"
    assert found["disk"].detail == "could not be looked at: RuntimeError: something nobody expected"
    assert found["permission"].status == "ok" and found["cpu"].status == "ok"
    assert diagnosis.capability("estimate").status == "no"
    assert diagnosis.versions["torch"] is None


def test_identifiers_are_not_used_twice():
    assert len({check.id for check in CHECKS}) == len({check.what for check in CHECKS}) == len(CHECKS)


# --- torch ---


@pytest.mark.parametrize(("torch", "detail", "command"), [
    (InstalledTorch(None), "not installed", "pip install 'torch>=2.8'"),
    (InstalledTorch("2.11.0", error="libcudart.so.13: cannot open shared object file"), "2.11.0 cannot be imported: libcudart.so.13: cannot open shared object file", "pip install --force-reinstall torch"),
    (InstalledTorch("2.7.1+cpu"), "2.7.1+cpu: rooflight needs 2.8 or newer", "pip install --upgrade 'torch>=2.8'"),
])  # fmt: skip
def test_without_a_usable_torch_nothing_works(lab, torch, detail, command):
    subject = lab.bare(torch=lambda: torch)
    found = finding(subject, "torch")
    assert (found.status, found.detail, found.command) == ("no", detail, command)
    assert {able(subject)[id] for id in ("estimate", "time", "memory")} == {"no"}
    with pytest.raises(CapabilityMissing, match="estimate cannot be had here: torch: "):
        refuse(diagnose(subject), required=(), strict=False)


@pytest.mark.parametrize(("driver_cuda", "wheel"), [((13, 1), "cu130"), ((12, 8), "cu128"), ((12, 4), "cu126")])
def test_a_torch_for_cpus_on_a_gpu_machine(lab, driver_cuda, wheel):
    subject = lab.with_gpu(torch=lambda: CPU_TORCH, driver_cuda=lambda: driver_cuda)
    found = finding(subject, "torch")
    assert found.status == "limited" and "for CPUs only" in found.detail
    assert found.command == f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{wheel}"
    diagnosis = diagnose(subject)
    assert (diagnosis.capability("estimate").status, diagnosis.capability("gpu").status) == ("ok", "no")
    assert diagnosis.capability("counters_cupti").command == found.command


def test_versions_as_numbers():
    assert numbers("2.13.0+cpu") == (2, 13, 0) and numbers("2.9.0a0+git1234") == (2, 9, 0) and numbers("odd") == ()


# --- the GPU ---


@pytest.mark.parametrize(("files", "environ", "detail", "change"), [
    ({}, {}, "no /dev/nvidia*, no driver", "measure on a machine that has one; estimate needs none"),
    ({"/.dockerenv": ""}, {}, "none is given to this container", "docker run --gpus all ..."),
    ({"/run/.containerenv": ""}, {}, "none is given to this container", "podman run --device nvidia.com/gpu=all ..."),
    ({"/.singularity.d/runscript": ""}, {}, "none is given to this container", "apptainer exec --nv ..."),
    ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "none is given to this pod", "ask for one in the pod's resources.limits: nvidia.com/gpu: 1"),
    ({"/proc/1/cgroup": "0::/kubepods.slice/pod1\n"}, {}, "none is given to this pod", "ask for one in the pod's resources.limits: nvidia.com/gpu: 1"),
    ({"/sys/bus/pci/devices/0000:1b:00.0/vendor": "0x10de\n", "/sys/bus/pci/devices/0000:1b:00.0/class": "0x030200\n"}, {},
     "an NVIDIA GPU is on the bus, but its driver is not loaded", "sudo modprobe nvidia"),
])  # fmt: skip
def test_no_gpu(lab, files, environ, detail, change):
    found = finding(lab.bare(files, environ=environ), "gpu")
    assert (found.status, found.detail, found.command or found.remedy) == ("no", detail, change)


def test_a_network_card_of_nvidia_s_is_no_gpu(lab):
    folder = "/sys/bus/pci/devices/0000:1b:00.0"
    subject = lab.bare({f"{folder}/vendor": "0x10de\n", f"{folder}/class": "0x020000\n"})
    assert finding(subject, "gpu").detail == "no /dev/nvidia*, no driver"


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_gpu_that_is_hidden(lab, hidden):
    blind = replace(CUDA_TORCH, devices=(), cuda_error="No CUDA GPUs are available")
    subject = lab.with_gpu(environ={"CUDA_VISIBLE_DEVICES": hidden}, torch=lambda: blind)
    found = finding(subject, "gpu")
    assert found.status == "no" and found.command == "unset CUDA_VISIBLE_DEVICES"
    assert diagnose(subject).capability("gpu").command == "unset CUDA_VISIBLE_DEVICES"


def test_devices_without_the_driver_s_libraries(lab):
    found = finding(lab.with_gpu(driver_cuda=lambda: None), "gpu")
    assert found.status == "no" and "libcuda.so.1" in found.detail and "Container Toolkit" in found.remedy


def test_a_driver_too_old_for_torch(lab):
    old = replace(
        CUDA_TORCH, devices=(), cuda_error="The NVIDIA driver on your system is too old (found version 12040)."
    )
    subject = lab.with_gpu(torch=lambda: old, driver_cuda=lambda: (12, 4))
    found = finding(subject, "driver")
    assert found.status == "no" and found.detail.endswith("too old for torch's CUDA 13.0")
    assert "580 or newer" in found.remedy and found.command.endswith("/whl/cu126")
    assert diagnose(subject).capability("gpu").status == "no"
    assert finding(subject, "torch_cuda").detail == old.cuda_error


def test_any_driver_serves_the_minor_versions_of_its_cuda(lab):
    newer = replace(CUDA_TORCH, cuda="13.2")
    assert finding(lab.with_gpu(torch=lambda: newer), "driver").status == "ok"


@pytest.mark.parametrize(("capability", "works"), [((9, 0), True), ((8, 9), True), ((7, 0), False), ((10, 3), False), ((12, 1), True), ((13, 0), True)])  # fmt: skip
def test_torch_must_have_kernels_for_the_gpu(lab, capability, works):
    # sm_80 serves 8.9, its own generation; compute_120 is compiled for whatever is newer; 7.0 and 10.3 have nothing.
    other = replace(CUDA_TORCH, devices=(replace(H200, capability=capability),))
    found = finding(lab.with_gpu(torch=lambda: other), "torch_cuda")
    assert (found.status == "ok") == works
    assert works or f"sm_{capability[0]}{capability[1]}" in found.detail


def test_several_gpus(lab):
    many = replace(CUDA_TORCH, devices=(H200, H200))
    subject = lab.with_gpu(torch=lambda: many)
    assert finding(subject, "gpu").detail == "2 × NVIDIA H200, 150 GB"
    assert finding(subject, "torch_cuda").detail == "works, 2 devices"


def test_a_profiler_that_sees_no_kernels(lab):
    subject = lab.with_gpu(torch=lambda: replace(CUDA_TORCH, records_kernels=False))
    assert finding(subject, "profiler").status == able(subject)["kernels"] == "no"


@pytest.mark.parametrize(("why", "command"), [
    (nvml.NOT_INSTALLED, "pip install 'rooflight[nvidia]'"),
    ("NVML does not start: Driver/library version mismatch", "nvidia-smi"),
])  # fmt: skip
def test_without_nvml_memory_outside_torch_is_not_seen(lab, why, command):
    subject = lab.with_gpu(nvml=lambda: (None, why))
    found = finding(subject, "nvml")
    assert (found.status, found.command) == ("limited", command) and found.detail.startswith(why)
    assert able(subject)["memory"] == "limited" and able(subject)["time"] == "ok"
    assert finding(subject, "driver").detail.startswith("580.95.05")  # read from the kernel module


def test_mig(lab):
    lab.driver.mig = [1, 1]
    subject = lab.with_gpu()
    found = finding(subject, "mig")
    assert (found.status, found.command) == ("limited", "sudo nvidia-smi -i 0 -mig 0")
    assert able(subject)["counters_cupti"] == "limited"


def test_other_processes_on_the_gpu(lab):
    lab.driver.processes = [(os.getpid(), 10**9), (7001, 2 * 10**9), (7002, 10**9)]
    subject = lab.with_gpu({"/proc/7001/comm": "python3\n", "/proc/7002/comm": "vllm\n"})
    found = finding(subject, "other_processes")
    assert found.status == able(subject)["time"] == "limited"
    assert found.detail == "2 other processes are on it, with 3.00 GB (python3, vllm)"
    assert "CUDA_VISIBLE_DEVICES" in found.remedy


def test_memory_in_use_by_processes_outside_the_container(lab):
    lab.driver.used_bytes = 40_000_000_000
    found = finding(lab.with_gpu({"/.dockerenv": ""}), "other_processes")
    assert found.status == "limited"
    assert found.detail == "40.0 GB of its memory are in use by somebody who is not listed"


@pytest.mark.parametrize(("mode", "word"), [(2, "no"), (3, "limited")])
def test_compute_mode(lab, mode, word):
    lab.driver.compute_mode = mode
    subject = lab.with_gpu()
    assert finding(subject, "compute_mode").command == "sudo nvidia-smi -i 0 -c DEFAULT"
    assert finding(subject, "compute_mode").status == able(subject)["time"] == word


@pytest.mark.parametrize(("bits", "detail", "command"), [
    (0x40 | 0x8, "held down: hardware slowdown, heat (1410 of 1980 MHz)", "nvidia-smi -q -d PERFORMANCE"),
    (0x2, "held down: clocks set by hand (1410 of 1980 MHz)", "sudo nvidia-smi -i 0 -rgc"),
])  # fmt: skip
def test_clocks_that_are_held_down(lab, bits, detail, command):
    lab.driver.reasons, lab.driver.clocks = bits, {1: 1410, 2: 3201}
    subject = lab.with_gpu()
    found = finding(subject, "clocks")
    assert (found.status, found.detail, found.command) == ("limited", detail, command)
    assert able(subject)["time"] == "limited"


# --- counters ---

CLOSED = {"/proc/driver/nvidia/params": "RmProfilingAdminOnly: 1\n"}


def refused():
    raise CannotMeasure(
        "cupti-failed", "the driver keeps the counters for administrators (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)"
    )


@pytest.mark.parametrize(("files", "environ", "change"), [
    ({}, {}, "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia-profiling.conf"),
    ({"/.dockerenv": ""}, {}, "docker run --cap-add=SYS_ADMIN ..."),
    ({"/run/.containerenv": ""}, {}, "podman run --cap-add=SYS_ADMIN ..."),
    ({}, {"APPTAINER_CONTAINER": "/img.sif"}, "apptainer exec --add-caps CAP_SYS_ADMIN ..."),
    ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "add SYS_ADMIN to the container's securityContext.capabilities.add in the pod's description"),
])  # fmt: skip
def test_counters_for_administrators_only(lab, files, environ, change):
    lab.tool("ncu", "Version 2025.3.1.0")
    subject = lab.with_gpu({**CLOSED, **files}, environ=environ, probe_counters=refused)
    found = finding(subject, "permission")
    assert found.status == "no" and "RmProfilingAdminOnly: 1" in found.detail
    assert (found.command or found.remedy) == change
    by_cupti = diagnose(subject).capability("counters_cupti")
    assert by_cupti.status == able(subject)["counters_ncu"] == "no"
    assert by_cupti.detail.startswith("counters' permission: for administrators only")
    assert (by_cupti.command or by_cupti.remedy) == change
    assert finding(subject, "counters").detail.startswith("the driver keeps the counters")
    assert finding(subject, "counters").remedy == ""  # said once
    container = finding(subject, "container")
    assert (container is None) == (not files and not environ)
    assert container is None or container.status == "limited"


@pytest.mark.parametrize("bit", [ADMIN_BIT, PERFMON_BIT])
def test_an_administrator_may_count(lab, bit):
    subject = lab.with_gpu({**CLOSED, "/proc/self/status": status(bit), "/.dockerenv": ""})
    assert finding(subject, "permission").detail == "for administrators, and this is one"
    assert finding(subject, "container").status == able(subject)["counters_cupti"] == "ok"


def test_a_driver_that_does_not_tell_leaves_it_to_the_probe(lab):
    subject = lab.with_gpu({"/proc/driver/nvidia/params": "EnableMSI: 1\n"})
    assert finding(subject, "permission") is None
    assert able(subject)["counters_cupti"] == "ok"


@pytest.mark.parametrize(("cuda", "package"), [("13.0", "'nvidia-cuda-cupti==13.0.*'"), ("12.8", "'nvidia-cuda-cupti-cu12==12.8.*'")])  # fmt: skip
def test_a_missing_cupti(lab, cuda, package):
    subject = lab.with_gpu(cupti=lambda: None, torch=lambda: replace(CUDA_TORCH, cuda=cuda))
    found = finding(subject, "cupti")
    assert (found.status, found.command) == ("no", f"pip install {package}")
    assert finding(subject, "counters") is None
    assert diagnose(subject).capability("counters_cupti").command == f"pip install {package}"


def test_a_cupti_of_another_cuda(lab):
    found = finding(lab.with_gpu(cupti=lambda: lab.cupti("libcupti.so.12")), "cupti")
    assert found.status == "no" and found.detail == "libcupti.so.12 is for CUDA 12, and torch for CUDA 13"
    assert found.command == "pip install 'nvidia-cuda-cupti==13.0.*'"


def test_a_toolkit_s_cupti_is_known_by_the_names_beside_it(lab):
    path = lab.cupti("libcupti.so")
    lab.cupti("libcupti.so.2025.3.1")
    assert finding(lab.with_gpu(cupti=lambda: path), "cupti").status == "ok"
    lab.cupti("libcupti.so.12")
    assert finding(lab.with_gpu(cupti=lambda: path), "cupti").status == "no"


@pytest.mark.parametrize(("name", "command"), [
    ("nv-hostengine", "dcgmi profile --pause"), ("dcgm-exporter", "dcgmi profile --pause"), ("ncu", "kill 812"), ("nsys", "kill 812"),
])  # fmt: skip
def test_somebody_else_may_hold_the_counters(lab, name, command):
    subject = lab.with_gpu({"/proc/812/comm": f"{name}\n", "/proc/813/comm": "bash\n"})
    found = finding(subject, "holders")
    assert (found.status, found.command) == ("limited", command) and name in found.detail and "812" in found.detail
    assert able(subject)["counters_cupti"] == "limited"


def test_a_profiler_around_this_process(lab):
    found = finding(lab.with_gpu(environ={"CUDA_INJECTION64_PATH": "/opt/tool.so"}), "holders")
    assert (found.status, found.command) == ("limited", "unset CUDA_INJECTION64_PATH")


def test_a_virtual_gpu(lab):
    lab.driver.virtualization = 2
    lab.tool("ncu", "Version 2025.3.1.0")
    subject = lab.with_gpu(probe_counters=refused)
    found = finding(subject, "virtual")
    assert found.status == "no" and "enable_profiling=1" in found.remedy
    assert diagnose(subject).capability("counters_ncu").remedy == found.remedy


def test_a_gpu_passed_through_to_a_virtual_machine_is_whole(lab):
    subject = lab.with_gpu({"/proc/cpuinfo": "processor: 0\nflags\t\t: fpu hypervisor lahf_lm\n"})
    assert finding(subject, "virtual").detail == "the GPU is passed through whole"
    assert able(subject)["counters_cupti"] == "ok"


def test_windows_below(lab):
    files = {**BARE, "/proc/version": "Linux version 5.15.167.4-microsoft-standard-WSL2\n", "/dev/dxg": ""}
    subject = lab.with_gpu(files)
    found = finding(subject, "virtual")
    assert found.status == "limited" and "NVIDIA Control Panel" in found.remedy


def test_a_probe_that_fails_for_no_known_reason(lab):
    subject = lab.with_gpu(probe_counters=refused)
    by_cupti = diagnose(subject).capability("counters_cupti")
    assert by_cupti.status == "no" and "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" in by_cupti.detail


def test_a_probe_that_fails_beside_dcgm(lab):
    subject = lab.with_gpu({"/proc/812/comm": "nv-hostengine\n"}, probe_counters=refused)
    by_cupti = diagnose(subject).capability("counters_cupti")
    assert by_cupti.status == "no" and by_cupti.command == "dcgmi profile --pause"


def test_the_probe_of_this_machine_ends_in_an_answer():
    from rooflight.measurement.doctor.subject import probe_counters_here

    answer = ""
    try:
        answer = probe_counters_here()
    except CannotMeasure as error:
        answer = str(error)
    assert answer and "\n" not in answer and "Traceback" not in answer and "crashed" not in answer


def test_a_probe_that_is_refused_for_any_reason_ends_in_its_line(tmp_path, monkeypatch):
    """A counter that this GPU lacks is the wrong input to CUPTI, and no crash."""
    from rooflight.measurement.doctor.subject import probe_counters_here

    line = "GB202 has no counter 'x.sum': `ncu --query-metrics` lists its names"
    (tmp_path / "sitecustomize.py").write_text(
        "from rooflight.errors import BadInput\nfrom rooflight.measurement.cupti import ranges\n"
        f"def probe(**_):\n    raise BadInput('unknown-counter', {line!r})\nranges.probe = probe\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CannotMeasure) as refusal:
        probe_counters_here()
    assert str(refusal.value) == line


# --- tools ---


def test_ncu_that_is_not_on_the_path(lab):
    lab.tool("ncu", "", folder="/usr/local/cuda-13.0/bin")
    subject = lab.with_gpu()
    found = finding(subject, "ncu")
    assert (found.status, found.command) == ("limited", 'export PATH="/usr/local/cuda-13.0/bin:$PATH"')
    assert able(subject)["counters_ncu"] == "limited"


def test_ncu_that_is_not_there(lab):
    subject = lab.with_gpu()
    assert finding(subject, "ncu").status == able(subject)["counters_ncu"] == "no"
    assert able(subject)["counters_cupti"] == "ok"


def test_nsys_and_its_version(lab):
    lab.tool("nsys", "NVIDIA Nsight Systems version 2025.1.1.131-251135540420v0")
    assert finding(lab.bare(), "nsys").detail.startswith("2025.1.1.131-251135540420v0, ")
    assert diagnose(lab.bare()).versions["nsys"] == "2025.1.1.131-251135540420v0"


def test_a_tool_that_does_not_run(lab):
    lab.tool("ncu", "")
    (lab.root / "usr/bin/ncu").write_bytes(b"\x7fELF nonsense")
    assert finding(lab.with_gpu(), "ncu").detail.startswith("unknown version, ")


# --- the processor ---


def test_a_quota_makes_times_jump(lab):
    found = finding(lab.bare({"/sys/fs/cgroup/cpu.max": "150000 100000\n"}), "cpu")
    assert found.status == "limited" and "a quota allows 1.5" in found.detail
    assert finding(lab.bare({"/sys/fs/cgroup/cpu.max": "max 100000\n"}), "cpu").detail.endswith("8480C, 16 cores")


def test_little_disk(lab):
    subject = lab.bare(free_bytes=lambda: 300_000_000)
    assert finding(subject, "disk").status == "limited" and "TMPDIR" in finding(subject, "disk").command


# --- the command ---


@pytest.mark.parametrize(("required", "strict", "missing"), [
    ((), False, None), (("time",), False, None), (("time",), True, None),
    (("gpu",), False, "NVIDIA GPU cannot be had here"), (("time", "counters"), False, "CUPTI counters cannot be had here"),
    ((), True, "NVIDIA GPU cannot be had here"),
])  # fmt: skip
def test_exit_codes_without_a_gpu(lab, required, strict, missing):
    diagnosis = diagnose(lab.bare({"/.dockerenv": ""}))
    if missing is None:
        refuse(diagnosis, required=required, strict=strict)
        return
    with pytest.raises(CapabilityMissing) as raised:
        refuse(diagnosis, required=required, strict=strict)
    assert raised.value.exit_code == 3 and isinstance(raised.value, RooflightError)
    assert str(raised.value).startswith(missing) and "docker run --gpus all" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_limited_is_enough_unless_strict(lab):
    lab.driver.mig = [1, 1]
    diagnosis = diagnose(lab.with_gpu())
    refuse(diagnosis, required=("counters", "gpu"), strict=False)
    with pytest.raises(CapabilityMissing, match="CUPTI counters only limited here: MIG"):
        refuse(diagnosis, required=("counters",), strict=True)


def test_ncu_alone_is_enough_for_counters(lab):
    with pytest.raises(CapabilityMissing):
        refuse(diagnose(lab.with_gpu(cupti=lambda: None)), required=("counters",), strict=True)
    lab.tool("ncu", "Version 2025.3.1.0")
    refuse(diagnose(lab.with_gpu(cupti=lambda: None)), required=("counters",), strict=True)


@pytest.mark.parametrize("width", [60, 80, 150])
def test_what_is_shown_fits_the_terminal(lab, width, monkeypatch, capfd):
    monkeypatch.setenv("COLUMNS", str(width))
    lab.driver.mig, lab.driver.used_bytes = [1, 1], 40_000_000_000
    show(
        diagnose(
            lab.with_gpu({**CLOSED, "/.dockerenv": "", "/proc/812/comm": "nv-hostengine\n"}, probe_counters=refused)
        )
    )
    out, _ = capfd.readouterr()
    lines = out.splitlines()
    assert all(len(line) <= width or line.lstrip().startswith("$ ") for line in lines)
    for part in ("what can be measured here", "what was found", "to change it", "✗ no", "! limited", "✓ ok",
                 "$ dcgmi profile --pause", "$ sudo nvidia-smi -i 0 -mig 0", "rooflight "):  # fmt: skip
        assert part in out
    assert "\x1b" not in out


def test_when_all_is_well_it_says_so(lab, monkeypatch, capfd):
    monkeypatch.setenv("COLUMNS", "80")
    lab.tool("ncu", "Version 2025.3.1.0")
    show(diagnose(lab.with_gpu()))
    out, _ = capfd.readouterr()
    assert "nothing stands in the way" in out and "to change it" not in out


def test_this_machine_as_json():
    done = CliRunner().invoke(command, ["--json"], catch_exceptions=False)
    assert done.exit_code == 0
    document = json.loads(done.output)
    assert set(document) == {"capabilities", "findings", "versions", "ram", "gpus", "without_counters"}
    ram = document["ram"]
    assert ram["used_bytes"] + ram["free_bytes"] <= ram["total_bytes"]
    assert ram["total_bytes"] > 2**20
    assert document["capabilities"]["estimate"] == {
        "status": "ok", "reason": "FLOPs, bytes and memory by formula", "remedy": "", "command": "",
    }  # fmt: skip
    assert list(document["capabilities"]) == [
        "estimate", "gpu", "time", "memory", "kernels", "counters_cupti", "counters_ncu",
    ]  # fmt: skip
    for found in document["findings"]:
        assert set(found) == {"id", "what", "status", "detail", "remedy", "command"}
        assert found["status"] in ("ok", "limited", "no") and found["detail"]
        assert "could not be looked at" not in found["detail"]
    assert document["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))


def test_a_torch_that_cannot_be_imported_is_told_in_one_line():
    program = (
        "import sys; sys.modules['torch'] = None\nfrom rooflight.commands.doctor import CapabilityMissing, command\n"
        "try:\n    command(standalone_mode=False, args=[])\nexcept CapabilityMissing as error:\n    sys.exit(error.exit_code)\n"
    )
    source = ROOT / "src"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(source)})  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "cannot be imported" in done.stdout and "pip install --force-reinstall torch" in done.stdout
    assert "Traceback" not in done.stderr


def test_help_tells_the_exit_codes():
    done = CliRunner().invoke(command, ["--help"])
    assert done.exit_code == 0 and "Exit codes: 0" in done.output and "--require" in done.output


def test_importing_the_command_does_not_import_torch():
    program = "import sys, rooflight.commands.doctor, rooflight.measurement.doctor.diagnosis; assert 'torch' not in sys.modules"
    source = ROOT / "src"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(source)})  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_where_no_counter_can_be_read_doctor_offers_what_can_be_inferred(lab):
    closed = diagnose(lab.with_gpu(CLOSED, probe_counters=refused))
    assert closed.capability("kernels").status == "ok"
    assert "infers executed FLOPs" in without_counters(closed) and INFERRED_ERRORS.text in without_counters(closed)
    assert without_counters(diagnose(lab.bare())) == ""
