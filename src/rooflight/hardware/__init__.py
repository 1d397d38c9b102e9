"""Devices and what is known of them: peaks, bandwidths, sizes and links, every number with its source and its date."""
