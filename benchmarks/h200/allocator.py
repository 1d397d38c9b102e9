"""Random sequences of allocating and freeing through torch's own CUDA allocator: what it says after every step of them.

usage: allocator.py OUT.json.gz    (needs a CUDA GPU; tests/data/h200_allocator.json.gz is such a file)

Every group of settings runs in a process of its own, since torch reads them once. Addresses are kept because the
allocator takes the lower one of two free blocks of equal size, and where the driver puts a segment is its own business.
"""

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

SETTINGS = (
    ("", None),
    ("", 2e8),
    ("expandable_segments:True", None),
    ("expandable_segments:True", 2e8),
    ("max_split_size_mb:40", None),
    ("max_split_size_mb:40", 2e8),
    ("roundup_power2_divisions:4", None),
    ("roundup_power2_divisions:[4:1,32:2,>:8]", None),
    ("garbage_collection_threshold:0.6", 2e8),
    ("garbage_collection_threshold:0.6", None),
    ("large_segment_size_mb:12", None),
    ("expandable_segments:True,large_segment_size_mb:12", 2e8),
)
"""What PYTORCH_CUDA_ALLOC_CONF says, and how many bytes the process may have."""
SEEDS, LENGTH = 4, 400
EDGES = (512, 513, 1 << 20, (1 << 20) + 1, 2 << 20, (10 << 20) - 1, 10 << 20, (10 << 20) + 1, 20 << 20)


def size(draw: random.Random) -> int:
    kind = draw.random()
    if kind < 0.3:
        return draw.randint(1, 4096)
    if kind < 0.95:
        low, high = (9, 20.5) if kind < 0.5 else (19, 24.5) if kind < 0.8 else (22, 28)
        return int(2 ** draw.uniform(low, high))
    return draw.choice(EDGES)


def sequence(seed: int) -> list[dict[str, object]]:
    """What happens and what the allocator says: [what, bytes or which, allocated, reserved, address]."""
    import torch

    draw, live, log = random.Random(seed), {}, []
    most = draw.choice((15, 60, 150))
    torch.cuda.empty_cache()
    for number in range(LENGTH):
        chance = draw.random()
        what, which, address = "free", 0, 0
        if chance < 0.004:
            what = "empty"
            torch.cuda.empty_cache()
        elif live and (len(live) > most or chance < 0.45):
            which = draw.choice(sorted(live))
            del live[which]
        else:
            what, which = "allocate", size(draw)
            try:
                live[number] = torch.empty(which, dtype=torch.uint8, device="cuda")
                address = live[number].data_ptr()
            except torch.cuda.OutOfMemoryError:
                what = "fail"
        stats = torch.cuda.memory_stats()
        log.append([what, which, stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"], address])
    return log


def run_one(settings: str, capacity: float | None) -> dict[str, object]:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = settings
    import torch

    torch.cuda.init()
    allowed = None
    if capacity is not None:
        fraction = capacity / torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(fraction)
        allowed = int(fraction * torch.cuda.mem_get_info()[1])
    return {"settings": settings, "capacity": allowed, "device": torch.cuda.get_device_name(),
            "torch": str(torch.__version__), "sequences": [sequence(seed) for seed in range(SEEDS)]}  # fmt: skip


def main() -> None:
    if len(sys.argv) == 3:
        settings, capacity = SETTINGS[int(sys.argv[2])]
        print(json.dumps(run_one(settings, capacity)))
        return
    commands = [[sys.executable, __file__, sys.argv[1], str(number)] for number in range(len(SETTINGS))]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
    found = [json.loads(process.communicate()[0]) for process in running]
    Path(sys.argv[1]).write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))
    for row in found:
        failed = sum(entry[0] == "fail" for log in row["sequences"] for entry in log)
        print(row["settings"] or "default", row["capacity"], "failed requests:", failed)


main()
