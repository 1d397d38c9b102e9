"""What a step takes of a device's memory: the model of torch's allocator, played before anything runs."""
