"""The workspaces that cuDNN takes, for the table that comes with rooflight.

usage: workspaces.py OUT.json.gz SECONDS    (needs a CUDA GPU; hardware/calibrations/h200-workspaces.json.gz is one)
"""

import sys
from pathlib import Path

import torch

from rooflight.calibration.workspaces import record
from rooflight.hardware.recorded_tables import encode

found = record(torch.device("cuda"), float(sys.argv[2]), print)
Path(sys.argv[1]).write_bytes(encode(found))
print({points.precision: len(points.rows) for points in found.points})
