"""`rooflight import`: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rooflight.files import load
from rooflight.ops.kernel_names import short_name
from rooflight.profiles import read
from rooflight.reporting.sections.kernel_tables import flop_count_line, headline, kernel_table, log_data, totals_table
from tests.fixtures.import_logs import FOLDER

TF32 = FOLDER / "mnist_conv2_64_tf32.csv.gz"
FP32 = FOLDER / "mnist_conv2_64_fp32.csv.gz"
TRACE = FOLDER.parent / "timeline" / "resnet18_plain.json.gz"


@dataclass
class Said:
    stdout: str
    stderr: str


@pytest.fixture
def rooflight(run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Run `rooflight ARGUMENTS` in this process, in a folder."""

    def rooflight(*arguments: str | Path, code: int = 0, cwd: Path | None = None) -> Said:
        with monkeypatch.context() as there:
            if cwd is not None:
                there.chdir(cwd)
            found, out, err = run(*arguments, columns=150)
        assert found == code, err
        return Said(out, err)

    return rooflight


def test_text(rooflight) -> None:
    printed = rooflight("import", TF32).stdout
    head = printed.splitlines()[0]
    assert all(words in head for words in ("mnist_conv2_64_tf32", "4 kernels", "NVIDIA H200", "9.0"))
    assert "1,358,954,496" in printed
    (line,) = [line for line in printed.splitlines() if "flop_count_sp" in line]
    assert all(number in line for number in ("10,840,064", "0.8%", "1,369,794,560"))
    assert "ncu: sm__ops_path_tensor_src_tf32_dst_fp32" in printed


def test_json(rooflight) -> None:
    found = json.loads(rooflight("import", TF32, "--json").stdout)
    assert list(found) == ["header", "totals", "origins", "kernels"]
    totals = found["totals"]
    assert totals["tensor_flops_tf32"] == 1358954496
    assert totals["tensor_flops_bf16"] is None
    assert totals["flops"] == 1358954496 + 10840064
    assert totals["dram_bytes"] == 20756224 + 256
    assert totals["intensity"] == pytest.approx(1369794560 / 20756480)
    assert found["header"]["step"] is None
    assert found["header"]["command"].startswith("rooflight import ")
    kernel = found["kernels"][2]
    assert (kernel["grid"], kernel["label"], kernel["quantities"]["tensor_flops_tf32"]) == (
        [1, 288, 1],
        "conv2",
        1358954496,
    )
    assert set(kernel["quantities"]) <= set(found["origins"])


def test_csv_and_markdown(rooflight, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(rooflight("import", TF32, "--csv", "--by", "launch").stdout)))
    assert [row["tensor_flops"] for row in rows] == ["0", "0", "1358954496", "0", "1358954496"]
    assert rows[2]["kernel"].startswith("sm80_xmma_fprop_implicit_gemm")
    assert rows[2]["grid"] == "1x288x1"
    written = rooflight("import", TF32, "-o", "table.md", cwd=tmp_path)
    assert "table.md" in written.stderr and written.stdout == ""
    assert "| total | 4 |" in (tmp_path / "table.md").read_text()


def test_the_ledger_is_saved_and_comes_back(rooflight, tmp_path: Path) -> None:
    rooflight("import", TF32, "-o", "run.json.gz", cwd=tmp_path)
    saved = load(tmp_path / "run.json.gz")
    assert saved.kernels == read(TF32).kernels
    rooflight("import", TF32, "-o", "run.json.gz", code=2, cwd=tmp_path)
    rooflight("import", TF32, "-o", "run.json.gz", "--force", "--json", cwd=tmp_path)


def test_torch_is_not_imported() -> None:
    program = "import sys; sys.argv = ['rooflight', 'import', sys.argv[1]]\nfrom rooflight.commands.main import main\nmain()\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program, str(TF32)], check=True, capture_output=True)


def test_rows_add_up_to_the_total() -> None:
    ledger = read(FOLDER / "resnet50_b16_tf32.csv.gz")
    for by in ("kernel", "launch", "range"):
        table = kernel_table(ledger, by, top=7)
        assert len(table.rows) == {"kernel": 9, "launch": 9, "range": 2}[by]
        for name in ("tensor FLOPs", "CUDA FLOPs", "DRAM read", "DRAM write"):
            place = [column.name for column in table.columns].index(name)
            *rows, total = (row[place] for row in table.rows)
            assert sum(rows) == total
    assert kernel_table(ledger).rows[-1][1] == 239


def test_a_trace_shows_no_columns_of_counters() -> None:
    ledger = read(TRACE)
    names = [column.name for column in kernel_table(ledger, "range").columns]
    assert names == ["range", "calls", "time", "share", "copied"]
    assert flop_count_line(ledger) is None
    assert [row[0] for row in totals_table(ledger).rows] == ["copied and filled", "GPU busy", "sum of kernel times"]
    assert "372 kernels" in headline(ledger) and "8 copies" in headline(ledger)
    assert log_data(ledger)["totals"]["flops"] is None


def test_on_cuda_cores_flop_count_sp_is_all() -> None:
    line = flop_count_line(read(FP32))
    assert line is not None and "100.0%" in line and "1,368,391,680" in line and "tensor" not in line


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::copy<(int)4, at::Fill<float>>(int, float *)", "copy<4, Fill<float>>"),
        ("void at::<unnamed>::max_pool_forward_nchw<float, int>(T2, const T1 *)", "max_pool_forward_nchw<float, int>"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(T1::Params)",
         "cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("[CUDA memcpy Host-to-Device]", "[CUDA memcpy Host-to-Device]"),
        ("volta_sgemm_32x128_nn", "volta_sgemm_32x128_nn"),
        ("void at::vectorized<4, at::<unnamed>::clamp(at::TensorIteratorBase &, c10::Scalar)::[lambda() (instance 1)]::operator ()() "
         "const::[lambda(float) (instance 1)], std::array<char *, 2>>(int, T2, T3)", "vectorized<4, clamp>"),
        ("void at::native::vectorized<4, at::native::(anonymous namespace)::clamp(at::TensorIteratorBase&)::{lambda()#1}::operator()() "
         "const::{lambda(float)#7}, std::array<char*, 2ul> >(int)", "vectorized<4, clamp >"),
    ],
)  # fmt: skip
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


def test_short_names_keep_the_tile() -> None:
    name = "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32_warpgroupsize1x1x1_g1_kernel__5x_cudnn"
    assert short_name(name, 46) == "sm90_xmma_fprop_implicit_ge…tilesize128x128x32"
    assert all(len(short_name(name, width)) <= width for width in range(20, 140))
