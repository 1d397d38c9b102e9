"""Every command line that cannot be run is answered with one line: its code and its facts are here, its wording in
golden/errors.txt."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from rooflight import recordings
from rooflight.errors import RooflightError
from tests.commands.refused_lines import HERE, REFUSED
from tests.fixtures.import_logs import FOLDER, real
from tests.fixtures.paths import DATA

NO_GPU = {line for line, answer in HERE.items() if answer.startswith(("no-gpu", "no-driver"))}


@pytest.fixture(scope="module")
def wrong_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mistakes are made with: files that are no ledgers, one of the future, damaged ones, and a folder."""
    folder = tmp_path_factory.mktemp("wrong")
    good = recordings.path("recorded:h200/mnist-cnn-infer-fp32").read_bytes()
    (folder / "taken.json").write_text("precious")
    (folder / "newer.json").write_text('{"format_version": 999}')
    (folder / "changed.json").write_text(json.dumps({"format_version": 4, "header": {}}))
    (folder / "cut.json.gz").write_bytes(good[: len(good) // 2])
    (folder / "garbled.json.gz").write_bytes(good[:200] + bytes(200) + good[400:])
    (folder / "empty.csv").touch()
    (folder / "folder").mkdir()
    (folder / "text.md").write_text("# Notes\nnothing here\n")
    (folder / "run.csv").write_text("op,m,n,k,dtype,time_us\ngemm,512,4096,1024,fp32,460\n")
    (folder / "cut.csv").write_text(real("resnet50_b16_tf32")[:9000])
    shutil.copy(FOLDER / "mnist_conv2_64_tf32.csv.gz", folder / "log.csv.gz")
    for name in ("estimate", "regions", "calibration"):
        shutil.copy(DATA / "formats_6dd1d43" / f"{name}.json.gz", folder)
    return folder


@pytest.fixture
def run(run, wrong_files, monkeypatch):
    """In the folder of wrong files, without ranks and without calibrations of this machine."""
    monkeypatch.chdir(wrong_files)
    monkeypatch.setenv("XDG_DATA_HOME", str(wrong_files / "nowhere"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return run


@pytest.mark.parametrize("line", [*REFUSED, *HERE])
def test_what_cannot_be_run_is_one_line_with_its_code_and_facts(run, wrong_files, line):
    if line in NO_GPU and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    before = sorted(wrong_files.iterdir())
    code, out, err = run(*shlex.split(line))
    assert (code, out) == (2, "")
    assert err.startswith("rooflight: ") and err.count("\n") == 1
    wanted, *facts = (REFUSED | HERE)[line].split()
    assert run.code == wanted, err
    assert [fact for fact in facts if not tells(err, fact)] == [], err
    assert sorted(wrong_files.iterdir()) == before
    assert (wrong_files / "taken.json").read_text() == "precious"


def tells(line: str, fact: str) -> bool:
    """Does the line have this name, number or option as a word of its own?"""
    return re.search(rf"(?<![\w-]){re.escape(fact)}(?![\w])", line) is not None


def test_errors_read_as_on_their_golden_page(run, wrong_files, golden):
    read = set()
    for line in REFUSED:
        _, _, err = run(*shlex.split(line))
        if isinstance(run.error, RooflightError):
            read.add(err.replace("rooflight", run.code, 1).replace(str(wrong_files), "FOLDER"))
    golden("errors", "".join(sorted(read)))
