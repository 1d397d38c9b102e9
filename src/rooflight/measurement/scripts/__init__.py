"""`rooflight run --ops`: the steps of somebody's training or inference script, which knows nothing of it.

A folder first on PYTHONPATH (`bootstrap`) lets every Python of the program watch for the import of torch, and do no
more. Where torch comes, `steps` finds the program's steps: a step of training ends with that of an optimizer, one of
inference with the call of a model. `schedule` decides what each of them is used for:

1. The first few are left alone: they set things up.
2. A few are timed, from the end of one to the end of the next.
3. One is recorded op by op.
4. On a GPU the next give counters, one pass each.

Then everything is taken away again and the program runs on by itself. Nothing of this changes what it computes, and
nothing that goes wrong here reaches it. What there is so far lies in the folder of `rooflight run` after each of these
(`status` says how far it came), so that a program which is killed leaves it too; `results` reads it there.
"""
