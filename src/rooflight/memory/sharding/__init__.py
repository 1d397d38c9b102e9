"""What one of many GPUs allocates: one GPU's script, cut up as tensor, pipeline and data parallelism cut the step."""
