"""A loop with Accelerate, as its documentation has it; `accelerator.accumulate` holds two passes together."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from weights import fingerprint

torch.manual_seed(0)
torch.set_num_threads(1)
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
classifier = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(classifier.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(384, 32), torch.randint(10, (384,))), batch_size=16, shuffle=True)
classifier, optimizer, loader = accelerator.prepare(classifier, optimizer, loader)
for inputs, labels in loader:
    with accelerator.accumulate(classifier):
        loss = nn.functional.cross_entropy(classifier(inputs), labels)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(classifier.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print("loss", loss.item())
print("weights", fingerprint(accelerator.unwrap_model(classifier)))
