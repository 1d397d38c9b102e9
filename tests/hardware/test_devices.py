"""The device database: every value has a source and can be real, every mistake in a file is one clear line."""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
from functools import partial

import devices_report as report
import msgspec
import pytest

import rooflight
from rooflight.errors import BadInput
from rooflight.hardware import devices
from rooflight.hardware.calibration import FORMAT_VERSION, Calibration, own_path
from rooflight.hardware.device import Device, Figure, checked, figures, parse, read
from rooflight.hardware.devices import _key, find, known, names, recognise_name
from rooflight.hardware.plausible import LANES, TENSOR_FLOPS_A_CYCLE
from rooflight.hardware.recorded_tables import encode
from rooflight.ledger import Value
from rooflight.machine import Machine, nvml
from rooflight.machine.recognise import UNKNOWN_BANDWIDTH, this_device
from rooflight.reporting.sections import device_tables
from tests.fixtures.notes import note_texts
from tests.fixtures.paths import ROOT
from tests.fixtures.pretend_driver import PretendDriver

SPECS = ROOT / "src" / "rooflight" / "hardware" / "specs"
DEVICES = {device.name: device for device in known()}
EVERY = pytest.mark.parametrize("name", list(DEVICES))


def near(value, rel=1e-3):
    return pytest.approx(value, rel=rel)


def tera(name, table, precision):
    return getattr(DEVICES[name], table)[precision].value / 1e12


# --- what is in the database ---


def test_the_devices_that_were_asked_for_are_there():
    wanted = """k80 k80-board p100-sxm2 p100-pcie v100-sxm2-16 v100-sxm2-32 v100-pcie-16 t4 rtx-3090 rtx-4090 a10 l4 l40s
        a100-sxm-40 a100-sxm-80 a100-pcie-40 a100-pcie-80 h100-sxm h100-pcie h100-nvl h200 gh200 b200 mi250x mi250x-board
        mi300x k20x titan-x-maxwell epyc-9654 xeon-8480 rtx-5090 rtx-5080 rtx-5070 rtx-pro-6000 rtx-4080 rtx-4070 rtx-4060-ti
        rtx-3090-ti rtx-3080 rtx-3070 rtx-3060 rtx-2080-ti gtx-1080-ti titan-v quadro-rtx-8000 rtx-a5000 rtx-6000-ada a10g
        a30 l20 l40 h20 gb200 b300 p4 mi100 mi210 mi325x mi355x m3 m3-max m4 m4-max gtx-1660-ti rtx-2060 rtx-2070 rtx-2080
        titan-rtx rtx-3060-ti rtx-3070-ti rtx-3080-12 rtx-3080-ti rtx-a4000 a2 a16 rtx-4060 rtx-4070-super rtx-4070-ti
        rtx-4070-ti-super rtx-4080-super rtx-4000-ada rtx-5000-ada rtx-5060-ti rtx-5070-ti""".split()
    assert set(wanted) <= set(names())
    assert len(names()) == len(set(names())) == len(list(SPECS.glob("*.toml")))


@EVERY
def test_every_value_has_a_source_and_a_date(name):
    device = DEVICES[name]
    assert len(figures(device)) >= 7
    for key, figure in figures(device):
        assert figure.value > 0, key
        assert len(figure.source) > 20, key
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", figure.date), key
        # A datasheet was not at hand: whoever names one must say who quotes it.
        if "datasheet" in figure.source and "from general knowledge" not in figure.source:
            assert "as quoted" in figure.source, key
    assert checked(device, name) is device


@EVERY
def test_a_file_has_the_name_of_its_device(name):
    assert read(SPECS / f"{name}.toml").name == name
    device = DEVICES[name]
    assert device.title.startswith(device.vendor)
    if device.vendor != "Apple":  # which publishes neither, and whose GPUs are no cards
        assert device.l2_bytes is not None and device.tdp_w is not None and "pcie" in device.links_bytes_per_s
    if device.capability is not None and device.capability < 100:
        assert device.base_clock_hz is not None or name == "h20"


def test_no_two_devices_share_a_spelling():
    spelled: dict[object, str] = {}
    for device in known():
        for text in (device.name, *device.aliases, *device.recognised_as):
            assert spelled.setdefault(_key(text), device.name) == device.name, text
    assert all(spelled)
    aliases = [alias for device in known() for alias in (device.name, *device.aliases)]
    reported = [name for device in known() for name in device.recognised_as]
    assert len(set(aliases)) == len(aliases)
    assert len(set(reported)) == len(reported)


HALF_RATE = {"a10g", "l20", "l40"} | {
    name for name, device in DEVICES.items() if "GeForce" in device.title and device.capability in (75, 86, 89, 120)
}
"""Boards that do half of their fp16 peak when they add up in fp32."""
CAPPED = {"h20"}
"""Boards whose tensor cores are held below what they could do."""
WITHOUT_TENSOR_CORES = {"gtx-1660-ti"}
"""Boards that have none, unlike the others of their compute capability."""
FP64_LANES = {35: 64, 37: 64, 52: 4, 60: 32, 61: 4, 70: 32, 75: 2, 80: 32, 86: 2, 89: 2, 90: 64, 100: 64, 120: 2}
"""Of one multiprocessor: the same table of the CUDA C++ Programming Guide as `LANES`."""


@EVERY
def test_peaks_follow_from_units_and_clock(name):
    """fp32 = SMs x lanes x 2 x clock, and tensor cores do their rate, or half of it on boards for games."""
    device = DEVICES[name]
    cycles = device.sms.value * device.clock_hz.value
    if device.capability is not None:
        assert device.core_flops_per_s["fp32"].value == near(cycles * LANES[device.capability] * 2, rel=0.03)
    if device.capability in FP64_LANES and name not in CAPPED and "fp64" in device.core_flops_per_s:
        expected = cycles * FP64_LANES[device.capability] * 2
        assert device.core_flops_per_s["fp64"].value == near(expected, rel=0.03)
    if device.capability in TENSOR_FLOPS_A_CYCLE and name not in CAPPED | WITHOUT_TENSOR_CORES:
        share = device.tensor_flops_per_s["fp16"].value / (cycles * TENSOR_FLOPS_A_CYCLE[device.capability])
        whole = 0.5 if name in HALF_RATE else 1.0
        assert 0.86 * whole < share < 1.01 * whole


@EVERY
def test_tensor_peaks_go_together(name):
    """TF32 is half of 16 bit, fp8 twice; int8 too, of the rate that boards for games have without fp32 accumulation."""
    device = DEVICES[name]
    half = device.tensor_flops_per_s.get("bf16") or device.tensor_flops_per_s.get("fp16")
    if half is None or name in ("mi100", "mi210", "mi250x", "mi250x-board"):  # their int8 and bf16 go otherwise
        return
    ratios = {key: figure.value / half.value for key, figure in device.tensor_flops_per_s.items()}
    expected = {"tf32": 0.5, "fp16": 1, "fp8": 2, "int8": 4 if name in HALF_RATE else 2}
    for precision, ratio in ratios.items():
        if precision in expected and (name, precision) != ("b300", "int8"):  # which nearly gave int8 up
            assert ratio == near(expected[precision], rel=0.02), precision


@EVERY
def test_ridge_points_are_those_of_real_chips(name):
    device = DEVICES[name]
    assert 5 < device_tables.ridge(device, device.core_peak("fp32")) < 115
    half = device.peak("fp16") or device.peak("bf16")
    if half is not None:
        assert 25 < device_tables.ridge(device, half) < 720 or device.vendor == "Apple" or name == "h20"


@EVERY
def test_power_and_caches_are_those_of_real_chips(name):
    device = DEVICES[name]
    if device.tdp_w is not None and device.kind == "gpu":
        per_watt = device.core_flops_per_s["fp32"].value / device.tdp_w.value
        assert 1e10 < per_watt < 5e11
        assert 60 <= device.tdp_w.value / max(1, device.name.count("board") * 2) <= 1400
    if device.l2_bytes is not None and device.kind == "gpu":
        assert 2**19 < device.l2_bytes.value < 2**28


@pytest.mark.parametrize(("name", "table", "precision", "value"), [
    ("k80", "core_flops_per_s", "fp32", 13 * 192 * 2 * 875e6 / 1e12),
    ("k80", "core_flops_per_s", "fp64", 13 * 64 * 2 * 875e6 / 1e12),
    ("v100-sxm2-16", "core_flops_per_s", "fp32", 15.7),
    ("v100-sxm2-16", "tensor_flops_per_s", "fp16", 125),
    ("a100-sxm-40", "tensor_flops_per_s", "tf32", 156),
    ("a100-sxm-80", "tensor_flops_per_s", "fp64", 19.5),
    ("rtx-3090", "tensor_flops_per_s", "fp16", 71),
    ("rtx-4090", "tensor_flops_per_s", "fp16", 165.2),
    ("h200", "core_flops_per_s", "fp32", 67),
    ("h200", "tensor_flops_per_s", "bf16", 989),
    ("b200", "tensor_flops_per_s", "fp8", 4500),
    ("mi250x", "tensor_flops_per_s", "fp16", 383 / 2),
    ("mi300x", "tensor_flops_per_s", "tf32", 653.7),
    ("rtx-5090", "tensor_flops_per_s", "bf16", 209.5),
    ("rtx-pro-6000", "tensor_flops_per_s", "bf16", 503.8),
    ("rtx-2080-ti", "tensor_flops_per_s", "fp16", 53.8),
    ("a10g", "tensor_flops_per_s", "fp16", 70),
    ("h20", "tensor_flops_per_s", "bf16", 148),
    ("gb200", "tensor_flops_per_s", "bf16", 2500),
    ("b300", "tensor_flops_per_s", "fp8", 4500),
    ("mi355x", "tensor_flops_per_s", "fp16", 2516.6),
    ("m4-max", "core_flops_per_s", "fp32", 40 * 128 * 2 * 1678e6 / 1e12),
    ("gtx-1660-ti", "core_flops_per_s", "fp16", 24 * 128 * 2 * 1770e6 / 1e12),
    ("rtx-2080", "tensor_flops_per_s", "fp16", 40.3),
    ("titan-rtx", "tensor_flops_per_s", "fp16", 130.5),
    ("rtx-3080-ti", "core_flops_per_s", "fp32", 34.1),
    ("rtx-a4000", "tensor_flops_per_s", "fp16", 153.4 / 2),
    ("a2", "tensor_flops_per_s", "int8", 36.25),
    ("a16", "tensor_flops_per_s", "bf16", 17.97),
    ("rtx-4070-ti-super", "core_flops_per_s", "fp32", 44.1),
    ("rtx-4080-super", "tensor_flops_per_s", "int8", 836 / 2),
    ("rtx-5000-ada", "tensor_flops_per_s", "fp8", 1044.4 / 2),
    ("rtx-5070-ti", "core_flops_per_s", "fp32", 43.94),
])  # fmt: skip
def test_known_peaks(name, table, precision, value):
    assert tera(name, table, precision) == near(value)


def test_known_bandwidths_sizes_and_links():
    def value(name, field):
        return getattr(DEVICES[name], field).value

    assert value("v100-sxm2-16", "bandwidth_bytes_per_s") == 900e9
    assert value("a100-sxm-40", "bandwidth_bytes_per_s") == 1555e9
    assert value("h200", "memory_bytes") == 141 * 2**30
    # The roof of memory is HBM; NVLink is a link, counted in one direction.
    links = {name: DEVICES[name].links_bytes_per_s["nvlink"].value for name in ("v100-sxm2-16", "a100-sxm-80", "h200")}
    assert links == {"v100-sxm2-16": 150e9, "a100-sxm-80": 300e9, "h200": 450e9}
    assert [DEVICES[name].links_bytes_per_s["pcie"].value for name in ("t4", "a10", "h200")] == [15.75e9, 31.5e9, 63e9]


def test_ridge_points_of_the_founding_documents():
    ridges = {name: device_tables.ridge(DEVICES[name], DEVICES[name].core_peak("fp32")) for name in DEVICES}
    assert (round(ridges["v100-sxm2-16"], 2), round(ridges["a100-sxm-40"], 2)) == (17.44, 12.54)


@pytest.mark.parametrize(("die", "board"), [("k80", "k80-board"), ("mi250x", "mi250x-board")])
def test_a_board_is_two_dies(die, board):
    ones, twos = dict(figures(DEVICES[die])), dict(figures(DEVICES[board]))
    for key in ones:
        times = 1 if "clock" in key or key.endswith("pcie") else 0.5 if key == "gpus_per_node" else 2
        assert twos[key].value == near(times * ones[key].value, rel=0.002), key


# --- what a device says ---


def test_matrix_work_runs_on_tensor_cores_where_they_have_the_precision():
    v100, h200, k80, mi250x = (DEVICES[name] for name in ("v100-sxm2-16", "h200", "k80", "mi250x"))
    assert h200.peak("fp64").value == 67e12 and h200.core_peak("fp64").value == 33.5e12
    assert v100.peak("fp32").value == 15.7e12  # on CUDA cores
    assert v100.peak("tf32") == v100.peak("fp32")  # it has no TF32
    assert v100.peak("bf16") is None and k80.peak("fp16") is None and h200.peak("int4") is None
    assert mi250x.peak("fp32") == mi250x.tensor_flops_per_s["fp32"]  # AMD's matrix cores do full fp32
    assert mi250x.peak("tf32") == mi250x.peak("fp32")


# --- finding ---


@pytest.mark.parametrize(("text", "name"), [
    ("h200", "h200"), ("H200", "h200"), ("NVIDIA H200", "h200"), ("a100", "a100-sxm-80"), ("A100_SXM 40", "a100-sxm-40"),
    ("v100", "v100-sxm2-16"), ("h100", "h100-sxm"), ("Tesla K80", "k80"), ("NVIDIA A100-SXM4-40GB", "a100-sxm-40"),
    ("rtx 4090", "rtx-4090"), ("Intel(R) Xeon(R) Platinum 8480+", "xeon-8480"), ("titan x", "titan-x-maxwell"),
    ("AMD Instinct MI300X", "mi300x"), ("rtx4090", "rtx-4090"), ("RTX_4090", "rtx-4090"), ("4090", "rtx-4090"),
    ("A100-40GB", "a100-sxm-40"), ("a100 80gb", "a100-sxm-80"), ("A100-SXM4-80GB", "a100-sxm-80"), ("a100 40g", "a100-sxm-40"),
    ("A100 40GB PCIe", "a100-pcie-40"), ("NVIDIA GeForce RTX 3090", "rtx-3090"), ("h100-80gb", "h100-sxm"),
    ("v100-32gb", "v100-sxm2-32"), ("Tesla V100", "v100-sxm2-16"), ("RTX PRO 6000", "rtx-pro-6000"),
    ("2080ti", "rtx-2080-ti"), ("RTX 2080 Ti", "rtx-2080-ti"), ("gtx1080ti", "gtx-1080-ti"), ("m3 max", "m3-max"),
    ("Apple M4 Max GPU", "m4-max"), ("a10g", "a10g"), ("A10", "a10"), ("l40", "l40"), ("L40S", "l40s"), ("a6000", "rtx-a6000"),
    ("rtx6000ada", "rtx-6000-ada"), ("GB200 NVL72", "gb200"), ("H100 PCIe", "h100-pcie"), ("  H200  ", "h200"),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super"), ("rtx4070tisuper", "rtx-4070-ti-super"),
    ("4070 ti super", "rtx-4070-ti-super"), ("RTX 4070 Ti", "rtx-4070-ti"), ("4070super", "rtx-4070-super"), ("3090ti", "rtx-3090-ti"),
    ("Tesla V100-SXM2-16GB", "v100-sxm2-16"), ("A100 80GB PCIe", "a100-pcie-80"), ("NVIDIA A100-PCIE-40GB", "a100-pcie-40"),
    ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"), ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("NVIDIA GH200 480GB", "gh200"),
    ("Tesla T4", "t4"), ("NVIDIA A10G", "a10g"), ("TITAN RTX", "titan-rtx"), ("titanrtx", "titan-rtx"), ("rtxa4000", "rtx-a4000"),
    ("RTX 4000 Ada", "rtx-4000-ada"), ("1660ti", "gtx-1660-ti"), ("GeForce GTX TITAN X", "titan-x-maxwell"),
    # with the size of the memory
    ("RTX 4090 24GB", "rtx-4090"), ("NVIDIA GeForce RTX 4090 24 GB", "rtx-4090"), ("A100 80 GB PCIe", "a100-pcie-80"),
    ("H100 80GB PCIe", "h100-pcie"), ("Titan RTX 24GB", "titan-rtx"), ("RTX 3080 10GB", "rtx-3080"), ("rtx3080-12gb", "rtx-3080-12"),
])  # fmt: skip
def test_devices_are_found_by_any_spelling(text, name):
    assert find(text).name == name


@pytest.mark.parametrize(
    "text",
    [
        # of laptops
        "NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Mobile", "GeForce RTX 2080 with Max-Q Design", "NVIDIA RTX A4000 Laptop GPU",
        # another generation, or another chip, of that number
        "Quadro RTX 6000", "RTX 6000", "Quadro RTX 4000", "RTX 4000 SFF Ada Generation", "NVIDIA RTX PRO 4000 Blackwell", "RTX 2080 SUPER",
        "NVIDIA GeForce RTX 4090 D", "GTX 1660", "GTX 1660 SUPER", "V100S-PCIE-32GB", "A100X", "A800 80GB", "GTX TITAN", "titan",
        "TITAN Xp",
        # other memory
        "RTX 4060 Ti 16GB", "RTX 5060 Ti 8GB", "RTX 2060 12GB", "RTX 3060 8GB", "H20 141GB", "P100 12GB", "A16 64GB",
        # another maker's, and parts of one
        "Tesla M4", "Apple A16", "AMD A100", "NVIDIA A16-16Q", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "nvidia", "rtx",
    ],
)  # fmt: skip
def test_a_name_never_finds_another_board(text):
    with pytest.raises(BadInput, match="there is no device"):
        find(text)
    assert recognise_name(text) is None


@EVERY
def test_every_spelling_finds_its_device(name):
    for text in (name, *DEVICES[name].aliases, *DEVICES[name].recognised_as):
        assert find(text).name == name
    for text in DEVICES[name].recognised_as:
        assert recognise_name(text).name == name


def test_only_the_whole_name_is_recognised():
    assert recognise_name("NVIDIA H200").name == "h200"
    assert recognise_name("NVIDIA H200 NVL").name == "h200-nvl"
    for other in ("NVIDIA H20 NVL", "H200", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "AMD Instinct MI250X/MI250", "", None):
        assert recognise_name(other) is None


@pytest.mark.parametrize(("text", "near_name"), [
    ("h2000", "h200"), ("a1000", "a100"), ("rtx4091", "rtx-4090"), ("NVIDIA GeForce RTX 4090 D", "rtx-4090"),
])  # fmt: skip
def test_a_typo_is_answered_with_near_names(text, near_name):
    with pytest.raises(BadInput) as caught:
        find(text)
    message = str(caught.value)
    assert f"there is no device '{text}': did you mean" in message and near_name in message
    assert "rooflight list devices" in message and "\n" not in message
    assert "a .toml file describes another, or a few numbers: memory=24GB,bandwidth=" in message


def test_a_name_like_no_other_is_answered_with_the_list():
    with pytest.raises(BadInput, match=r"there is no device 'zzzz': `rooflight list devices` shows all"):
        find("zzzz")


# --- a user's file, and what can be wrong with it ---

GOOD = {
    "name": "mine",
    "title": "Mine",
    "kind": "gpu",
    "vendor": "NVIDIA",
    "capability": 90,
    "memory_bytes": 85_899_345_920,
    "bandwidth_bytes_per_s": 3.35e12,
    "sms": 132,
    "clock_hz": 1.98e9,
    "core_flops_per_s": {"fp32": 67e12},
    "tensor_flops_per_s": {"bf16": 989e12},
}


def toml(changes=(), **replaced):
    """The file of `GOOD`, every number with a source; `changes` are done to the text."""
    lines, tables = [], []
    for key, value in (GOOD | replaced).items():
        if isinstance(value, dict):
            tables += [f"[{key}]", *(f"{name} = {figure(number)}" for name, number in value.items())]
        elif isinstance(value, (int, float)) and key != "capability":
            lines.append(f"{key} = {figure(value)}")
        elif value is not None:
            lines.append(f"{key} = {json.dumps(value)}")
    text = "\n".join([*lines, *tables]) + "\n"
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def figure(value):
    return f'{{ value = {value}, source = "a datasheet", date = "2026-11-15" }}'


def test_a_users_file_is_read(tmp_path):
    path = tmp_path / "mydevice.toml"
    path.write_text(toml())
    device = find(str(path))
    assert (device.name, device.peak("bf16").value, device.links_bytes_per_s) == ("mine", 989e12, {})


LONG = "is not TOML: a whole number has more than 64 bits"
BAD = [
    # units
    (toml(bandwidth_bytes_per_s=3350), ["bandwidth_bytes_per_s = 3350", "given in GB/s? write 3.35e+12"]),
    (toml(bandwidth_bytes_per_s=3.35), ["bandwidth_bytes_per_s = 3.35", "given in TB/s? write 3.35e+12"]),
    (toml(bandwidth_bytes_per_s=3.35e9), ["bandwidth_bytes_per_s = 3.35e+09", "too small by 1000? write 3.35e+12"]),
    (toml(bandwidth_bytes_per_s=3.35e15), ["bandwidth_bytes_per_s = 3.35e+15", "too large by 1000? write 3.35e+12"]),
    (toml(bandwidth_bytes_per_s=8e9), ["ridge point", "8.38e+03 FLOP/byte (1 to 3000 is plausible)", "write 8e+12"]),
    (toml(memory_bytes=80), ["memory_bytes = 80", "1e+09 to 2e+12", "given in GB? write 8.58993e+10"]),
    (toml(memory_bytes=81559), ["memory_bytes = 81559", "given in MB? write 8.55208e+10"]),
    (toml(clock_hz=1980), ["clock_hz = 1980", "given in MHz? write 1.98e+09"]),
    (toml(clock_hz=1.98), ["clock_hz = 1.98", "given in GHz? write 1.98e+09"]),
    (toml(core_flops_per_s={"fp32": 67}), ["core_flops_per_s.fp32 = 67 does not fit", "given in TFLOP/s? write 6.7e+13"]),
    (toml(core_flops_per_s={"fp32": 67e15}), ["sms x 128 lanes x 2 x clock_hz = 6.69082e+13", "one of the three is wrong"]),
    (toml(capability=None, core_flops_per_s={"fp32": 67}), ["FLOP a cycle for each of 132 sms", "given in TFLOP/s?"]),
    (toml(tensor_flops_per_s={"bf16": 989}), ["tensor_flops_per_s.bf16 = 989 is", "in another unit?"]),
    (toml(links_bytes_per_s={"nvlink": 450}), ["links_bytes_per_s.nvlink = 450", "given in GB/s? write 4.5e+11"]),
    (toml(l2_bytes=50), ["l2_bytes = 50 is not plausible", "given in MB? write 5.24288e+07"]),
    (toml(tdp_w=700_000), ["tdp_w = 700000 is not plausible (2 to 5000)"]),
    # what cannot be
    (toml(bandwidth_bytes_per_s=-3.35e12), ["bandwidth_bytes_per_s = -3.35e+12 is not a positive number"]),
    (toml(sms=0), ["sms = 0 is not a positive number"]),
    (toml(memory_bytes="inf").replace('"inf"', figure("inf")), ["memory_bytes = inf is not a positive number"]),
    (toml(base_clock_hz=2.1e9), ["base_clock_hz = 2.1e+09 is above clock_hz = 1.98e+09"]),
    (toml(l2_bytes=1.9e9, memory_bytes=1e10), ["l2_bytes = 1.9e+09 is more than a tenth of memory_bytes"]),
    (toml(core_flops_per_s={"fp32": 67e12, "fp64": 670e12}), ["core_flops_per_s.fp64 = 6.7e+14 is 10 times the fp32 peak"]),
    # sparsity
    (toml(tensor_flops_per_s={"bf16": 1979e12}), ["is more than its tensor cores do", "with sparsity? write the dense peak, 9.895e+14"]),
    (toml(tensor_flops_per_s={"tf32": 989e12}), ["tensor_flops_per_s.tf32 = 9.89e+14", "write the dense peak, 4.945e+14"]),
    (toml(capability=None, tensor_flops_per_s={"bf16": 4000e12}), ["59.7 times the fp32 peak of the cores (0.9 to 40", "with sparsity"]),
    # keys
    (toml(capability=None, kind=None), ["kind is missing"]),
    (toml(core_flops_per_s={"bf16": 1e12}), ["core_flops_per_s.fp32 is missing: every device has a peak in fp32"]),
    (toml([('source = "a datasheet", ', "")]), ["memory_bytes: source is missing: every value is a table"]),
    (toml([(', date = "2026-11-15"', "")]), ["memory_bytes: date is missing"]),
    (toml([("value = 85899345920, ", "")]), ["memory_bytes: value is missing"]),
    (toml([('"a datasheet"', '" "')]), ["memory_bytes has no source: say where"]),
    (toml([("2026-11-15", "15.11.2026")]), ["memory_bytes has the date '15.11.2026': write the day it was read as 2026-11-15"]),
    (toml([("2026-11-15", "2026-13-45")]), ["memory_bytes has the date '2026-13-45'"]),
    (toml([(figure(132), "132")]), ["sms stands alone: every value is a table { value = ..., source"]),
    (toml([("value = 132,", 'value = "132",')]), ["sms.value: write a number in SI units, without quotes and without its unit: 864e9"]),
    (toml([("bandwidth_bytes_per_s", "bandwith_bytes_per_s")]), ["bandwith_bytes_per_s is no known key: did you mean bandwidth_bytes_per_s?"]),
    (toml(colour="green"), ["colour is no known key: it takes name, title"]),
    (toml([("date", "day")]), ["memory_bytes: day is no known key"]),
    (toml(tensor_flops_per_s={"bf17": 1e12}), ["tensor_flops_per_s.bf17 is no known key: it takes fp64, fp32, tf32"]),
    (toml(links_bytes_per_s={"nvlnk": 1e12}), ["links_bytes_per_s.nvlnk is no known key: it takes nvlink"]),
    (toml(kind="tpu"), ["kind: 'tpu' is none: write 'gpu' or 'cpu'"]),
    (toml(name=" "), ["name is empty"]),
    (toml(core_flops_per_s=None), ["core_flops_per_s is missing: no device is known without it"]),
    # not such a file
    ("name = h200", ["is not TOML: Invalid value"]),
    ('{"name": "h200"}', ["is not TOML"]),
    ("", ["name is missing: no device is known without it"]),
    # numbers and arrays that nothing real has
    (toml([("value = 132,", f"value = {'9' * 400},")]), [LONG]),
    (toml([("value = 132,", f"value = {'9' * 5000},")]), [LONG]),
    (toml([("capability = 90", f"capability = {'9' * 400}")]), [LONG]),
    (f"aliases = {'[' * 5000}{']' * 5000}", ["is not TOML: arrays or tables lie inside one another without end"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), BAD, ids=[words[0][:40] for _, words in BAD])
def test_a_mistake_in_a_file_is_one_clear_line(tmp_path, text, words):
    path = tmp_path / "mydevice.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        find(str(path))
    message = str(caught.value)
    assert message.startswith(f"{path}")
    assert "\n" not in message and len(message) < 450
    for word in words:
        assert word in message


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(
        BadInput, match=r"nosuch\.toml does not exist: give .*, or name a device of `rooflight list devices`"
    ):
        find(str(tmp_path / "nosuch.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(BadInput, match=r"folder\.toml is a folder, not a device"):
        find(str(tmp_path / "folder.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(BadInput, match=r"binary\.toml is not TOML"):
        find(str(tmp_path / "binary.toml"))


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(BadInput, match=r"pipe\.toml is no regular file, so it is no device"):
        find(str(tmp_path / "pipe.toml"))


def changed(device: Device, key: str, factor: float) -> Device:
    table, _, name = key.partition(".")
    held = getattr(device, table)
    if not name:
        return msgspec.structs.replace(device, **{table: msgspec.structs.replace(held, value=held.value * factor)})
    new = {**held, name: msgspec.structs.replace(held[name], value=held[name].value * factor)}
    return msgspec.structs.replace(device, **{table: new})


@EVERY
@pytest.mark.parametrize("factor", [1000, 1 / 1000])
def test_a_factor_of_1000_is_caught_in_every_value(name, factor):
    device = DEVICES[name]
    for key, _ in figures(device):
        if key in ("l2_bytes", "gpus_per_node"):  # caches, and the nodes of a K20X and an NVL72, lie that far apart
            continue
        with pytest.raises(BadInput) as caught:
            checked(changed(device, key, factor), "mydevice.toml")
        assert "\n" not in str(caught.value), key


@pytest.mark.parametrize(
    "name",
    "v100-sxm2-16 t4 a10 a40 a100-sxm-80 l4 l40s h100-sxm h100-pcie h100-nvl h200 gh200 b200 rtx-a5000 rtx-pro-6000 gb200 b300".split(),
)
def test_a_sparse_peak_is_caught(name):
    for precision in ("fp16", "bf16", "tf32"):
        if precision in DEVICES[name].tensor_flops_per_s:
            with pytest.raises(BadInput, match="with sparsity"):
                checked(changed(DEVICES[name], f"tensor_flops_per_s.{precision}", 2), "mydevice.toml")


def test_figures_names_every_value_once():
    keys = [key for key, _ in figures(DEVICES["h200"])]
    assert len(set(keys)) == len(keys)
    assert {"core_flops_per_s.fp32", "memory_bytes", "links_bytes_per_s.nvlink"} <= set(keys)


# --- the device in this machine ---


def cpuinfo(name, cores, flags, vendor="GenuineIntel", threads=1, mhz=None, family=6):
    blocks = []
    for number in range(cores * threads):
        lines = [f"processor\t: {number}", f"vendor_id\t: {vendor}", f"cpu family\t: {family}", f"model name\t: {name}",
                 "physical id\t: 0", f"core id\t\t: {number % cores}", f"flags\t\t: fpu {flags}"]  # fmt: skip
        blocks.append("\n".join(lines + ([f"cpu MHz\t\t: {mhz}"] if mhz else [])))
    return "\n\n".join(blocks) + "\n"


def laid_out(root, files):
    for name, text in {"/proc/meminfo": "MemTotal:       65536000 kB\n", **files}.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root=root)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(nvml, "connect", lambda: None)


def test_an_unknown_processor_is_made_from_what_linux_tells(tmp_path, no_gpu):
    flags = "avx avx2 fma avx512f avx512_fp16 amx_bf16 amx_int8"
    machine = laid_out(tmp_path, {
        "/proc/cpuinfo": cpuinfo("Intel(R) Xeon(R) Gold 6430 CPU @ 2.10GHz", 8, flags, threads=2, mhz=2100.5),
        "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3400000\n",
        "/sys/devices/system/cpu/cpu0/cache/index0/size": "48K\n",
        "/sys/devices/system/cpu/cpu0/cache/index3/size": "61440K\n",
    })  # fmt: skip
    found = this_device(machine=machine)
    assert (found.kind, found.origin, found.device, found.lacks) == ("cpu", "/proc/cpuinfo", None, UNKNOWN_BANDWIDTH)
    made = found.outline.with_bandwidth(Figure(200e9, "copy, measured", "2026-11-15"))
    # 8 cores (16 threads), two units of 16 lanes, a multiply-add as 2, at 3.4 GHz.
    assert made.core_flops_per_s["fp32"].value == near(8 * 64 * 3.4e9)
    assert made.core_flops_per_s["fp64"].value == near(8 * 32 * 3.4e9)
    assert made.core_flops_per_s["fp16"].value == near(8 * 128 * 3.4e9)
    assert made.peak("bf16").value == near(8 * 1024 * 3.4e9)
    assert (
        "computed from /proc/cpuinfo: 8 cores x 64 FLOP a cycle (two AVX-512 FMA units)"
        in made.core_peak("fp32").source
    )
    assert (made.memory_bytes.value, made.l2_bytes.value) == (65536000 * 1024, 60 * 2**20)
    assert (made.name, made.kind, made.bandwidth_bytes_per_s.value) == ("cpu-intel-xeon-gold-6430-cpu", "cpu", 200e9)
    assert checked(made, "made") is made


@pytest.mark.parametrize(("info", "flops_a_cycle"), [
    (cpuinfo("AMD EPYC 7763 64-Core Processor", 4, "avx avx2 fma", "AuthenticAMD", mhz=2000, family=25), 32),
    (cpuinfo("AMD EPYC 9354", 4, "avx avx2 fma avx512f", "AuthenticAMD", mhz=2000, family=25), 32),
    (cpuinfo("AMD EPYC 9755", 4, "avx avx2 fma avx512f", "AuthenticAMD", mhz=2000, family=26), 64),
    (cpuinfo("11th Gen Intel(R) Core(TM) i7-1165G7", 4, "avx avx2 fma avx512f", mhz=2000), 32),
    (cpuinfo("Intel(R) Xeon(R) CPU E5-2650", 4, "avx", mhz=2000), 16),
    (cpuinfo("Pentium", 4, "sse2", mhz=2000), 8),
    ("".join(f"processor\t: {n}\nFeatures\t: fp asimd\nCPU part\t: 0xd4f\n\n" for n in range(4)), 32),
])  # fmt: skip
def test_the_width_of_vector_units(tmp_path, no_gpu, info, flops_a_cycle):
    files = {"/proc/cpuinfo": info, "/proc/device-tree/model": "Neoverse\n"}
    files["/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"] = "2000000\n"
    outline = this_device(machine=laid_out(tmp_path, files)).outline
    assert outline.core_flops_per_s["fp32"].value == near(4 * flops_a_cycle * 2e9)


def test_a_known_processor_is_known_only_as_a_whole(tmp_path, no_gpu):
    name = "AMD EPYC 9654 96-Core Processor"
    flags = "avx avx2 fma avx512f"
    whole = laid_out(tmp_path / "whole", {"/proc/cpuinfo": cpuinfo(name, 96, flags, "AuthenticAMD", threads=2)})
    assert this_device(machine=whole).device is DEVICES["epyc-9654"]
    info = cpuinfo(name, 8, flags, "AuthenticAMD", mhz=2400, family=25)
    part = this_device(machine=laid_out(tmp_path / "part", {"/proc/cpuinfo": info}))
    assert part.device is None and part.outline.sms.value == 8
    assert part.outline.notes[0] == "runs on a part of an AMD EPYC 9654 (96 cores)"
    assert part.outline.core_flops_per_s["fp32"].value == near(8 * 32 * 2.4e9)


def test_a_control_group_leaves_less(tmp_path, no_gpu):
    machine = laid_out(tmp_path, {
        "/proc/cpuinfo": cpuinfo("Intel(R) Xeon(R) Processor", 8, "avx512f", mhz=2000),
        "/proc/self/status": "Cpus_allowed_list:\t0-3\n",
        "/proc/self/cgroup": "0::/\n",
        "/sys/fs/cgroup/cpu.max": "150000 100000\n",
        "/sys/fs/cgroup/memory.max": "8000000000\n",
    })  # fmt: skip
    outline = this_device(machine=machine).outline
    assert outline.sms.value == 1.5
    assert (outline.memory_bytes.value, outline.memory_bytes.source) == (8_000_000_000, "the control group's limit")


def test_where_nothing_is_told_nothing_is_made_up(tmp_path, no_gpu):
    assert this_device(machine=Machine(root=tmp_path)) is None
    assert this_device(kind="gpu", machine=Machine(root=tmp_path)) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Mystery\n")
    found = this_device(machine=Machine(root=tmp_path))  # neither clock nor memory
    assert (found.device, found.outline) == (None, None) and "too little" in found.lacks


def test_the_gpu_is_recognised_by_its_name(tmp_path, no_gpu):
    found = this_device("NVIDIA H200")
    assert (found.device, found.kind, found.origin, found.lacks) == (DEVICES["h200"], "gpu", "torch", None)
    other = this_device("NVIDIA H21")
    assert (
        other.device is None and "not in the database" in other.lacks and "a few numbers of it: memory=" in other.lacks
    )
    files = {"/proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 5\n"}
    found = this_device(machine=laid_out(tmp_path, files))
    assert (found.device, found.origin) == (DEVICES["h100-sxm"], "the driver's files")


def test_nvml_tells_the_gpu(monkeypatch, tmp_path):
    library, _ = nvml.start(PretendDriver())
    monkeypatch.setattr(nvml, "connect", lambda: library)
    found = this_device(machine=Machine(root=tmp_path))
    assert (found.reported, found.origin, found.device) == ("NVIDIA H200", "NVML", DEVICES["h200"])
    monkeypatch.setattr(nvml.Gpu, "mig", lambda gpu: True)
    assert this_device(machine=Machine(root=tmp_path)).device is None  # cut into slices
    laid_out(tmp_path, {"/proc/cpuinfo": cpuinfo("Intel(R) Xeon(R) Processor", 2, "avx512f", mhz=2000)})
    assert this_device(kind="cpu", machine=Machine(root=tmp_path)).kind == "cpu"


def test_this_machine_has_a_device():
    found = this_device()
    assert found is not None and (found.device or found.outline or found.lacks)


def test_no_torch_is_needed():
    code = "import sys, rooflight.machine.recognise, rooflight.hardware.devices as d; d.names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- shown ---


@pytest.fixture
def run(run):
    return partial(run, columns=150)


def test_devices_are_listed(run):
    code, out, _ = run("list", "devices")
    rows = {line.split()[0]: line for line in out.splitlines() if line.split()[:1] and line.split()[0] in DEVICES}
    assert code == 0 and list(rows) == list(DEVICES)
    assert rows["h200"].split()[1:] == "NVIDIA H200 SXM 141 GB 67 494.5 989 33.5 (67) 4,800 141 14 206".split()
    assert rows["v100-sxm2-16"].split()[-8:] == "15.7 – 125 fp16 7.8 900 16 17.4 139".split()[-8:]
    assert rows["k80"].split()[-8:] == "4.368 – – 1.456 240 12 18.2 –".split()
    assert "peaks are dense, in TFLOP/s" in out
    code, out, _ = run("list", "devices", columns="80")
    assert max(len(line) for line in out.splitlines()) <= 80 and "hidden columns: title, FP64 (tensor), 16 bit" in out


def test_devices_are_listed_for_programs(run):
    code, out, _ = run("list", "devices", "--json")
    listed = json.loads(out)
    assert code == 0 and [one["name"] for one in listed] == list(names())
    h200 = next(one for one in listed if one["name"] == "h200")
    assert h200["tensor_flops_per_s"]["bf16"]["value"] == 989e12
    assert h200["tensor_flops_per_s"]["bf16"]["source"].startswith("NVIDIA H200 product page")
    assert h200["memory_bytes"]["date"] == "2026-11-15"
    assert h200["ridge_flop_per_byte"]["core"]["fp32"] == near(67e12 / 4.8e12)
    assert h200["ridge_flop_per_byte"]["matrix"]["bf16"] == near(989e12 / 4.8e12)


def test_one_device_is_shown_with_its_sources(run, tmp_path):
    code, out, _ = run("list", "devices", "H200")
    assert code == 0 and out.startswith("NVIDIA H200 SXM 141 GB\n")
    assert re.search(r"bf16 on tensor cores\s+989 TFLOP/s\s+\d", out) and re.search(r"memory\s+141 GiB\s+\d", out)
    assert "reported as: NVIDIA H200" in out and "source 1: " in out and "note: a peak belongs to a clock" in out
    path = tmp_path / "mine.toml"
    path.write_text(toml())
    code, out, _ = run("list", "devices", str(path), "--json")
    assert code == 0 and [one["name"] for one in json.loads(out)] == ["mine"]


@EVERY
def test_every_device_can_be_shown(name):
    table, sources = device_tables.device_table(DEVICES[name])
    assert len(table.written()) == len(figures(DEVICES[name]))
    assert {row[2] for row in table.rows} == set(range(1, len(sources) + 1))
    json.dumps(device_tables.device_data(DEVICES[name]))


def test_what_predictions_call_a_device_is_shown(run, monkeypatch, tmp_path):
    """`here`, `cpu`, and the name under which `rooflight calibrate` keeps this processor."""
    calibration = Calibration(format_version=FORMAT_VERSION, rooflight="0", torch="2.13.0", device="a processor",
                              made="2026-11-15", ceilings={"copy": Value(1e10, "made up")})  # fmt: skip
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    files = {"/proc/cpuinfo": cpuinfo("Intel(R) Xeon(R) Gold 6430", 8, "avx512f", mhz=2100)}
    machine = laid_out(tmp_path / "machine", files)
    monkeypatch.setattr(
        "rooflight.prediction.resolve_devices.this_device", lambda *_, **__: this_device(kind="cpu", machine=machine)
    )
    name = "cpu-intel-xeon-gold-6430"
    code, _, err = run("list", "devices", name)
    assert code == 2 and "run `rooflight calibrate --on cpu` first" in err
    path = own_path(name)
    path.parent.mkdir(parents=True)
    path.write_bytes(encode(calibration))
    for text in ("here", "cpu", name):
        code, out, err = run("list", "devices", text, "--json")
        assert code == 0, err
        (shown,) = json.loads(out)
        assert (shown["name"], shown["bandwidth_bytes_per_s"]["value"]) == (name, 1e10)


def test_bad_words_on_the_command_line(run):
    code, _, err = run("list", "devices", "h2000")
    assert code == 2 and err.count("\n") == 1 and "did you mean h200" in err
    code, _, err = run("list", "models", "h200")
    assert code == 2 and "takes no name" in err


# --- the page ---


def test_the_page_is_what_the_files_say():
    made, page = report.page(known()), (ROOT / "docs" / "devices.md").read_text()
    differing = list(difflib.unified_diff(page.splitlines(), made.splitlines(), lineterm="", n=0))
    assert not differing, "run python benchmarks/devices_report.py"
    assert {report.kind_of(figure.source) for device in known() for _, figure in figures(device)} <= {
        *report.KINDS, report.WEAK, "computed from other values",
    }  # fmt: skip


def test_the_example_of_the_page_is_a_device():
    assert parse(report.EXAMPLE.encode(), "the example").name == "mygpu"


@pytest.mark.parametrize(
    ("text", "taken", "others"),
    [
        ("a100", "a100-sxm-80 (80 GB, 2,039 GB/s)", {"a100-pcie-40", "a100-sxm-40", "a100-pcie-80"}),
        ("V100", "v100-sxm2-16 (16 GB, 900 GB/s)", {"v100-pcie-16", "v100-pcie-32", "v100-sxm2-32"}),
        ("h100", "h100-sxm (80 GB, 3,350 GB/s)", {"h100-pcie", "h100-nvl"}),
        ("A100 80GB", "a100-sxm-80 (80 GB, 2,039 GB/s)", {"a100-pcie-80"}),
    ],
)
def test_a_name_of_several_cards_says_which_was_taken(text, taken, others):
    line = devices.card_taken(text)
    assert line.startswith(f"{text} is taken as {taken}; also ") and line.endswith(": name one")
    assert set(line.partition("; also ")[2].removesuffix(": name one").split(", ")) == others


@pytest.mark.parametrize("text", ["h200", "k80", "4090", "gh200", "memory=24GB,bandwidth=864GB/s", "mine.toml", "here"])
def test_a_name_of_one_card_says_nothing(text):
    assert devices.card_taken(text) == ""


def test_every_card_is_named_by_its_own_name():
    assert devices.cards_taken(devices.names()) == ()
    assert len(devices.cards_taken("a100,h200,a100,v100")) == 2


def test_a_prediction_says_which_card_it_is_of():
    notes = note_texts(rooflight.predict("mnist-cnn", on="a100,a100-sxm-40,h200").notes)
    assert [note for note in notes if "is taken as" in note] == [devices.card_taken("a100")]
