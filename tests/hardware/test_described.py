"""A device from a few numbers: what is given is taken, what is not is assumed and said, and mistakes are one line."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rooflight.errors import BadInput
from rooflight.hardware.described import ASSUMED, EXAMPLE, GIVEN, is_described, is_description
from rooflight.hardware.device import figures
from rooflight.hardware.devices import find, several
from rooflight.prediction.resolve_devices import devices_of, guess_notes

ALL = "sms=56,clock=2475MHz,bandwidth=504GB/s,fp32=35.5T,fp16=71T,memory=12GB,power=220W,cache=48MB,capability=89"
LEAST = "memory=12GB,bandwidth=504GB/s,fp32=35.5T"


def test_what_is_given_is_taken():
    device = find(f"{ALL},name=rtx-4075,pcie=31.5GB/s")
    assert (device.name, device.vendor, device.capability, device.kind) == ("rtx-4075", "NVIDIA", 89, "gpu")
    assert (device.sms.value, device.clock_hz.value, device.tdp_w.value) == (56, 2.475e9, 220)
    assert (device.memory_bytes.value, device.l2_bytes.value) == (12 * 2**30, 48 * 2**20)  # as data sheets mean them
    assert (device.bandwidth_bytes_per_s.value, device.links_bytes_per_s["pcie"].value) == (504e9, 31.5e9)
    assert (device.core_peak("fp32").value, device.peak("fp16").value) == (35.5e12, 71e12)
    assert device.memory_bytes.source == "given: memory=12GB" and is_described(device)


def test_what_is_not_given_is_assumed_and_said():
    device = find(ALL)
    assert device.peak("bf16").value == 71e12 and device.peak("tf32").value == 35.5e12
    (note,) = guess_notes([device, find("h200")])
    assert note.text == "described-gpu: not given, so assumed: bf16 71T (as fp16), tf32 35.5T (half of fp16)"
    kinds = {figure.source.startswith(GIVEN) or figure.source.startswith(ASSUMED) for _, figure in figures(device)}
    assert kinds == {True}


@pytest.mark.parametrize(("text", "sms", "clock"), [
    # 35.5e12 / (128 x 2 x 1.7e9) = 81.6, where nothing tells the clock
    (LEAST, 82, 1.7e9),
    (f"{LEAST},clock=2475MHz", 56, 2.475e9),
    (f"{LEAST},clock=2.475GHz,capability=8.9", 56, 2.475e9),
    (f"{LEAST},sms=56", 56, 35.5e12 / (56 * 128 * 2)),
    (f"{LEAST},sms=112,capability=80", 112, 35.5e12 / (112 * 64 * 2)),
])  # fmt: skip
def test_units_and_clock_follow_from_the_peak(text, sms, clock):
    device = find(text)
    assert (device.sms.value, device.clock_hz.value) == (sms, pytest.approx(clock))


def test_the_peak_follows_from_units_and_clock():
    device = find("memory=12GB,bandwidth=504GB/s,sms=56,clock=2475MHz,capability=89")
    assert device.core_peak("fp32").value == 56 * 128 * 2 * 2.475e9
    assert device.peak("fp16").value == 56 * 512 * 2.475e9  # with fp32 accumulation, as boards for games
    (note,) = guess_notes([device])
    assert "fp16 71T (sms x 512 x clock, as boards for games; others have twice that)" in note.text
    data_center = find("memory=80GB,bandwidth=2TB/s,sms=108,clock=1410MHz,capability=80")
    assert data_center.peak("bf16").value == pytest.approx(312e12, rel=1e-3)


def test_without_a_capability_nothing_is_made_up_of_tensor_cores():
    device = find(LEAST)
    assert device.tensor_flops_per_s == {} and device.capability is None
    assert "the kernels of capability 90" in guess_notes([device])[0].text
    old = find(f"{LEAST},capability=61,fp16=71T")
    assert old.tensor_flops_per_s == {} and old.core_peak("fp16").value == 71e12


@pytest.mark.parametrize(
    "fp32", ["35.5T", "35.5TFLOP/s", "35.5 TFLOPS", "35.5tflops", "35500GFLOP/s", "35.5e12", "35_500G"]
)
def test_peaks_as_people_write_them(fp32):
    assert find(f"memory=12GB,bandwidth=504GB/s,fp32={fp32}").core_peak("fp32").value == pytest.approx(35.5e12)


def test_integers_are_counted_in_tops():
    assert find(f"{LEAST},int8=280TOPS,capability=86").tensor_flops_per_s["int8"].value == 280e12


@pytest.mark.parametrize(("text", "said"), [
    ("memory=12GB", "'memory=12GB' does not describe a device yet: add bandwidth=864GB/s and fp32=91.6T (or all of sms, clock and capability)"),
    ("fp32=35T,memory=12GB", "add bandwidth=864GB/s"),
    ("memory=12GB,bandwidth=504GB/s,sms=56,clock=2GHz", "add fp32=91.6T (or all of sms, clock and capability)"),
    ("memry=12GB", "memry= describes nothing of a device: did you mean memory?"),
    ("colour=green", "colour= describes nothing of a device: known: name, vendor, capability, memory"),
    (f"{LEAST},memory=13GB", "memory= is given twice: put ; between the descriptions of two devices"),
    ("memory=,bandwidth=1GB/s", "memory= has no value: write memory=24GB"),
    ("memory=lots,bandwidth=1GB/s", "memory=lots is no number: write memory=24GB"),
    ("memory=-3GB", "memory=-3GB is no number: write memory=24GB"),
    # units
    ("memory=12,bandwidth=504GB/s", "memory=12: it has no unit, write memory=24GB"),
    ("memory=12GHz", "memory=12GHz: GHz is no unit of memory, write memory=24GB"),
    ("memory=12gb", "memory=12gb: gb is no unit of memory, write memory=24GB"),
    ("memory=12GB,bandwidth=504GB", "bandwidth=504GB: GB is no unit of a bandwidth, write bandwidth=864GB/s"),
    ("memory=12GB,bandwidth=504Gbps", "Gbps is no unit of a bandwidth"),
    ("fp32=35", "fp32=35: it has no unit, write the dense peak, as fp32=91.6T"),
    ("fp16=71GB", "fp16=71GB: GB is no unit of a peak"),
    (f"{LEAST},clock=2475", "clock=2475: it has no unit, write clock=2520MHz"),
    (f"{LEAST},power=220", "power=220: it has no unit, write power=300W"),
    (f"{LEAST},power=220V", "power=220V: V is no unit of power"),
    (f"{LEAST},sms=56.5", "sms=56.5 is not a whole number"),
    (f"{LEAST},sms=56k", "sms=56k: k is no unit of a count"),
    (f"{LEAST},capability=8", "capability=8 is none that rooflight knows: one of 30, 35"),
    (f"{LEAST},capability=88", "capability=88 is none that rooflight knows"),
    (f"{LEAST},name=../../x", "a name has letters, digits, dots and hyphens"),
    (f"{LEAST},name=h200", "name=h200 is a device that rooflight knows"),
    # what cannot be
    ("memory=12GB,bandwidth=504TB/s,fp32=35.5T", "bandwidth = 5.04e+14 is not plausible (5e+09 to 5e+13): too large by 1000? write 5.04e+11"),
    ("memory=12MB,bandwidth=504GB/s,fp32=35.5T", "memory = 1.25829e+07 is not plausible"),
    (f"{LEAST},fp16=900T,capability=89", "fp16 = 9e+14 is more than its tensor cores do at clock (1.427e+14): with sparsity? write the dense peak, 4.5e+14"),
    (f"{LEAST},sms=5,clock=2475MHz,capability=89", "fp32 = 3.55e+13 does not fit sms x 128 lanes x 2 x clock"),
    (f"{LEAST},cache=6GB", "cache = 6.44245e+09 is not plausible"),
    (f"{LEAST},power=22kW", "power = 22000 is not plausible"),
    ("memory=12GB,bandwidth=504GB/s,fp32=0T", "fp32=0T is not a number that a device can have"),
    (f"{LEAST},sms=0", "sms=0 is not a number that a device can have: write sms=142"),
    ("memory=12GB,bandwidth=504GB/s,fp32=1e400T", "is not a number that a device can have"),
    (f"memory={'9' * 400}GB", "is not a number that a device can have"),
])  # fmt: skip
def test_a_mistake_is_one_line_with_its_remedy(text, said):
    with pytest.raises(BadInput) as caught:
        find(text)
    message = str(caught.value)
    assert said in message and "\n" not in message and len(message) < 600


def test_a_remedy_of_a_message_is_taken():
    assert find("memory=12GB,bandwidth=5.04e+11,fp32=35.5T").bandwidth_bytes_per_s.value == 504e9


@pytest.mark.parametrize(("text", "parts"), [
    ("a100", ["a100"]),
    ("a100,h200", ["a100", "h200"]),
    ("a100;h200", ["a100", "h200"]),
    ("memory=12GB,bandwidth=504GB/s", ["memory=12GB,bandwidth=504GB/s"]),
    ("a100,memory=1GB,sms=2,h200", ["a100", "memory=1GB,sms=2", "h200"]),
    ("memory=1GB,sms=2;memory=2GB,sms=3", ["memory=1GB,sms=2", "memory=2GB,sms=3"]),
    ("memory=1GB;", ["memory=1GB"]),
    ("a100,,h200", ["a100", "", "h200"]),
    ("", [""]),
    ("my=gpu.toml,h200", ["my=gpu.toml", "h200"]),
    ("runs/a=b/mygpu.toml", ["runs/a=b/mygpu.toml"]),
])  # fmt: skip
def test_names_and_descriptions_live_together(text, parts):
    assert several(text) == parts


def test_a_path_is_no_description():
    assert not is_description("a=b.toml") and not is_description("runs/a=b") and is_description(" memory = 12GB")


def test_several_descriptions_need_names():
    first, second = "memory=24GB,bandwidth=1TB/s,fp32=40T", LEAST
    with pytest.raises(BadInput, match="two devices are called described-gpu: give one of them another name"):
        devices_of(f"{first};{second}")
    names = [device.name for device in devices_of(f"{first},name=a;{second},name=b,h200")]
    assert names == ["a", "b", "h200"]
    assert [device.name for device in devices_of([f"{first},name=a", "h200"])] == ["a", "h200"]


def test_the_example_describes_a_device():
    assert find(EXAMPLE).peak("fp16").value == 183e12


# --- the GPU of this machine, where nobody described it ---


@pytest.fixture
def unknown_gpu(monkeypatch):
    """Torch sees an RTX 4075, which nobody made; clocks are in kHz, as CUDA has them."""
    about = SimpleNamespace(
        total_memory=12 * 2**30, multi_processor_count=56, L2_cache_size=48 * 2**20, major=8, minor=9,
        clock_rate=2_475_000, memory_clock_rate=10_501_000, memory_bus_width=192,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA GeForce RTX 4075")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: about)
    return about


def test_a_gpu_that_is_not_known_is_told_in_numbers_that_can_be_given(unknown_gpu):
    with pytest.raises(BadInput) as caught:
        devices_of("here")
    message = caught.value.on_command_line
    assert message.startswith("NVIDIA GeForce RTX 4075, the device of this machine, is not in the database: give")
    assert "\n" not in message
    device = find(message.partition("--on '")[2].rstrip("'"))
    assert device.name == "nvidia-geforce-rtx-4075" and device.bandwidth_bytes_per_s.value == 504e9
    assert (device.sms.value, device.clock_hz.value, device.l2_bytes.value) == (56, 2.475e9, 48 * 2**20)
    assert device.core_peak("fp32").value == pytest.approx(35.5e12, rel=1e-3)


def test_what_torch_does_not_tell_is_left_to_the_user(unknown_gpu):
    unknown_gpu.memory_clock_rate = 0
    with pytest.raises(BadInput, match="bandwidth=\\?,sms=56"):
        devices_of("here")


def test_a_slice_of_a_gpu_is_not_described_as_a_whole(unknown_gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    with pytest.raises(BadInput, match="it is not in the database: give a device of"):
        devices_of("here")
