"""How the plain step is run: eagerly, through torch.compile, or as a captured CUDA graph."""
