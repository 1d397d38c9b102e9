"""Training steps that are not rooflight's to compose, as people write them, and how each is looked at."""
