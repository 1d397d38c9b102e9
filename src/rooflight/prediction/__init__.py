"""From a step and devices to time, capacity and throughput, on one GPU or many. Needs neither torch nor the device."""
