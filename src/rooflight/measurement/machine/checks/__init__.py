"""What `rooflight doctor` looks at: one small function a condition, each of which stands alone."""
