"""A Trainer of transformers, with an evaluation and a checkpoint in the middle."""

from rooflight.models.optional_packages import declare_missing_operators

declare_missing_operators()  # where torchvision was built for another torch

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from weights import fingerprint

torch.set_num_threads(1)
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
tokens = torch.randint(64, (48, 16))
data = [{"input_ids": row, "labels": row} for row in tokens]
arguments = TrainingArguments(
    sys.argv[1], per_device_train_batch_size=4, max_steps=14, eval_strategy="steps", eval_steps=6, save_steps=6,
    logging_steps=1, report_to=[], use_cpu=True, seed=0, disable_tqdm=True, save_total_limit=1,
)  # fmt: skip
trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:8])
trainer.train()
print("losses", [row["loss"] for row in trainer.state.log_history if "loss" in row])
print("weights", fingerprint(model))
