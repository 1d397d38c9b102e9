"""Comparison: two ledgers of a step side by side, joined by the keys of their ops."""
