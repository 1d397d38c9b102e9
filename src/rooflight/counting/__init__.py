"""What can be read off names: of hardware counters, and of kernels. Needs neither a GPU nor torch."""
