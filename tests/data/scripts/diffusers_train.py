"""In the style of diffusers' example for unconditional images: a UNet, a noise scheduler, Accelerate, EMA."""

from rooflight.models.optional_packages import declare_missing_operators

declare_missing_operators()  # where torchvision was built for another torch

import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from torch.nn import functional as F
from torch.utils.data import DataLoader
from weights import fingerprint

torch.manual_seed(0)
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
model = UNet2DModel(
    sample_size=8, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=8,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)  # fmt: skip
ema_model = EMAModel(model.parameters(), decay=0.99, model_cls=UNet2DModel, model_config=model.config)
noise_scheduler = DDPMScheduler(num_train_timesteps=100)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
train_dataloader = DataLoader([{"input": image} for image in torch.randn(20, 3, 8, 8)], batch_size=2, shuffle=True)
lr_scheduler = get_scheduler("cosine", optimizer=optimizer, num_warmup_steps=2, num_training_steps=10)
model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(model, optimizer, train_dataloader, lr_scheduler)
for batch in train_dataloader:
    clean = batch["input"]
    noise = torch.randn(clean.shape)
    timesteps = torch.randint(0, noise_scheduler.config.num_train_timesteps, (clean.shape[0],)).long()
    noisy = noise_scheduler.add_noise(clean, noise, timesteps)
    with accelerator.accumulate(model):
        loss = F.mse_loss(model(noisy, timesteps).sample.float(), noise.float())
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        ema_model.step(model.parameters())
    print("loss", loss.detach().item(), lr_scheduler.get_last_lr()[0])
print("weights", fingerprint(accelerator.unwrap_model(model)))
