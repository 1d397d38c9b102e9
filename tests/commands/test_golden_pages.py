"""Whole pages of the terminal, word for word as on their golden pages."""

from __future__ import annotations

import shlex

import pytest

from tests.fixtures.import_logs import FOLDER

PAGES = {
    "estimate": "estimate mnist-cnn --batch 64 --step train",
    "report": "report recorded:h200/mnist-cnn-train-tf32",
    "import": f"import {FOLDER / 'mnist_conv2_64_tf32.csv.gz'}",
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_reads_as_its_golden_page(run, golden, name):
    code, out, err = run(*shlex.split(PAGES[name]), columns=100)
    assert code == 0, err
    text, _, _ = out.partition("\none trace of ")  # versions of this machine's packages
    golden(name, "".join(f"{line.rstrip()}\n" for line in text.splitlines()))
