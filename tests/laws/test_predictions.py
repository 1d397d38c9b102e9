"""What holds for every prediction, whatever the model, the layout and the device: drawn by a seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

import rooflight
from rooflight import metrics
from rooflight.errors import RooflightError
from rooflight.hardware import devices
from rooflight.prediction.result import Prediction

STEPS: list[dict[str, Any]] = [
    {"model": "mnist-cnn", "batch": 64, "step": "train"},
    {"model": "resnet18", "batch": 32},
    {"model": "resnet18", "batch": 8, "step": "train", "autocast": "bf16", "compile": True},
    {"model": "gpt2", "overrides": {"n_layer": 2}, "batch": 8, "seq": 256, "step": "train", "dtype": "bf16"},
    {"model": "gpt2", "overrides": {"n_layer": 2}, "batch": 8, "seq": 128, "compile": True},
    {"model": "gpt2", "overrides": {"n_layer": 2}, "batch": 8, "seq": 128, "step": "train", "checkpoint": "blocks"},
    {"model": "llama3-8b", "overrides": {"num_hidden_layers": 2}, "batch": 4, "step": "decode", "past": 4096, "dtype": "bf16"},
    {"model": "llama3-8b", "overrides": {"num_hidden_layers": 2}, "batch": 64, "seq": 64, "dtype": "bf16", "graphs": True},
    {"model": "mixtral-8x7b", "overrides": {"num_hidden_layers": 2}, "batch": 16, "step": "decode", "past": 512, "dtype": "bf16"},
    {"model": "vit-b-16", "overrides": {"num_layers": 4}, "batch": 8, "step": "train", "tf32": True},
]  # fmt: skip
LAYOUTS: list[dict[str, Any]] = [
    {}, {"gpus": 8, "parallel": "ddp"}, {"gpus": 16, "nodes": 2, "parallel": "fsdp"}, {"gpus": 8, "parallel": "zero1"},
    {"gpus": 4, "parallel": "tp"}, {"gpus": 2, "parallel": "pp"}, {"gpus": 8, "nodes": 2, "parallel": "2x2x4"},
]  # fmt: skip
MAY_BE_SHORTER = 0.97
ROUNDED = 1.001


def drawn(count: int) -> Iterator[tuple[dict[str, Any], dict[str, Any], list[str]]]:
    """Draw steps, layouts, and as many devices for each as make `count` in all."""
    chance = random.Random(2026)
    pairs = list(itertools.product(STEPS, LAYOUTS))
    for number, (step, layout) in enumerate(pairs):
        yield (
            step,
            layout,
            chance.sample(devices.names(), (number + 1) * count // len(pairs) - number * count // len(pairs)),
        )


def cases() -> list[Any]:
    few = [pytest.param(*case, id=f"{words(case[0])} {words(case[1])}") for case in drawn(200)]
    many = [
        pytest.param(*case, id=f"{words(case[0])} {words(case[1])} more", marks=pytest.mark.slow)
        for case in drawn(3000)
    ]
    return few + many


def words(options: dict[str, Any]) -> str:
    return " ".join(str(value) for value in options.values())


def predicted(on: list[str], step: dict[str, Any]) -> list[Prediction]:
    """Predict a step with its batch and twice its batch, on devices and in a layout that have what it needs."""
    batches = [step["batch"], 2 * step["batch"]]
    try:
        return list(rooflight.predict(on=on, advice=False, find_savings=False, **step | {"batch": batches}).predictions)
    except RooflightError:  # for one of the devices, or for all
        return [found for device in on for found in predicted([device], step)] if on[1:] else []


def least_read_s(found: Prediction) -> float:
    """Return the time in which a device reads weights and cache, without what its L2 holds: a token needs all of them
    but the embedding."""
    assert found.memory is not None and found.memory.peak is not None
    peak, device = found.memory.peak, devices.find(found.device)
    held = peak.split["parameter"] + peak.split["input"]
    read = held - sum(tenant.bytes for tenant in peak.tenants if tenant.module == "model.embed_tokens")
    return (read - (device.l2_bytes.value if device.l2_bytes else 0)) / device.bandwidth_bytes_per_s.value


@pytest.mark.parametrize(("step", "layout", "on"), cases())
def test_laws_of_a_prediction(step: dict[str, Any], layout: dict[str, Any], on: list[str]) -> None:
    predictions = predicted(on, step | layout)
    for found in predictions:
        where = f"on {found.device}, batch {found.batch}"
        assert found.percent_of_roof <= 100 * ROUNDED, where
        assert found.gpu_busy_s <= found.time_s * ROUNDED, where
        assert found.time_interval_s.low <= found.time_s <= found.time_interval_s.high, where
        if found.many is not None:
            assert found.many.communication_s <= found.time_s * ROUNDED, where
            assert found.many.exposed_s <= found.many.communication_s * ROUNDED or found.many.pipeline > 1, where
        elif step["model"] == "llama3-8b" and "past" in step:
            assert found.gpu_time_s >= least_read_s(found), where
    for smaller, larger in zip(predictions[::2], predictions[1::2], strict=True):
        assert (smaller.device, 2 * step["batch"]) == (larger.device, larger.batch)
        assert larger.time_s >= MAY_BE_SHORTER * smaller.time_s, f"on {larger.device}"


def test_nothing_is_clamped_to_obey_a_law() -> None:
    assert metrics.percent_of_roof(2.0, 1.0) == 200
