"""What is kept in the user's cache folder: a trace from there is the trace, and whatever is wrong with it is made anew."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import rooflight
from rooflight import user_cache
from rooflight.ledger import Ledger
from rooflight.prediction import kept_traces
from rooflight.prediction.kept_traces import KeptTrace
from rooflight.prediction.traces import Traces
from rooflight.spec import StepSpec
from rooflight.trace import TraceOptions

WHICH = StepSpec(model="mnist-cnn", step="train").build
OPTIONS = TraceOptions()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "rooflight"


# --- files ---


def test_what_was_written_is_read(cache: Path) -> None:
    assert user_cache.read("one-1") is None
    for content in (b"", b"first", b"second"):
        user_cache.write("one-1", content)
        assert user_cache.read("one-1") == content
    assert [path.name for path in cache.iterdir()] == ["one-1"]


@pytest.mark.parametrize("damage", [lambda found: found[:-1], lambda found: b"", lambda found: found[:7],
                                    lambda found: bytes([*found[:-1], found[-1] ^ 1]), lambda found: found + b"x"])  # fmt: skip
def test_a_damaged_file_is_none(cache: Path, damage: Callable[[bytes], bytes]) -> None:
    user_cache.write("one-1", b"content")
    path = cache / "one-1"
    path.write_bytes(damage(path.read_bytes()))
    assert user_cache.read("one-1") is None


def test_a_folder_that_cannot_be_is_no_hindrance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    user_cache.write("one-1", b"content")
    assert user_cache.read("one-1") is None

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    user_cache.write("one-1", b"content")
    assert user_cache.read("one-1") is None


def test_a_full_disk_is_no_hindrance(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    user_cache.write("one-1", b"content")
    assert user_cache.read("one-1") is None and list(cache.iterdir()) == []


def test_the_oldest_of_a_kind_go(cache: Path) -> None:
    user_cache.write("other-1", b"content")
    size = (cache / "other-1").stat().st_size
    for number in range(5):
        user_cache.write(f"one-{number}", b"content", most=3 * size)
        os.utime(cache / f"one-{number}", ns=(number, number))
    user_cache.write("one-5", b"content", most=3 * size)
    assert {path.name for path in cache.iterdir()} == {"other-1", "one-3", "one-4", "one-5"}


# --- which trace ---


def test_a_trace_is_known_by_all_that_it_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    switches: dict[str, str] = {}

    def name(model: str = "mnist-cnn", options: TraceOptions = OPTIONS, batch: int = 1619, scales: bool = True,
             **which: object) -> str:  # fmt: skip
        found = KeptTrace.of(model, {**WHICH, **which}, options, batch, switches, scales=scales)
        assert found is not None
        return found.name

    first = name()
    assert name() == first and name(options=replace(OPTIONS, command="rooflight predict")) == first
    others = [name("resnet50"), name(batch=1637), name(scales=False), name(step="infer"), name(dtype="bf16"), name(overrides={"a": "1"}),
              name(options=replace(OPTIONS, target="cuda:70")), name(options=replace(OPTIONS, tf32=True)),
              name(options=replace(OPTIONS, checkpoint=("blocks",)))]  # fmt: skip
    switches["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] = "1"
    others.append(name())
    monkeypatch.setattr(kept_traces, "version", lambda package: "another")
    others.append(name())
    monkeypatch.setattr(kept_traces, "_code", lambda: "changed")
    others.append(name())
    assert len({first, *others}) == 1 + len(others)


def test_the_environment_is_read_only_before_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch sets variables of its own when it is loaded: a key made after that would be another one."""
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")
    importlib.import_module("torch")
    assert kept_traces.switches_of_torch() is None
    monkeypatch.delitem(sys.modules, "torch")
    found = kept_traces.switches_of_torch()
    assert found is not None and found["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] == "1"


def test_the_code_that_traces_is_known_by_what_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("trace/stage.py", "models/builtin.py", "ledger.py", "spec/step.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("pass")
    monkeypatch.setattr(rooflight, "__file__", str(tmp_path / "__init__.py"))
    found = {kept_traces._code.__wrapped__()}
    (tmp_path / "other.py").write_text("1")
    assert kept_traces._code.__wrapped__() in found
    for name in ("trace/stage.py", "models/builtin.py", "ledger.py", "trace/new.py"):
        (tmp_path / name).write_text("other")
        found.add(kept_traces._code.__wrapped__())
    assert len(found) == 5


def test_others_models_and_those_of_a_cpu_are_not_kept() -> None:
    assert KeptTrace.of("hf:gpt2", WHICH, OPTIONS, 1619, {}, scales=True) is None
    assert KeptTrace.of("file.py:model", WHICH, OPTIONS, 1619, {}, scales=True) is None
    assert KeptTrace.of(object(), WHICH, OPTIONS, 1619, {}, scales=True) is None
    assert KeptTrace.of("mnist-cnn", WHICH, replace(OPTIONS, target="cpu"), 1619, {}, scales=True) is None


def test_a_kept_trace_is_the_trace(cache: Path) -> None:
    ledger = rooflight.estimate("gpt2", step="train", batch=2, seq=16)
    place = KeptTrace("trace-1", "rooflight predict gpt2")
    assert place.read() is None
    place.write(ledger)
    found = place.read()
    assert found is not None and found.header.command == "rooflight predict gpt2"
    assert msgspec.structs.replace(found, header=ledger.header) == ledger
    # 1, 1.0 and True are equal, and not the same.
    assert msgspec.to_builtins(found.ops) == msgspec.to_builtins(ledger.ops)
    assert [repr(op.args) for op in found.ops] == [repr(op.args) for op in ledger.ops]

    user_cache.write("trace-1", msgspec.msgpack.encode({"format_version": "x"}))
    assert place.read() is None


def test_what_would_be_read_otherwise_is_not_kept(cache: Path) -> None:
    ledger = rooflight.estimate("mnist-cnn")
    args: dict[str, object] = {**ledger.ops[0].args, "value": float("nan")}
    odd = msgspec.structs.replace(ledger, ops=(msgspec.structs.replace(ledger.ops[0], args=args), *ledger.ops[1:]))
    KeptTrace("trace-1", "").write(odd)
    assert not cache.exists()


def test_whoever_has_loaded_torch_has_his_steps_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(user_cache, "read", never)
    monkeypatch.setattr(user_cache, "write", never)
    (step,), _ = Traces("mnist-cnn", **WHICH).steps([8], OPTIONS, scaled=True)
    assert step.batch == 8


# --- in processes of their own, where torch is not loaded ---

REPORT = """
import sys
from rooflight.commands.main import main
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


def said(*line: str) -> tuple[str, bool]:
    """What a command prints, and whether it loaded torch."""
    done = subprocess.run([sys.executable, "-c", REPORT, *line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.splitlines()[-1] == "True"


@pytest.mark.slow
def test_a_second_report_needs_no_torch_and_is_the_same(cache: Path) -> None:
    line = ("report", "recorded:h200/mnist-cnn-train-tf32", "--to", "json")
    first, loaded = said(*line)
    # A V100 has no TF32: a trace of its own.
    names = sorted(cache.glob("trace-*"))
    assert loaded and len(names) == 2
    assert said(*line) == (first, False)
    for path in names:
        path.write_bytes(path.read_bytes()[:-100])
    assert said(*line) == (first, True)
    assert said(*line) == (first, False)


@pytest.mark.slow
def test_a_report_of_another_batch_shares_the_trace(cache: Path, tmp_path: Path) -> None:
    for batch in (8, 32):
        said("estimate", "mnist-cnn", "--batch", str(batch), "-o", str(tmp_path / f"{batch}.json"))
    assert said("report", str(tmp_path / "8.json"), "--to", "md", "--on", "h200")[1]
    assert not said("report", str(tmp_path / "32.json"), "--to", "md", "--on", "h200")[1]
    assert isinstance(rooflight.load(tmp_path / "8.json"), Ledger)


def test_a_second_prediction_needs_no_torch_and_is_the_same(cache: Path) -> None:
    """With its advice: bf16 is a trace of its own."""
    line = ("predict", "resnet18", "--batch", "4", "--step", "train", "--on", "h200,a100", "--json")
    first, loaded = said(*line)
    assert loaded and said(*line) == (first, False)


@pytest.mark.slow
def test_a_trace_of_one_batch_does_not_pass_for_one_that_serves_all(cache: Path) -> None:
    """1619 is the batch that stands for all others, where the model has no such size of its own."""
    three = ("predict", "mnist-cnn", "--set", "channels=1619,40", "--batch", "1,2,4", "--on", "h200", "--json")
    first, _ = said(*three)
    said("predict", "mnist-cnn", "--set", "channels=1619,40", "--batch", "1619", "--on", "h200", "--json")
    assert said(*three)[0] == first and "every batch was traced for itself" in first
