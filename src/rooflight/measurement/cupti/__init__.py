"""Hardware counters of NVIDIA GPUs: CUPTI's range profiler inside the process, or ncu around it."""
