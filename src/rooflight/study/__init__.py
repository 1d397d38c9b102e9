"""A grid of steps and devices: every cell estimated, predicted and, where its device is here, measured.

`cell` says what a cell is and what became of it, `plan` reads a study's file into cells, `store` keeps its folder,
`work` does what a cell asks for, `launch` gives cells to processes or to a cluster, `hypotheses` and `trends` read the
rows.
"""
