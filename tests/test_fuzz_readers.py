"""No file makes rooflight fail as if it were its own fault: whatever is in it, the answer is a result or one clear line.

Real files of every kind that is read are damaged, in their values and in their bytes; exit code 70 is a bug. Seeded, so
that a run can be repeated; a longer search: FUZZ_EXAMPLES=2000 pytest tests/test_fuzz_readers.py
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rooflight.commands.main import main
from rooflight.files import load, save
from tests.fixtures.paths import DATA
from tests.profiles import test_nsys_console, test_nsys_sqlite, test_rocprof

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
BUG = 70

HOSTILE: list[Any] = [
    None, True, False, 0, -1, -(2**63), 2**64, 10**400, -(10**400), 1e308, -1e308, 1e-320, float("nan"), float("inf"),
    "", "x", "\x1b[31mred", "a\nb|c", "\u2028", "\ud800", "9" * 5000, "1" * 400, "1e999", "../../etc", "aten::mm", [],
    [[]], {}, {"x": 1}, [0], [-1], ["a"], [10**400],
]  # fmt: skip


def deep(levels: int = 3000) -> str:
    return "[" * levels + "]" * levels


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of every value inside a document; of long lists only the first and the last."""
    found = [path] if path else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        if not isinstance(value, list) or key < 2 or key == len(value) - 1:
            found += places(part, (*path, key))
    return found


def damaged(document: Any, draw: st.DataObject) -> bytes:
    """JSON with one to three values replaced, or gone."""
    text = json.dumps(document)
    for _ in range(draw.draw(st.integers(1, 3))):
        document = json.loads(text)
        path = draw.draw(st.sampled_from(places(document)))
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        how = draw.draw(st.sampled_from(["replace", "replace", "delete", "deep"]))
        if how == "delete":
            del parent[path[-1]]
        elif how == "deep":
            parent[path[-1]] = "@deep@"
        else:
            parent[path[-1]] = draw.draw(st.sampled_from(HOSTILE))
        # Python refuses to write integers of more than 4,300 digits unless asked; JSON has no such limit.
        text = json.dumps(document)
    return text.replace('"@deep@"', deep()).encode("utf-8", "surrogatepass")


def mangled(content: bytes, draw: st.DataObject) -> bytes:
    """Bytes cut off, turned, doubled, or a number made long."""
    how = draw.draw(st.sampled_from(["cut", "flip", "double", "digits", "minus", "empty", "nul"]))
    place = draw.draw(st.integers(0, max(len(content) - 1, 0)))
    if how == "cut":
        return content[:place]
    if how == "flip":
        return content[:place] + bytes([content[place] ^ draw.draw(st.integers(1, 255))]) + content[place + 1 :]
    if how == "double":
        return content[:place] + content[max(0, place - 200) :]
    digit = next((i for i in range(place, len(content)) if content[i : i + 1].isdigit()), place)
    if how == "digits":
        return content[:digit] + b"7" * draw.draw(st.sampled_from([400, 5000])) + content[digit:]
    if how == "minus":
        return content[:digit] + b"-" + content[digit:]
    return b"" if how == "empty" else content[:place] + b"\0" + content[place:]


def exit_code(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["rooflight", *map(str, arguments)])
    try:
        main()
    except SystemExit as request:
        return int(request.code or 0)
    return 0


seeded = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = DATA / "formats_6dd1d43"
    return {name: json.loads(unpacked(folder / f"{name}.json.gz")) for name in ("estimate", "measured", "regions")}


VIEWS = {
    "report": ("report", "--to", "json", "--force"),
    "text": ("report", "--to", "md", "--force"),
    "compare": ("compare", "--json"),
}


@pytest.mark.parametrize("name", ["estimate", "measured", "regions"])
@pytest.mark.parametrize("view", VIEWS)
@seeded
@given(draw=st.data())
def test_a_ledger(name, view, ledgers, tmp_path, monkeypatch, capsys, draw):
    path = tmp_path / "ledger.json"
    path.write_bytes(damaged(ledgers[name], draw))
    verb, *options = VIEWS[view]
    files = [path, path] if verb == "compare" else [path, "-o", tmp_path / f"out.{options[1]}"]
    assert exit_code(monkeypatch, verb, *files, *options) in (0, 2), capsys.readouterr().err


HOSTILE_NAMES = [f"nvjet_tst_{'9' * 5000}x1_1x1_h", "convolve_sgemm<float, 1, 99999999999, 5, 5, 3>"]


@pytest.mark.parametrize("kernel", HOSTILE_NAMES, ids=["digits", "power"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_kernel_of_a_hostile_name(kernel, view, tmp_path, monkeypatch, capsys):
    path, ledger = tmp_path / "ledger.json", load("recorded:h200/mnist-cnn-infer-fp32")
    kernels = tuple(msgspec.structs.replace(one, name=kernel) for one in ledger.kernels)
    save(msgspec.structs.replace(ledger, kernels=kernels), path)
    verb, *options = VIEWS[view]
    files = [path, path] if verb == "compare" else [path, "-o", tmp_path / f"out.{options[1]}"]
    assert exit_code(monkeypatch, verb, *files, *options) == 0, capsys.readouterr().err


@seeded
@given(draw=st.data())
def test_a_gzipped_ledger(tmp_path, monkeypatch, capsys, draw):
    path = tmp_path / "ledger.json.gz"
    path.write_bytes(mangled((DATA / "formats_6dd1d43" / "estimate.json.gz").read_bytes(), draw))
    assert exit_code(monkeypatch, "compare", path, path, "--json") in (0, 2), capsys.readouterr().err


@pytest.mark.parametrize(
    "log",
    [
        *sorted(path.name for path in (DATA / "ncu").iterdir() if "mnist" in path.name),
    ],
)
@seeded
@given(draw=st.data())
def test_a_profilers_log(log, tmp_path, monkeypatch, capsys, draw):
    path = tmp_path / log.removesuffix(".gz")
    path.write_bytes(mangled(unpacked(DATA / "ncu" / log), draw))
    code = exit_code(monkeypatch, "import", path, "-o", tmp_path / "out.json", "--force")
    assert code in (0, 2), capsys.readouterr().err


@pytest.fixture(scope="module")
def other_logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("logs")
    return {
        "nsys trace": unpacked(DATA / "nsys" / "mnist_b64_train_cuda_gpu_trace.csv.gz"),
        "nsys summary": unpacked(DATA / "nsys" / "mnist_b64_train_cuda_gpu_kern_sum.csv.gz"),
        "nsys console": test_nsys_console.COLUMN.encode(),
        "rocprof trace": test_rocprof.TRACE.encode(),
        "rocprof counters": test_rocprof.COUNTERS.encode(),
        "nsys database": test_nsys_sqlite.database(folder / "run.sqlite").read_bytes(),
    }


@pytest.mark.parametrize(
    "log", ["nsys trace", "nsys summary", "nsys console", "nsys database", "rocprof trace", "rocprof counters"]
)
@seeded
@given(draw=st.data())
def test_another_log(log, other_logs, tmp_path, monkeypatch, capsys, draw):
    path = tmp_path / "log"
    path.write_bytes(mangled(other_logs[log], draw))
    code = exit_code(monkeypatch, "import", path, "-o", tmp_path / "out.json", "--force")
    assert code in (0, 2), capsys.readouterr().err


@pytest.mark.parametrize("trace", ["timeline/resnet18_plain.json.gz", "cpu_traces/shapes.json.gz"])
@pytest.mark.parametrize("how", [damaged, mangled])
@seeded
@given(draw=st.data())
def test_a_trace_of_the_profiler(how, trace, tmp_path, monkeypatch, capsys, draw):
    trace = json.loads(unpacked(DATA / trace))
    trace["traceEvents"] = trace["traceEvents"][:400]
    path = tmp_path / "trace.json"
    path.write_bytes(how(trace if how is damaged else json.dumps(trace).encode(), draw))
    code = exit_code(monkeypatch, "import", path, "-o", tmp_path / "out.json", "--force")
    assert code in (0, 2), capsys.readouterr().err


@pytest.mark.parametrize("how", [damaged, mangled])
@seeded
@given(draw=st.data())
def test_traces_of_ranks(how, tmp_path, monkeypatch, capsys, draw):
    files = [tmp_path / "rank0.json", tmp_path / "rank1.json"]
    for file in files:
        trace = json.loads(unpacked(DATA / "rank_traces" / f"{file.name}.gz"))
        events = [row for row in trace["traceEvents"] if "gloo" in row["name"] or "Profiler" in row["name"]]
        trace["traceEvents"] = [*events, *trace["traceEvents"][:8]]
        file.write_text(json.dumps(trace))
    files[1].write_bytes(how(trace if how is damaged else json.dumps(trace).encode(), draw))
    code = exit_code(monkeypatch, "import", *files, "-o", tmp_path / "out.json", "--force")
    assert code in (0, 2), capsys.readouterr().err


@pytest.fixture(scope="module")
def calibration() -> Any:
    return json.loads(unpacked(DATA / "formats_6dd1d43" / "calibration.json.gz"))


@seeded
@given(draw=st.data())
def test_a_calibration(calibration, tmp_path, monkeypatch, capsys, draw):
    path = tmp_path / "calibration.json"
    path.write_bytes(damaged(calibration, draw))
    code = exit_code(monkeypatch, "predict", "mnist-cnn", "--on", "h200", "--calibration", path, "--json")
    assert code in (0, 2), capsys.readouterr().err


HOSTILE_TOML = [
    "-1",
    "0",
    "nan",
    "inf",
    "1e308",
    "7" * 400,
    "7" * 5000,
    '"x"',
    "true",
    deep(),
    "{}",
    "1979-05-27",
    '"\\u001b"',
]


@seeded
@given(draw=st.data())
def test_a_device(tmp_path, monkeypatch, capsys, draw):
    import rooflight.hardware

    lines = (Path(rooflight.hardware.__file__).parent / "specs" / "t4.toml").read_text().splitlines()
    line = draw.draw(st.sampled_from([i for i, text in enumerate(lines) if "=" in text]))
    lines[line] = f"{lines[line].partition('=')[0]}= {draw.draw(st.sampled_from(HOSTILE_TOML))}"
    path = tmp_path / "device.toml"
    path.write_text("\n".join(lines))
    code = exit_code(monkeypatch, "predict", "mnist-cnn", "--on", path, "--json")
    assert code in (0, 2), capsys.readouterr().err


@pytest.mark.parametrize("table", ["mnist.csv", "semicolons.csv", "homework.csv"])
@seeded
@given(draw=st.data())
def test_a_table_of_claims(table, tmp_path, monkeypatch, capsys, draw):
    path = tmp_path / table
    path.write_bytes(mangled((DATA / "claims" / table).read_bytes(), draw))
    ledger = DATA / "formats_6dd1d43" / "estimate.json.gz"
    assert exit_code(monkeypatch, "compare", ledger, "--claims", path, "--json") in (0, 1, 2), capsys.readouterr().err


@seeded
@given(draw=st.data())
def test_a_study(tmp_path, monkeypatch, capsys, draw):
    folder = tmp_path / "study"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DATA / "formats_6dd1d43" / "study", folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = draw.draw(st.sampled_from(files))
    path.write_bytes(mangled(path.read_bytes(), draw))
    code = exit_code(monkeypatch, "report", folder, "--to", "json", "-o", tmp_path / "out.json", "--force")
    assert code in (0, 2), capsys.readouterr().err
