"""What every test process needs before torch is used."""

import os

# torch's profiler reads this once, at its first use in a process, and from 2.13 on tells of every start and stop.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
