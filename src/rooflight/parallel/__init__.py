"""A model on many GPUs, described: its blocks, the layout of ranks, what joins them, what each does of an op."""
