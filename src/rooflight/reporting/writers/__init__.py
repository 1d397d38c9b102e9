"""A document in every form that it can have: one writer a file, all of them reading the same sections and tables."""
