"""In the style of nanoGPT: an evaluation first, gradient accumulation, autocast, a cosine schedule, clipping."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from weights import fingerprint

torch.manual_seed(0)
torch.set_num_threads(1)
WIDTH, HEADS, BLOCK, VOCABULARY, PASSES = 32, 4, 16, 64, 3


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        query, key, value = (
            part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.c_attn(x).split(WIDTH, dim=2)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = SelfAttention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.h = nn.ModuleList([Block(), Block()])
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


text = torch.randint(VOCABULARY, (4096,))


def get_batch():
    places = torch.randint(len(text) - BLOCK - 1, (4,))
    return tuple(torch.stack([text[place + by : place + by + BLOCK] for place in places]) for by in (0, 1))


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = [model(*get_batch())[1].item() for _ in range(10)]
    model.train()
    return sum(losses) / len(losses)


model = GPT()
decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cpu", enabled=False)
for number in range(12):
    for group in optimizer.param_groups:
        group["lr"] = 1e-4 + 0.5 * (1.0 + math.cos(math.pi * number / 12)) * 9e-4
    if number % 6 == 0:
        print("evaluated", estimate_loss())
    for _ in range(PASSES):
        with torch.amp.autocast("cpu", dtype=torch.bfloat16):
            _, loss = model(*get_batch())
            loss = loss / PASSES
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print("loss", loss.item() * PASSES)
print("weights", fingerprint(model))
