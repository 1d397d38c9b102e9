"""Report files of Nsight Compute. Neither ncu nor its package can be had in CI: both have stand-ins that answer as the
real ones do (the package was tried with a real report), from the numbers of a real log."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rooflight.errors import BadFile
from rooflight.profiles import read
from tests.fixtures.import_logs import FOLDER, real, table

TF32 = "mnist_conv2_64_tf32"
REPORT = b"NVR\0\2\0\0\0rest"


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report, and a PATH without ncu."""
    path = tmp_path / f"{TF32}.ncu-rep"
    path.write_bytes(REPORT)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return path


def install_ncu(folder: Path, script: str) -> None:
    program = folder / "bin" / "ncu"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_through_ncu(report: Path, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(real(TF32))
    install_ncu(
        tmp_path,
        f'[ "$1" = --import ] && [ "$(head -c 3 "$2")" = NVR ] && [ "$3 $4 $5 $6 $7" = "--csv --page raw --print-units base" ]'
        f' && [ "$LC_ALL" = C ] && cat {tmp_path / "log.csv"}',
    )
    ledger = read(report)
    assert ledger.kernels == read(FOLDER / f"{TF32}.csv.gz").kernels
    assert ledger.header.model == TF32


@pytest.mark.parametrize(
    "script",
    ["echo '==ERROR== Failed to load report file'; exit 1", "echo '==ERROR== Failed to load report file'", "exit 3"],
)
def test_ncu_that_cannot_open_it(script: str, report: Path, tmp_path: Path) -> None:
    install_ncu(tmp_path, script)
    with pytest.raises(BadFile, match="ncu could not open"):
        read(report)


class Metric:
    def __init__(self, unit: str, value: Any) -> None:
        self._unit, self._value = unit, value

    def unit(self) -> str:
        return self._unit

    def value(self) -> Any:
        return self._value


class Action:
    NameBase_DEMANGLED = 1

    def __init__(self, name: str, metrics: dict[str, Metric], ranges: list[str]) -> None:
        self._name, self._metrics, self._ranges = name, metrics, ranges

    def name(self, base: int) -> str:
        return self._name

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __getitem__(self, name: str) -> Metric:
        return self._metrics[name]

    def metric_by_name(self, name: str) -> Metric | None:
        return self._metrics.get(name)

    def nvtx_state(self) -> Any:
        domain = SimpleNamespace(push_pop_ranges=lambda: self._ranges)
        return SimpleNamespace(domains=lambda: [0], domain_by_id=lambda number: domain)


def actions() -> list[Action]:
    header, units, *rows = table(real(TF32))
    first = header.index("CC") + 1

    def number(text: str) -> Any:
        try:
            return float(text.replace(",", ""))
        except ValueError:
            return text

    return [
        Action(row[header.index("Kernel Name")],
               {name: Metric(unit, number(text)) for name, unit, text in zip(header[first:], units[first:], row[first:], strict=True)},
               ["conv2"])
        for row in rows
    ]  # fmt: skip


def test_through_the_package(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_report(path: str) -> list[list[Action]]:
        assert Path(path).read_bytes() == REPORT
        return [actions()]

    monkeypatch.setitem(sys.modules, "ncu_report", SimpleNamespace(load_report=load_report))
    ledger = read(report)
    before = read(FOLDER / f"{TF32}.csv.gz")
    assert ledger.header.device == "NVIDIA H200" and ledger.header.target == "cuda:90"
    for kernel, same in zip(ledger.kernels, before.kernels, strict=True):
        assert (kernel.name, kernel.grid, kernel.block, kernel.stream) == (
            same.name,
            same.grid,
            same.block,
            same.stream,
        )
        assert (kernel.time_s, kernel.label, kernel.quantities) == (
            pytest.approx(same.time_s),
            same.label,
            same.quantities,
        )


def test_a_report_that_the_package_cannot_open(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise RuntimeError("newer version")

    monkeypatch.setitem(sys.modules, "ncu_report", SimpleNamespace(load_report=fail))
    with pytest.raises(BadFile, match="newer version"):
        read(report)
    monkeypatch.setitem(sys.modules, "ncu_report", SimpleNamespace(load_report=lambda path: []))
    with pytest.raises(BadFile, match="holds no kernels"):
        read(report)
