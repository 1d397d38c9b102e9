"""A step on an NVIDIA GPU: its collectors, and what the allocator says."""
