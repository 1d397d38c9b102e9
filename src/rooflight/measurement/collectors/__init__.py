"""What measures a step, a collector a kind of number; `gpu` and `cpu` say in which order they run on each."""
