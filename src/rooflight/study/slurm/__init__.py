"""The launcher of a cluster: every cell a task of a Slurm array, submitted through submitit.

`options` says what is asked of Slurm, `submission` makes arrays of cells, `task` is what runs on a node, `queue` asks
Slurm what became of tasks, `records` remembers them in the study's folder, `launcher` submits them and `follower`
follows them to their end; `placement` tells which options go with a cell's device.
"""
