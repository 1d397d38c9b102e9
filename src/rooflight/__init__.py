"""rooflight: what a PyTorch model costs, by mathematics and by measurement, operation by operation.

    >>> import rooflight
    >>> ledger = rooflight.estimate("resnet50", batch=16, step="train")
    >>> ledger.to_pandas()

Names are imported when they are used, so that `import rooflight` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rooflight._version import __version__

if TYPE_CHECKING:
    from rooflight.analysis.comparison.api import compare
    from rooflight.callbacks.api import log_training
    from rooflight.errors import RooflightError
    from rooflight.estimation.api import estimate
    from rooflight.files import load, save
    from rooflight.ledger import Ledger, Op
    from rooflight.measurement.api import measure
    from rooflight.measurement.live import LiveRecording, record
    from rooflight.measurement.regions import Region, region, regions, regions_ledger, save_regions
    from rooflight.ops.kernel_task import Task
    from rooflight.ops.registry import Work, formula, task
    from rooflight.prediction.accuracy import accuracy
    from rooflight.prediction.api import predict
    from rooflight.prediction.recorded_calibration import calibration_from
    from rooflight.profiles.joined_ranks import join
    from rooflight.reporting.report.api import report
    from rooflight.study.api import study

_HOMES = {
    "calibration_from": "rooflight.prediction.recorded_calibration",
    "accuracy": "rooflight.prediction.accuracy",
    "compare": "rooflight.analysis.comparison.api",
    "estimate": "rooflight.estimation.api",
    "formula": "rooflight.ops.registry",
    "Work": "rooflight.ops.registry",
    "task": "rooflight.ops.registry",
    "Task": "rooflight.ops.kernel_task",
    "load": "rooflight.files",
    "save": "rooflight.files",
    "Ledger": "rooflight.ledger",
    "Op": "rooflight.ledger",
    "RooflightError": "rooflight.errors",
    "join": "rooflight.profiles.joined_ranks",
    "log_training": "rooflight.callbacks.api",
    "measure": "rooflight.measurement.api",
    "predict": "rooflight.prediction.api",
    "record": "rooflight.measurement.live",
    "LiveRecording": "rooflight.measurement.live",
    "report": "rooflight.reporting.report.api",
    "region": "rooflight.measurement.regions",
    "Region": "rooflight.measurement.regions",
    "regions": "rooflight.measurement.regions",
    "regions_ledger": "rooflight.measurement.regions",
    "save_regions": "rooflight.measurement.regions",
    "study": "rooflight.study.api",
}

__all__ = [
    "Ledger",
    "LiveRecording",
    "Op",
    "Region",
    "RooflightError",
    "Task",
    "Work",
    "__version__",
    "accuracy",
    "calibration_from",
    "compare",
    "estimate",
    "formula",
    "join",
    "load",
    "log_training",
    "measure",
    "predict",
    "record",
    "region",
    "regions",
    "regions_ledger",
    "report",
    "save",
    "save_regions",
    "study",
    "task",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rooflight' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
