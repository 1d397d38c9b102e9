"""`rooflight.compare`: two ledgers side by side, and why they differ."""

from __future__ import annotations

from pathlib import Path

from rooflight.analysis.comparison.sides import Comparison, with_its_estimate
from rooflight.files import load
from rooflight.hardware.device import Device
from rooflight.ledger import Ledger
from rooflight.prediction.resolve_devices import device_of


def compare(
    a: Ledger | str | Path, b: Ledger | str | Path | None = None, *, on: str | Device | None = None
) -> Comparison:
    """Compare two ledgers or their files; a measured one alone with the estimate of the same step; an estimate alone
    with its prediction on the device `on`.

    >>> found = rooflight.compare("recorded:h200/vgg19-infer-fp32")
    >>> [(cause.name, cause.b) for why in found.whys for cause in why.causes]
    """
    device = device_of(on) if isinstance(on, str) else on
    first = a if isinstance(a, Ledger) else load(a)
    if b is None:
        return with_its_estimate(first, first.header.model if isinstance(a, Ledger) else str(a), on=device)
    return Comparison(first, b if isinstance(b, Ledger) else load(b), on=device)
