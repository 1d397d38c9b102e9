"""Micro-benchmarks that `rooflight calibrate` runs: how long a device takes for work of our own choosing."""
