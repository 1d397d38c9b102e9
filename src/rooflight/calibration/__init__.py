"""Micro-benchmarks: how long this device takes for works of our own choosing. `rooflight calibrate` runs them."""
