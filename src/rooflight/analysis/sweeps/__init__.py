"""What the kernels of an op read and write, one after the other, by their names and grids."""
