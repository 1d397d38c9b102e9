"""A loop as in a tutorial: dropout, a data loader with workers, AdamW, a scheduler."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from weights import fingerprint

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
data = TensorDataset(torch.randn(96, 32), torch.randint(10, (96,)))

for _ in range(2):  # the second epoch's workers are started in the step that is recorded
    for inputs, labels in DataLoader(data, batch_size=16, shuffle=True, num_workers=2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        print("loss", loss.item())
print("weights", fingerprint(net))
