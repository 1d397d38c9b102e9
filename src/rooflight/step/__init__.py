"""A traced step as a thing to compute with: distinct ops with costs and tasks, other batches. No torch."""
