"""Runs a script as it is, with torch's own counter around one of its steps: `python count_flops.py STEP SCRIPT ...`."""

import runpy
import sys

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.flop_counter import FlopCounterMode

step, sys.argv = int(sys.argv[1]), sys.argv[2:]
counter = FlopCounterMode(display=False)
steps = 0


def stepped(*_):
    global steps
    steps += 1
    if steps == step - 1:
        counter.__enter__()
    elif steps == step:
        counter.__exit__(None, None, None)
        # In one piece: another rank may write at the same time.
        sys.stdout.write(f"\nFLOPs of the step: {counter.get_total_flops()}\n")
        sys.stdout.flush()


register_optimizer_step_post_hook(stepped)
runpy.run_path(sys.argv[0], run_name="__main__")
