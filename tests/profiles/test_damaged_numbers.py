"""Numbers that no counter can have given, in every kind of log: one clear line, or a ledger; never a crash."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rooflight.commands.import_ import command
from rooflight.errors import BadFile, RooflightError
from rooflight.profiles import read
from tests.fixtures.import_logs import console, details_page, real
from tests.profiles.test_ncu_text import SECTIONS
from tests.profiles.test_nvprof import CSV as NVPROF_CSV
from tests.profiles.test_nvprof import TEXT as NVPROF_TEXT
from tests.profiles.test_traces import NSYS, small_trace

RAW = real("mnist_conv2_64_tf32")
LOGS = {
    "ncu raw page": RAW,
    "ncu details page": details_page(RAW),
    "ncu console": console(RAW),
    "ncu console before 2022": console(RAW, old=True),
    "ncu sections": SECTIONS,
    "nsys": NSYS,
    "nvprof text": NVPROF_TEXT,
    "nvprof CSV": NVPROF_CSV,
    "Chrome trace": json.dumps(small_trace()),
}
FLOPS = "1,358,954,496"


def refused(folder: Path, text: str) -> str:
    path = folder / "log"
    path.write_text(text)
    with pytest.raises(BadFile) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 500
    return message


@pytest.mark.parametrize(
    ("kind", "old", "new", "said"),
    [
        ("ncu raw page", FLOPS, f"-{FLOPS}", "nothing counts below zero"),
        ("ncu console", FLOPS, f"-{FLOPS}", "nothing counts below zero"),
        ("nvprof text", "        2000\n", "       -2000\n", "flop_count_sp is '-2000', '1000', '3000': nothing counts"),
        ("nvprof text", "  1000        3000", " -1000        3000", "nothing counts below zero"),
        ("nvprof text", "        2000\n", f"  {'9' * 20}\n", "no counter of 64 bits"),
        ("nvprof CSV", ",673384360\n", f",{'9' * 400}\n", "flop_count_sp is '999"),
        ("nvprof CSV", ",673384360\n", ",-5\n", "nothing counts below zero"),
        ("nsys", "1005000,2000", f"1005000,{'9' * 5000}", "Duration is '999"),
        ("nsys", ",4.194,", f",{'9' * 25},", "Bytes is '9999999999999999999999999': no counter"),
        ("ncu console", "CC 9.0", f"CC {'9' * 400}.0", "is no compute capability"),
        ("ncu raw page", '"9.0"', '"nine"', "'nine' is no compute capability"),
    ],
)
def test_numbers_that_nothing_counted(kind: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in LOGS[kind]
    assert said in refused(tmp_path, LOGS[kind].replace(old, new, 1))


def test_a_summary_of_too_many_launches_is_refused_before_they_are_made(tmp_path: Path) -> None:
    text = LOGS["nvprof CSV"].replace('",3,"', '",999999999,"')
    assert "999,999,999 launches, more than the 1,000,000" in refused(tmp_path, text)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_number_in_any_log_is_shown_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    text = LOGS[data.draw(st.sampled_from(sorted(LOGS)))]
    numbers = list(re.finditer(r"\d[\d.,]*", text))
    number = data.draw(st.sampled_from(numbers))
    other = data.draw(st.sampled_from(["9" * 25, "9" * 400, "9" * 5000, f"-{number[0]}", "-1", "1e400", "0x1p9", "٣"]))
    path = tmp_path / "log"
    path.write_text(text[: number.start()] + other + text[number.end() :])
    result = CliRunner().invoke(command, [str(path), *data.draw(st.sampled_from([[], ["--json"], ["--csv"]]))])
    assert result.exception is None or isinstance(result.exception, (RooflightError, SystemExit)), result.exc_info


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_log_that_lost_a_part_is_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    text = LOGS[data.draw(st.sampled_from(sorted(LOGS)))]
    start, hole = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 400))
    rubbish = data.draw(st.text(alphabet='",\n\r0x.=\0é', max_size=8))
    for damaged in (text[:start], text[:start] + rubbish + text[start + hole :]):
        (tmp_path / "log").write_text(damaged)
        try:
            ledger = read(tmp_path / "log")
        except BadFile:
            continue
        assert ledger.kernels
