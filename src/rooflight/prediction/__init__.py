"""From a ledger and a device to time, throughput and bound. Nothing here needs torch or the device itself."""
