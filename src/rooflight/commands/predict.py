"""`rooflight predict MODEL --on DEVICES`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooflight.commands.step_options import check_positive, check_step, quiet_model, step_arguments, step_options
from rooflight.errors import BadInput

if TYPE_CHECKING:
    from rooflight.prediction.result import Predictions


@click.command(short_help="how long a step takes on a device, here or elsewhere")
@click.argument("model")
@step_options
@click.option("--on", "devices", default="h200", show_default=True, metavar="DEVICE,...",
              help="See `rooflight list devices`; or a .toml file; or `here`.")
@click.option("--tier", type=click.Choice(["calibrated", "transferred", "spec"]),
              help="How times are found. Default: the best there is for the device.")
@click.option("--ppp", type=float, help="Platform percent of peak, as a fraction: PALEO's constant (asks for --tier spec).")
@click.option("--calibration", type=click.Path(path_type=Path), help="A file of `rooflight calibrate`.")
@click.option("--graphs", is_flag=True, help="The step as one CUDA graph.")
@click.option("--epochs", type=int, help="With --dataset-size: the time of a whole training run.")
@click.option("--dataset-size", type=int, help="Samples in an epoch.")
@click.option("--price", type=float, help="What an hour of one device costs.")
@click.option("--roofline", is_flag=True, help="With --json: roofs, ridges, and every op as a point.")
@click.option("--gpus", type=int, default=1, show_default=True, help="GPUs in a node.")
@click.option("--nodes", type=int, default=1, show_default=True)
@click.option("--parallel", help="ddp, fsdp, zero1, zero2, zero3, tp, pp, or TPxPPxDP such as 8x4x2.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to a file: .json or .md.")
@click.option("--force", is_flag=True, help="Write over an existing file.")
def command(**options: Any) -> None:
    """How long a step of MODEL takes, on GPUs that are here and GPUs that are not.

    MODEL is named as for `rooflight estimate`. Several batches and devices are given with commas.
    """
