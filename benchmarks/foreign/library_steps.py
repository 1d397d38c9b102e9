"""Steps as users of libraries write them; nothing is downloaded: models are made from configurations."""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from foreign.plain_steps import Made, Make, image_net, images
from rooflight.models.optional_packages import declare_missing_operators


def _tokens(device: str, small: bool, words: int) -> torch.Tensor:
    return torch.randint(words, (2, 16) if small else (8, 512), device=device)


def _llama(device: str, small: bool) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers, words = (64, 2, 256) if small else (1024, 8, 32000)
    config = LlamaConfig(
        hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers, num_attention_heads=max(2, width // 64),
        num_key_value_heads=max(1, width // 128), vocab_size=words, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(device)


def lora(device: str, small: bool) -> Made:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.05, task_type="CAUSAL_LM"
    )
    model = get_peft_model(_llama(device, small), config)
    model.train()
    optimizer = torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), lr=2e-4)
    tokens = _tokens(device, small, model.config.vocab_size)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, (tokens,)


def diffusion(device: str, small: bool) -> Made:
    from diffusers import DDPMScheduler, UNet2DModel
    from diffusers.training_utils import EMAModel

    widths, side, batch = ((32, 64), 16, 2) if small else ((128, 256, 256, 512), 64, 16)
    blocks = len(widths)
    unet = UNet2DModel(
        sample_size=side, block_out_channels=widths, layers_per_block=1 if small else 2,
        down_block_types=("DownBlock2D",) * (blocks - 1) + ("AttnDownBlock2D",),
        up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * (blocks - 1),
    ).to(device)  # fmt: skip
    noising = DDPMScheduler(num_train_timesteps=1000)
    average = EMAModel(unet.parameters(), decay=0.9999, use_ema_warmup=True)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    clean = torch.randn(batch, 3, side, side, device=device)

    def step(clean: torch.Tensor) -> float:
        noise = torch.randn_like(clean)
        times = torch.randint(0, noising.config.num_train_timesteps, (len(clean),), device=clean.device)
        noisy = noising.add_noise(clean, noise, times)
        loss = F.mse_loss(unet(noisy, times).sample, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.step(unet.parameters())
        return loss.detach().item()

    return step, (clean,)


def trainer(device: str, small: bool) -> Made:
    from transformers import Trainer, TrainingArguments

    model = _llama(device, small)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), report_to=[], use_cpu=device == "cpu", bf16=True, gradient_checkpointing=False,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments)
    trainer.create_optimizer_and_scheduler(num_training_steps=1000)
    tokens = _tokens(device, small, model.config.vocab_size)
    batch = {"input_ids": tokens, "labels": tokens}
    prepared = trainer.accelerator.prepare(model)
    trainer.current_gradient_accumulation_steps = 1  # as its loop sets it

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = trainer.training_step(prepared, dict(batch))
        trainer.accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
        prepared.zero_grad()
        return loss

    return step, (batch,)


def accelerated(device: str, small: bool) -> Made:
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=1, mixed_precision="bf16", cpu=device == "cpu")
    model = _llama(device, small)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    tokens = _tokens(device, small, model.config.vocab_size)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return loss.detach()

    return step, (tokens,)


def lightning(device: str, small: bool) -> Made:
    """A whole `fit` of one batch: what surrounds the step is part of it."""
    import lightning.pytorch as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = image_net(8 if small else 64)

        def training_step(self, batch: Any, place: int) -> torch.Tensor:
            pictures, labels = batch
            loss = F.cross_entropy(self.net(pictures), labels)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    model = Classifier().to(device)
    pictures, labels = images(device, small)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(pictures, labels), batch_size=len(labels))

    def step() -> None:
        fitter = pl.Trainer(
            accelerator="gpu" if device == "cuda" else "cpu", devices=1, max_steps=1, logger=False, barebones=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        )  # fmt: skip
        fitter.fit(model, loader)

    return step, ()


def timm_step(device: str, small: bool) -> Made:
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV2

    model = timm.create_model("resnet18" if small else "convnext_tiny", num_classes=10).to(device)
    optimizer = create_optimizer_v2(model, opt="lamb", lr=5e-3, weight_decay=0.02)
    average = ModelEmaV2(model, decay=0.9998)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=10)
    criterion = SoftTargetCrossEntropy()
    batch, side = (2, 64) if small else (64, 224)
    pictures = torch.randn(batch, 3, side, side, device=device)
    labels = torch.randint(10, (batch,), device=device)

    def step(pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        mixed, wanted = mixup(pictures.clone(), labels)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = criterion(model(mixed), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        return loss.detach()

    return step, (pictures, labels)


def _ready(make: Make) -> Make:
    """Libraries import each other: torchvision beside another torch has to be made ready first."""

    def made(device: str, small: bool) -> Made:
        warnings.simplefilter("ignore")
        declare_missing_operators()
        return make(device, small)

    return made


LIBRARY: dict[str, Make] = {
    "LoRA (peft)": _ready(lora),
    "diffusion (diffusers)": _ready(diffusion),
    "Trainer": _ready(trainer),
    "Accelerate": _ready(accelerated),
    "Lightning": _ready(lightning),
    "timm": _ready(timm_step),
}
