"""Ledgers on disk: round trips, strictness, migrations, and everything that can be wrong with a file."""

from __future__ import annotations

import gzip
import json
import os
import stat

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import rooflight
from rooflight import files
from rooflight.errors import BadFile
from rooflight.ledger import FORMAT_VERSION, Kernel, Ledger, Measurement, Value


@pytest.fixture(scope="module")
def ledger():
    return rooflight.estimate("mnist-cnn", batch=2, step="train")


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_ledger_comes_back_as_it_was(ledger, tmp_path, name):
    path = rooflight.save(ledger, tmp_path / name)
    assert rooflight.load(path) == ledger
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


def test_measurements_and_kernels_come_back_too(ledger, tmp_path):
    measured = msgspec.structs.replace(
        ledger,
        kernels=(Kernel(name="gemm", ops=(2, 3), grid=(1, 2, 3), time_s=1e-6),),
        measurements=(Measurement(scope="op", ops=(2,), quantities={"bytes_read": Value(12, "dram__bytes_read.sum")}),),
    )
    assert files.load(files.save(measured, tmp_path / "m.json")) == measured


def test_an_existing_file_is_kept_unless_forced(ledger, tmp_path):
    path = tmp_path / "run.json"
    path.write_text("precious")
    with pytest.raises(BadFile, match="add force=True"):
        files.save(ledger, path)
    assert path.read_text() == "precious"
    files.save(ledger, path, force=True)
    assert files.load(path) == ledger
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_failure_while_writing_leaves_the_old_file_and_no_rubbish(ledger, tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    files.save(ledger, path)
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadFile, match="No space left"):
        files.save(ledger, path, force=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_written_files_get_the_usual_permissions(ledger, tmp_path):
    path = files.save(ledger, tmp_path / "run.json")
    plain = tmp_path / "plain"
    plain.write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_missing_folder_and_folder_for_a_file(ledger, tmp_path):
    with pytest.raises(BadFile, match="does not exist"):
        files.save(ledger, tmp_path / "none" / "run.json")
    with pytest.raises(BadFile, match="is a folder"):
        files.save(ledger, tmp_path)
    with pytest.raises(BadFile, match="is a folder"):
        files.load(tmp_path)
    with pytest.raises(BadFile, match="does not exist"):
        files.load(tmp_path / "none.json")


def test_predictions_are_named_where_a_ledger_is_read(tmp_path):
    found = rooflight.predict("mnist-cnn", tier="spec")
    path = rooflight.save(found, tmp_path / "p.json")  # type: ignore[arg-type]  # no ledger
    with pytest.raises(BadFile, match=r"p\.json holds predictions, no ledger: read it with Python's json") as caught:
        rooflight.load(path)
    assert "rooflight measure -o" in str(caught.value) and "\n" not in str(caught.value)
    assert json.loads(path.read_text())["predictions"]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("part", [0.01, 0.5, 0.999])
def test_half_a_file_is_refused(ledger, tmp_path, part, compress):
    whole = files.save(ledger, tmp_path / ("run.json.gz" if compress else "run.json")).read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(BadFile):
        files.load(cut)


def test_newer_and_never_formats(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"format_version": FORMAT_VERSION + 1}))
    with pytest.raises(BadFile, match="upgrade rooflight"):
        files.load(path)
    path.write_text(json.dumps({"format_version": 0}))
    with pytest.raises(BadFile, match="never existed"):
        files.load(path)


def test_an_old_format_is_migrated(ledger, tmp_path, monkeypatch):
    """Pretend that today's format is version 3 and that versions 1 and 2 called the target `for_device`."""
    document = msgspec.to_builtins(ledger)
    document["header"]["for_device"] = document["header"].pop("target")
    document["format_version"] = 1
    path = tmp_path / "old.json"
    path.write_bytes(msgspec.json.encode(document))

    def to_2(old):
        return {**old, "format_version": 2}

    def to_3(old):
        header = dict(old["header"])
        header["target"] = header.pop("for_device")
        return {**old, "header": header, "format_version": 3}

    monkeypatch.setattr(files, "FORMAT_VERSION", 3)
    monkeypatch.setattr(files, "ONLY_ADDED_SINCE", 3)
    monkeypatch.setattr(files, "MIGRATIONS", {1: to_2, 2: to_3})
    migrated = files.load(path)
    assert migrated.header == ledger.header
    assert migrated.ops == ledger.ops
    monkeypatch.setattr(files, "MIGRATIONS", {1: to_2})
    with pytest.raises(BadFile, match="cannot migrate"):
        files.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["header"].pop("model"),
        lambda d: d["ops"][0].update(index="three"),
        lambda d: d["ops"][0].update(phase="sideways"),
        lambda d: d["ops"][0]["cost"].update(flops=1.5),
        lambda d: d.update(storages={"a": 1}),
    ],
)
def test_wrong_types_are_refused_with_their_place(ledger, tmp_path, change):
    document = msgspec.to_builtins(ledger)
    change(document)
    path = tmp_path / "x.json"
    path.write_bytes(msgspec.json.encode(document))
    with pytest.raises(BadFile, match=r"no valid ledger: .*\$|missing required field"):
        files.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["ops"][0]["outputs"][0]["shape"].append(10**18),
        lambda d: d["ops"][0]["outputs"][0].update(shape=[2**62] * 20, strides=[0] * 20),
        lambda d: d["header"]["inputs"][0][1].update(shape=[2**62, 2]),
        lambda d: d["modules"][0]["outputs"][0].append(2**62),
        lambda d: d["modules"][0]["inputs"][0].append(2**62),
        lambda d: d["modules"][0].update(params=10**400),
        lambda d: d["storages"][0].update(nbytes=2**63),
        lambda d: [storage.update(nbytes=2**62) for storage in d["storages"][:2]],
        lambda d: d["ops"][0]["cost"].update(flops=10**400),
        lambda d: d["header"].update(batch=10**400),
    ],
)
def test_sizes_beyond_64_bits_are_refused(ledger, tmp_path, change):
    document = json.loads(msgspec.json.encode(ledger))
    document["ops"][0]["outputs"][0].pop("strides", None)
    change(document)
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    with pytest.raises(BadFile) as caught:
        files.load(path)
    assert caught.value.code == "damaged-file" and "\n" not in str(caught.value)


def refused_or_read(path):
    try:
        return isinstance(files.load(path), Ledger)
    except BadFile as error:
        return "\n" not in str(error)


anything = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@anything
@given(content=st.binary(max_size=400))
@example(content=b"\x1f\x8b")
@example(content=b"\x1f\x8b\x08\x00" + b"\x00" * 30)
@example(content=b"[" * 100_000)
@example(content=b"")
def test_random_bytes_are_refused_in_one_line(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert refused_or_read(path)
    path.write_bytes(gzip.compress(content))
    assert refused_or_read(path)


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
documents = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
fields = st.sampled_from(["header", "modules", "storages", "ops", "kernels", "measurements"])


@anything
@given(document=documents, extra=st.dictionaries(fields, documents, max_size=3), version=st.integers(-2, 3))
def test_random_json_is_refused_in_one_line(tmp_path, document, extra, version):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    assert refused_or_read(path)
    path.write_text(json.dumps({"format_version": version, **extra}))
    assert refused_or_read(path)


@anything
@given(data=st.data())
def test_a_ledger_with_one_value_replaced_is_read_or_refused(ledger, tmp_path, data):
    document = msgspec.to_builtins(ledger)
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        below = place[key]
        if isinstance(below, (dict, list, tuple)) and len(below) and data.draw(st.booleans()):
            if isinstance(below, tuple):
                below = place[key] = list(below)
            place = below
            continue
        if isinstance(place, (dict, list)):
            place[key] = data.draw(documents)
        break
    path = tmp_path / "x.json"
    path.write_bytes(msgspec.json.encode(document))
    assert refused_or_read(path)


def test_a_link_stays_a_link_and_a_pipe_a_pipe(ledger, tmp_path):
    target, link, pipe = tmp_path / "target.json", tmp_path / "link.json", tmp_path / "pipe.json"
    target.write_text("old")
    link.symlink_to(target)
    files.save(ledger, link, force=True)
    assert link.is_symlink()
    assert files.load(target) == ledger
    os.mkfifo(pipe)
    with pytest.raises(BadFile, match="no regular file"):
        files.save(ledger, pipe, force=True)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


NEGATIVE = {"scope": "step", "quantities": {"wall_time_s": {"value": -1.0, "origin": "a clock"}}}


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["ops"][0]["outputs"][0].update(dtype="fp7"),
        lambda d: d["ops"][0]["outputs"][0].update(shape=[-1, 2]),
        lambda d: d["ops"][0]["outputs"][0].update(storage=10**9),
        lambda d: d["ops"][0]["outputs"][0].update(strides=[1]),
        lambda d: d["ops"][1].update(index=0),
        lambda d: d["header"].update(batch=0),
        lambda d: d["modules"][1].update(path=""),
        lambda d: d["modules"][1].update(output_dtypes=[]),
        lambda d: d.update(surprise=1),
        lambda d: d.update(kernels=[{"name": "gemm", "time_s": -1e-6}]),
        lambda d: d.update(measurements=[NEGATIVE]),
    ],
)
def test_a_ledger_that_makes_no_sense_is_refused(ledger, tmp_path, change):
    document = msgspec.to_builtins(ledger)
    change(document)
    path = tmp_path / "x.json"
    path.write_bytes(msgspec.json.encode(document))
    with pytest.raises(BadFile, match="no valid ledger"):
        files.load(path)


def test_a_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 100_000))
    with pytest.raises(BadFile, match="holds more than"):
        files.load(path)
