"""Measures steps of models that no rule was learned on, to judge how much of them the causes explain.

usage: why_steps.py FOLDER first|second [SECONDS]    (needs a CUDA GPU, torchvision, timm, transformers; a ledger a step)

`FIRST` was measured before the rules were made and looked at when they were made; what it showed to be wrong was then
mended, with new single ops. `SECOND` was measured when the rules were there; kinds of models are mixed, so that what is
left when time is up is no worse a sample.
"""

import gc
import sys
import time
from pathlib import Path

import torch
from torch import nn

import rooflight

LLAMA = {"hidden_size": "1024", "intermediate_size": "2816", "num_hidden_layers": "6", "num_attention_heads": "16",
         "num_key_value_heads": "4", "vocab_size": "16000"}  # fmt: skip
FIRST = [
    ("torchvision:resnext50_32x4d", "train", "fp32", 16, {}),
    ("torchvision:resnext50_32x4d", "train", "bf16", 16, {}),
    ("torchvision:mobilenet_v3_large", "train", "bf16", 32, {}),
    ("torchvision:mobilenet_v3_large", "infer", "fp32", 32, {}),
    ("torchvision:efficientnet_b0", "infer", "bf16", 32, {}),
    ("torchvision:efficientnet_b0", "train", "fp32", 16, {}),
    ("torchvision:convnext_tiny", "train", "bf16", 16, {}),
    ("torchvision:convnext_tiny", "infer", "fp32", 16, {}),
    ("torchvision:swin_t", "train", "bf16", 16, {}),
    ("torchvision:swin_t", "infer", "fp32", 16, {}),
    ("torchvision:inception_v3", "infer", "fp32", 16, {}),
    ("timm:eva02_small_patch14_224", "train", "bf16", 16, {}),
    ("torchvision:densenet121", "train", "fp32", 16, {}),
    ("torchvision:shufflenet_v2_x1_0", "train", "bf16", 32, {}),
    ("hf:bert", "train", "bf16", 8, {"seq": 256}),
    ("hf:llama", "infer", "bf16", 4, {"seq": 512, "overrides": LLAMA}),
]
SECOND = [
    ("timm:seresnext50_32x4d", "train", "fp32", 16, {}),
    ("own:unet", "train", "bf16", 8, {}),
    ("hf:opt", "train", "bf16", 4, {"seq": 384}),
    ("torchvision:mnasnet1_0", "train", "bf16", 32, {}),
    ("timm:levit_128", "infer", "fp32", 32, {}),
    ("own:generator", "train", "bf16", 32, {}),
    ("torchvision:regnet_y_400mf", "infer", "fp32", 32, {}),
    ("timm:poolformer_s12", "train", "fp32", 16, {}),
    ("timm:beit_base_patch16_224", "infer", "bf16", 16, {}),
    ("timm:ghostnet_100", "train", "fp32", 32, {}),
    ("own:audio", "infer", "fp32", 16, {}),
    ("torchvision:squeezenet1_1", "train", "fp32", 32, {}),
    ("timm:convmixer_768_32", "infer", "bf16", 8, {}),
    ("own:video", "train", "bf16", 4, {}),
    ("hf:roberta", "infer", "fp32", 8, {"seq": 200}),
    ("timm:fastvit_t8", "infer", "bf16", 32, {}),
    ("timm:mixer_b16_224", "train", "fp32", 16, {}),
    ("torchvision:maxvit_t", "infer", "bf16", 16, {}),
    ("own:recurrent", "train", "fp32", 32, {}),
    ("timm:seresnext50_32x4d", "infer", "bf16", 32, {}),
    ("timm:xcit_tiny_12_p16_224", "infer", "fp32", 16, {}),
    ("hf:t5", "infer", "bf16", 8, {"seq": 128}),
    ("timm:repvgg_a2", "train", "bf16", 16, {}),
    ("timm:edgenext_small", "infer", "fp32", 16, {}),
    ("own:unet", "train", "fp32", 8, {}),
    ("torchvision:swin_v2_t", "infer", "bf16", 16, {}),
    ("torchvision:regnet_x_1_6gf", "train", "bf16", 16, {}),
    ("timm:pvt_v2_b0", "train", "bf16", 16, {}),
    ("torchvision:efficientnet_v2_s", "infer", "bf16", 16, {}),
    ("hf:qwen2", "train", "fp32", 2, {"seq": 256, "overrides": LLAMA}),
    ("timm:resnest50d", "infer", "bf16", 16, {}),
    ("torchvision:wide_resnet50_2", "infer", "fp32", 16, {}),
    ("timm:mixnet_s", "train", "bf16", 32, {}),
    ("timm:mobilevit_s", "train", "bf16", 16, {}),
    ("timm:nf_resnet50", "train", "fp32", 16, {}),
    ("timm:coatnet_0_rw_224", "infer", "bf16", 16, {}),
]
SETS = {"first": FIRST, "second": SECOND}


def block(inner, outer):
    return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(8, outer), nn.SiLU(),
                         nn.Conv2d(outer, outer, 3, padding=1), nn.GroupNorm(8, outer), nn.SiLU())  # fmt: skip


class UNet(nn.Module):
    """Three halvings, transposed convolutions up, and what lay beside them."""

    def __init__(self, width=48):
        super().__init__()
        sizes = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList([block(a, b) for a, b in zip([3, *sizes], sizes, strict=False)])
        pairs = list(zip(sizes[:0:-1], sizes[-2::-1], strict=True))
        self.turn = nn.ModuleList([nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs])
        self.up = nn.ModuleList([block(2 * b, b) for _, b in pairs])
        self.out = nn.Conv2d(width, 4, 1)

    def forward(self, x):
        beside = []
        for place, stage in enumerate(self.down):
            x = stage(x)
            if place < len(self.down) - 1:
                beside.append(x)
                x = nn.functional.max_pool2d(x, 2)
        for turn, stage in zip(self.turn, self.up, strict=True):
            x = stage(torch.cat([turn(x), beside.pop()], 1))
        return self.out(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(200, 384, 2, batch_first=True), nn.Linear(384, 900)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def generator():
    layers, width = [nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False), nn.BatchNorm2d(512), nn.ReLU()], 512
    for _ in range(3):
        layers += [nn.ConvTranspose2d(width, width // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(width // 2), nn.ReLU()]
        width //= 2
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())


def audio():
    layers, width = [nn.Conv1d(1, 64, 10, 5), nn.GroupNorm(64, 64), nn.GELU()], 64
    for _ in range(5):
        layers += [nn.Conv1d(width, 256, 3, 2), nn.GELU(), nn.Conv1d(256, 256, 7, padding=3, groups=16), nn.GELU()]
        width = 256
    return nn.Sequential(*layers)


def video():
    layers, width = [], 3
    for wider, stride in ((32, 1), (64, 2), (128, 2)):
        layers += [nn.Conv3d(width, wider, 3, stride, 1), nn.BatchNorm3d(wider), nn.ReLU()]
        width = wider
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(width, 101))


OWN = {
    "unet": (UNet, (3, 128, 128)),
    "generator": (generator, (100, 1, 1)),
    "audio": (audio, (1, 40000)),
    "video": (video, (3, 8, 56, 56)),
    "recurrent": (Recurrent, (120, 200)),
}


def measured(model, step, dtype, batch, more):
    training = {"loss": "mse"} if step == "train" else {}
    # Half of the steps have the L2's bytes too, as evidence that not every measurement has.
    levels = ("dram", "l2") if len(model) % 2 else ("dram",)
    if model.startswith("own:"):
        make, shape = OWN[model[4:]]
        kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
        torch.manual_seed(0)
        net = make().cuda().to(kind)
        x = torch.randn(batch, *shape, device="cuda", dtype=kind)
        return rooflight.measure(net, x, step=step, repeat=5, levels=levels, **training)
    return rooflight.measure(model, batch=batch, step=step, dtype=dtype, repeat=5, levels=levels, **training, **more)


def main() -> None:
    folder, cases = Path(sys.argv[1]), SETS[sys.argv[2]]
    end = time.perf_counter() + (float(sys.argv[3]) if len(sys.argv) > 3 else float("inf"))
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for number, (model, step, dtype, batch, more) in enumerate(cases):
        if number == failed == 3:
            raise SystemExit("the first three failed: something is wrong with the machine or the program")
        name = f"{model.replace(':', '-')}-{step}-{dtype}"
        if (folder / f"{name}.json.gz").exists():
            continue
        if time.perf_counter() > end:
            print("out of time before", name)
            return
        start = time.perf_counter()
        try:
            ledger = measured(model, step, dtype, batch, more)
            rooflight.save(ledger, folder / f"{name}.json.gz", force=True)
            print(f"{name} {len(ledger.ops)} ops {time.perf_counter() - start:.1f} s", flush=True)
        except Exception as error:
            failed += 1
            print(f"{name} {type(error).__name__}: {str(error)[:200]}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
