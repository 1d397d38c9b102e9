"""`--real-data`: the step is really run, on the CPU, to see its ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from rooflight.spec import StepSpec

real_data_option = click.option(
    "--real-data",
    is_flag=True,
    help="Run the step once on this machine's CPU, on random data, to see its ops: for models whose data decides what "
    "runs.",
)


def check_real_data(spec: StepSpec, options: Mapping[str, Any]) -> None:
    """One line for a model that this machine has no room for."""
    if not options["real_data"]:
        return
    import torch
    from msgspec.structs import replace

    from rooflight.measurement.room import refuse_what_cannot_fit
    from rooflight.models.resolve import workload_of

    one = replace(spec, batch=next(iter(spec.batches), None))
    workload = workload_of(one, one, (), None, device="meta")
    refuse_what_cannot_fit(torch.device("cpu"), one, workload, instead="leave --real-data out")
