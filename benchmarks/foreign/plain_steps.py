"""Steps that need torch alone. `make(device, small)` gives the step and what it is called with."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Made = tuple[Callable[..., Any], tuple[Any, ...]]
Make = Callable[[str, bool], Made]


def image_net(width: int, classes: int = 10, channels: int = 3) -> nn.Sequential:
    """Four convolutions, the last three halve the picture."""
    layers: list[nn.Module] = []
    sizes = [channels, width, 2 * width, 4 * width, 4 * width]
    for place, (before, after) in enumerate(pairwise(sizes)):
        stride = 2 if place else 1
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))


def images(device: str, small: bool) -> tuple[torch.Tensor, torch.Tensor]:
    batch, side = (4, 16) if small else (64, 112)
    return torch.randn(batch, 3, side, side, device=device), torch.randint(10, (batch,), device=device)


class TextClassifier(nn.Module):
    """An encoder of torch's own with a head."""

    def __init__(self, width: int, layers: int, words: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, max(1, width // 64), 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens)).mean(1))


def clipping_and_groups(device: str, small: bool) -> Made:
    model = TextClassifier(*(64, 2) if small else (768, 6)).to(device)
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    plain = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=3e-4
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    batch, length = (4, 16) if small else (16, 256)
    tokens = torch.randint(1000, (batch, length), device=device)
    labels = torch.randint(10, (batch,), device=device)

    def step(tokens: torch.Tensor, labels: torch.Tensor) -> float:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(tokens), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return loss.item()

    return step, (tokens, labels)


def grad_scaler(device: str, small: bool) -> Made:
    """fp16 where the device has it; on a CPU bf16, scaled all the same."""
    model = image_net(8 if small else 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device)
    dtype = torch.float16 if device == "cuda" else torch.bfloat16

    def step(pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype):
            loss = F.cross_entropy(model(pictures), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step, images(device, small)


def ema(device: str, small: bool) -> Made:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = image_net(8 if small else 64).to(device)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def step(pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averaged.update_parameters(model)
        return loss.detach()

    return step, images(device, small)


class HandMadeAverage:
    """As many repositories have it."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, parameter in model.named_parameters():
            self.shadow[name].mul_(decay).add_(parameter, alpha=1 - decay)


def ema_by_hand(device: str, small: bool) -> Made:
    model = image_net(8 if small else 64).to(device)
    average = HandMadeAverage(model, 0.999)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def step(pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pictures), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        average.update(model)
        return loss.detach()

    return step, images(device, small)


class Generator(nn.Module):
    """DCGAN's, for pictures of 32 x 32."""

    def __init__(self, noise: int, width: int) -> None:
        super().__init__()
        self.project = nn.ConvTranspose2d(noise, 4 * width, 4, 1, 0, bias=False)
        self.conv1 = nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1, bias=False)
        self.conv2 = nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False)
        self.conv3 = nn.ConvTranspose2d(width, 3, 4, 2, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in (4 * width, 2 * width, width))

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        hidden = noise[:, :, None, None]
        for layer, norm in zip((self.project, self.conv1, self.conv2), self.norms, strict=True):
            hidden = F.relu(norm(layer(hidden)))
        return torch.tanh(self.conv3(hidden))


class Critic(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 4, 2, 1)
        self.conv2 = nn.Conv2d(width, 2 * width, 4, 2, 1)
        self.conv3 = nn.Conv2d(2 * width, 4 * width, 4, 2, 1)
        self.fc = nn.Linear(4 * width * 16, 1)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        hidden = pictures
        for layer in (self.conv1, self.conv2, self.conv3):
            hidden = F.leaky_relu(layer(hidden), 0.2)
        return self.fc(hidden.flatten(1))


def gan(device: str, small: bool) -> Made:
    width, batch = (8, 4) if small else (128, 256)
    generator, critic = Generator(100, width).to(device), Critic(width).to(device)
    generators = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    critics = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    real = torch.randn(batch, 3, 32, 32, device=device)

    def step(real: torch.Tensor) -> tuple[float, float]:
        noise = torch.randn(len(real), 100, device=device)
        fake = generator(noise)
        critics.zero_grad()
        of_real, of_fake = critic(real), critic(fake.detach())
        critic_loss = F.binary_cross_entropy_with_logits(of_real, torch.ones_like(of_real))
        critic_loss = critic_loss + F.binary_cross_entropy_with_logits(of_fake, torch.zeros_like(of_fake))
        critic_loss.backward()
        critics.step()
        generators.zero_grad()
        verdict = critic(fake)
        loss = F.binary_cross_entropy_with_logits(verdict, torch.ones_like(verdict))
        loss.backward()
        generators.step()
        return critic_loss.item(), loss.item()

    return step, (real,)


class Agent(nn.Module):
    def __init__(self, seen: int, actions: int, width: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(seen, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, actions)
        )
        self.critic = nn.Sequential(
            nn.Linear(seen, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def judged(self, seen: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen = torch.distributions.Categorical(logits=self.actor(seen))
        return chosen.log_prob(action), chosen.entropy(), self.critic(seen).squeeze(-1)


def ppo(device: str, small: bool) -> Made:
    """The update as CleanRL has it: epochs over shuffled parts of what was played."""
    width, played, parts, epochs = (32, 64, 4, 2) if small else (512, 16384, 4, 4)
    agent = Agent(64, 8, width).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    seen = torch.randn(played, 64, device=device)
    action = torch.randint(8, (played,), device=device)
    old_log, advantage, gain = (torch.randn(played, device=device) for _ in range(3))

    def step(
        seen: torch.Tensor, action: torch.Tensor, old_log: torch.Tensor, advantage: torch.Tensor, gain: torch.Tensor
    ) -> float:
        clipped: list[float] = []
        for _ in range(epochs):
            for part in torch.randperm(played, device=device).chunk(parts):
                log, entropy, value = agent.judged(seen[part], action[part])
                ratio = (log - old_log[part]).exp()
                with torch.no_grad():
                    clipped.append(((ratio - 1).abs() > 0.2).float().mean().item())
                gained = advantage[part]
                gained = (gained - gained.mean()) / (gained.std() + 1e-8)
                policy = torch.max(-gained * ratio, -gained * ratio.clamp(0.8, 1.2)).mean()
                loss = policy + 0.5 * F.mse_loss(value, gain[part]) - 0.01 * entropy.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        return sum(clipped) / len(clipped)

    return step, (seen, action, old_log, advantage, gain)


def accumulation(device: str, small: bool) -> Made:
    model = image_net(8 if small else 64).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(pictures: torch.Tensor, labels: torch.Tensor) -> float:
        optimizer.zero_grad()
        total = 0.0
        for some, wanted in zip(pictures.chunk(4), labels.chunk(4), strict=True):
            loss = F.cross_entropy(model(some), wanted) / 4
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total

    return step, images(device, small)


def distillation(device: str, small: bool) -> Made:
    student, teacher = image_net(8 if small else 32).to(device), image_net(16 if small else 128).to(device).eval()
    teacher.requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)

    def step(pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(pictures)
        logits = student(pictures)
        soft = F.kl_div(F.log_softmax(logits / 4, 1), F.softmax(wanted / 4, 1), reduction="batchmean") * 16
        loss = 0.9 * soft + 0.1 * F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, images(device, small)


def muon(device: str, small: bool) -> Made:
    model = TextClassifier(*(64, 2) if small else (512, 6)).to(device)
    hidden = [parameter for name, parameter in model.named_parameters() if parameter.dim() == 2 and "encoder" in name]
    others = [
        parameter for name, parameter in model.named_parameters() if parameter.dim() != 2 or "encoder" not in name
    ]
    optimizers = [torch.optim.Muon(hidden, lr=0.02), torch.optim.AdamW(others, lr=3e-4)]
    batch, length = (4, 16) if small else (16, 256)
    tokens = torch.randint(1000, (batch, length), device=device)
    labels = torch.randint(10, (batch,), device=device)

    def step(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(tokens), labels)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step, (tokens, labels)


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation as it is passed around: up to where the loss is worst, then a step from there."""

    def __init__(self, parameters: Any, base: type[torch.optim.Optimizer], rho: float = 0.05, **options: Any) -> None:
        super().__init__(parameters, dict(rho=rho, **options))
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        norms = [
            parameter.grad.norm(p=2)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        norm = torch.norm(torch.stack(norms), p=2)
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                self.state[parameter]["old_p"] = parameter.data.clone()
                parameter.add_(parameter.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data = self.state[parameter]["old_p"]
        self.base_optimizer.step()
        self.zero_grad()


def sam(device: str, small: bool) -> Made:
    model = image_net(8 if small else 64).to(device)
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)

    def step(pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.first_step()
        F.cross_entropy(model(pictures), labels).backward()
        optimizer.second_step()
        return loss.detach()

    return step, images(device, small)


def contrastive(device: str, small: bool) -> Made:
    text_tower = TextClassifier(*(64, 1) if small else (512, 6)).to(device)
    image_tower = image_net(8 if small else 64).to(device)
    temperature = nn.Parameter(torch.tensor(math.log(1 / 0.07), device=device))
    optimizer = torch.optim.AdamW([*text_tower.parameters(), *image_tower.parameters(), temperature], lr=1e-3)
    pictures, labels = images(device, small)
    tokens = torch.randint(1000, (len(labels), 16 if small else 77), device=device)

    def step(pictures: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        seen = F.normalize(image_tower(pictures), dim=-1)
        read = F.normalize(text_tower(tokens), dim=-1)
        logits = temperature.exp() * seen @ read.T
        wanted = torch.arange(len(logits), device=logits.device)
        loss = (F.cross_entropy(logits, wanted) + F.cross_entropy(logits.T, wanted)) / 2
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            temperature.clamp_(0, math.log(100))
        return loss.detach()

    return step, (pictures, tokens)


class GraphConvolution(nn.Module):
    """The mean of what neighbours say."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(before, after), nn.Linear(before, after, bias=False)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        said = torch.zeros_like(nodes).index_add_(0, target, nodes[source])
        count = torch.zeros(len(nodes), device=nodes.device).scatter_add_(
            0, target, torch.ones_like(target, dtype=nodes.dtype)
        )
        return self.own(nodes) + self.others(said / count.clamp(min=1).unsqueeze(1))


class GraphNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = GraphConvolution(64, width), GraphConvolution(width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(F.relu(self.first(nodes, edges)), 0.5, self.training)
        return self.head(F.relu(self.second(hidden, edges)))


def gnn(device: str, small: bool) -> Made:
    nodes, edges, width = (100, 400, 32) if small else (50_000, 500_000, 256)
    model = GraphNet(width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    features = torch.randn(nodes, 64, device=device)
    links = torch.randint(nodes, (2, edges), device=device)
    labels = torch.randint(10, (nodes,), device=device)
    known = torch.arange(nodes, device=device) % 3 == 0

    def step(features: torch.Tensor, links: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(features, links)[known], labels[known])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (features, links, labels)


class PackedTagger(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 20)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(hidden)


def packed_rnn(device: str, small: bool) -> Made:
    width, batch, longest = (32, 4, 12) if small else (512, 64, 100)
    model = PackedTagger(width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    lengths = torch.randint(longest // 2, longest + 1, (batch,))
    lengths[0] = longest
    tokens = torch.randint(1, 1000, (batch, longest), device=device)
    tags = torch.randint(20, (batch, longest), device=device)

    def step(tokens: torch.Tensor, lengths: torch.Tensor, tags: torch.Tensor) -> float:
        optimizer.zero_grad()
        logits = model(tokens, lengths)
        loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-100)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss.item()

    return step, (tokens, lengths, tags)


class CausalBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(width, 2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    def __init__(self, words: int, width: int, layers: int, longest: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.h = nn.ModuleList(CausalBlock(width, width // 64) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def nanogpt(device: str, small: bool) -> Made:
    words, width, layers, batch, length = (256, 64, 2, 2, 32) if small else (50304, 768, 12, 8, 512)
    model = NanoGPT(words, width, layers, length).to(device)
    scaler = torch.amp.GradScaler(device, enabled=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=device == "cuda")
    corpus = torch.randint(words, (10 * batch * length,))

    def some() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(corpus) - length - 1, (batch,))
        return tuple(
            torch.stack([corpus[int(start) + ahead : int(start) + ahead + length] for start in starts]).to(device)
            for ahead in (0, 1)
        )  # type: ignore[return-value]

    def step() -> float:
        for group in optimizer.param_groups:
            group["lr"] = 6e-4
        total = 0.0
        for _ in range(2):
            tokens, targets = some()
            with torch.autocast(device, dtype=torch.bfloat16):
                _, loss = model(tokens, targets)
            scaler.scale(loss / 2).backward()
            total += loss.item() / 2
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step, ()


def ddp(device: str, small: bool) -> Made:
    """In the processes of a group that torchrun or its like has begun; else in one."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    backend = "nccl" if device == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    elif not dist.is_initialized():
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(image_net(8 if small else 64).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, images(device, small)


PLAIN: dict[str, Make] = {
    "clipping, groups, AdamW": clipping_and_groups,
    "GradScaler": grad_scaler,
    "EMA": ema,
    "EMA by hand": ema_by_hand,
    "GAN": gan,
    "PPO": ppo,
    "accumulation by hand": accumulation,
    "distillation": distillation,
    "Muon": muon,
    "SAM": sam,
    "contrastive": contrastive,
    "GNN": gnn,
    "packed RNN": packed_rnn,
    "nanoGPT": nanogpt,
    "DDP": ddp,
    "DDP, 2 processes": ddp,
}
