"""Charts: one definition each, in Altair, for the interactive page, for pictures, and as a table for all else."""
