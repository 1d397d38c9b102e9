"""Charts: one definition each, in Vega-Lite, for the interactive page, for pictures, and as a table for all else."""
