"""Two replicas under torchrun."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from weights import fingerprint

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
replica = DistributedDataParallel(net)
optimizer = torch.optim.SGD(replica.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(rank)
for _ in range(int(os.environ.get("STEPS", "12"))):
    loss = nn.functional.cross_entropy(replica(torch.randn(16, 32)), torch.randint(10, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print("loss", loss.item())
if rank == 0:
    print("weights", fingerprint(net))
dist.destroy_process_group()
time.sleep(0.5)  # gloo's thread drops its last work; while the interpreter ends it cannot, and torch aborts
