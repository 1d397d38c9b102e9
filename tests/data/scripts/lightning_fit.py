"""A module of Lightning, with its check before training and a validation."""

from rooflight.models.optional_packages import declare_missing_operators

declare_missing_operators()  # where torchvision was built for another torch

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from weights import fingerprint

torch.set_num_threads(1)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        print("loss", loss.item())
        return loss

    def validation_step(self, batch, index):
        print("validated", nn.functional.cross_entropy(self.net(batch[0]), batch[1]).item())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


lightning.seed_everything(0, verbose=False)
classifier = Classifier()
data = TensorDataset(torch.randn(96, 32), torch.randint(10, (96,)))
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, gradient_clip_val=1.0,
)  # fmt: skip
trainer.fit(classifier, DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=48))
print("weights", fingerprint(classifier))
