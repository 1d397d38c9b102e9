"""How long a device takes for work: micro-benchmarks that `rooflight calibrate` runs, and times that are there."""
