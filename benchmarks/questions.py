"""The questions of `answers.py`, and the files that they read."""

FIRST = """
estimate resnet50 --batch 16 --step train --json -o resnet50.json
estimate gpt2 --batch 4 --seq 1024 --dtype bf16 --json -o gpt2.json
estimate net.py:make --input 3x32x32 --batch 8 --step train --json -o net.json
study grid.toml -o grid --workers 1
"""
"""Commands that later ones read the results of, in this order."""

COMMANDS = """
estimate mnist-cnn --batch 64 --json
estimate mnist-cnn --batch 64 --explain conv2
estimate mnist-cnn --batch 8 --target cpu --json
estimate resnet50 --batch 16 --no-tf32 --json
estimate resnet50 --batch 2 --by type --csv
estimate gpt2 --seq 128 --by op --csv
estimate gpt2 --seq 256 --step train --checkpoint blocks --accumulate 2 --json
estimate gpt2 --symbolic --json
estimate vit-b-16 --batch 4 --step train --autocast bf16 --tf32 --optimizer sgd --json
estimate llama3-8b --step decode --past 1024 --dtype bf16 --json
estimate mixtral-8x7b --seq 32 --dtype bf16 --depth 2 --csv
estimate resnet18 --batch 32 --step train --epochs 2 --dataset-size 50000 --target cuda:70 --json
estimate net.py:make --input 3x16x16 --set width=32 --json
estimate torchvision:mobilenet_v2 --json
estimate hf:bert --seq 64 --json
measure mnist-cnn --batch 2 --step train --on cpu --counters none --repeat 2 --json
run --counters none --json -- python regions.py
predict mnist-cnn --batch 64 --on h200 --roofline --json
predict resnet50 --batch 16 --step train --on h200,a100,v100 --json
predict resnet50 --batch 1,16,64 --step train --on h200 --graphs --roofline --json
predict resnet50 --batch 16 --on k80,t4,l40s,b200,mi300x --json
predict resnet50 --batch 16 --on xeon-8480 --json
predict resnet50 --batch 16 --step train --autocast bf16 --on h200 --epochs 90 --dataset-size 1281167 --price 2.5 --json
predict resnet50 --batch 16 --on h200 --tier spec --json
predict resnet50 --batch 16 --on h200 --tier transferred --json
predict resnet50 --batch 16 --step train --on h200 --ppp recorded:h200/resnet50-train-fp32 --tier spec --json
predict vgg16 --on k80 --dtype fp64 --ppp 0.5 --json
predict resnet18 --batch 8 --on own.toml --calibration own-calibration.json.gz --json
predict net.py:make --input 3x32x32 --batch 256 --step train --on a100 --roofline --json
predict vgg19 --batch 16 --step train --on v100 --max-batch --json
predict gpt2 --batch 64 --step train --on v100,a100 --memory --json
predict gpt2 --batch 8 --on v100 --max-seq --json
predict gpt2 --batch 8 --step train --on h200 --checkpoint blocks --accumulate 4 --allocator expandable_segments:True --json
predict llama3-8b --step decode --past 1024 --batch 1,16 --dtype bf16 --on h200,a100 --json
predict llama3-8b --dtype bf16 --step train --on h200 --gpus 16 --parallel fsdp --max-batch --json
predict llama3-70b --dtype bf16 --step train --on h200 --json
predict llama3-70b --dtype bf16 --step train --on h200 --gpus 64 --parallel 8x4x2 --json
predict llama3-8b --step decode --past 512 --dtype bf16 --on h200 --gpus 4 --parallel tp --json
predict gpt2-xl --dtype bf16 --step train --batch 2 --on h200,a100 --gpus 8 --parallel zero1 --price 2 --json
predict gpt2 --batch 8 --step train --on h200 --gpus 4 --parallel pp --micro-batches 4 --memory --json
predict resnet50 --batch 64 --step train --on v100 --gpus 8 --nodes 2 --json
predict resnet50 --on no-such-device --json
compare recorded:h200/resnet50-train-fp32 --json
compare recorded:h200/gpt2-train-bf16 --by type --json
compare recorded:h200/gpt2-infer-bf16 recorded:h200/gpt2-infer-bf16-compiled --json
compare recorded:h200/resnet50-train-fp32 recorded:h200/resnet50-train-fp32-graph --by op --json
compare gpt2.json recorded:h200/gpt2-infer-bf16 --json
compare resnet50.json net.json --json
compare recorded:h200/mnist-cnn-infer-tf32 --claims data/claims/mnist.csv --json
report resnet50.json --on h200,l4 --json
report net.json --on a100 --json
report recorded:h200/mnist-cnn-infer-tf32 --json
report recorded:h200/resnet50-train-fp32 --json
report recorded:h200/distilbert-train-bf16 --on b200 --section roofline --json
report recorded:h200/gpt2-infer-bf16-compiled --json
report recorded:h200/resnet50-infer-fp32 recorded:h200/resnet50-infer-bf16 --json
report resnet50.json recorded:h200/resnet50-train-fp32-graph --json
report ranks.rank0.json ranks.rank1.json --json
report recorded:h200/mnist-cnn-train-tf32 --csv
report grid --json
report mnist-conv2 --json
import data/ncu/h200_mnist_raw.csv.gz --json
import data/ncu/h200_mnist_console.log.gz --by launch --json
import data/ncu/resnet50_b16_tf32.csv.gz --json
import data/timeline/resnet18_marked.json.gz --by range --json
list models --json
list formulas --json
list recordings --json
list devices --json
list devices a100 --json
"""
"""Commands of every verb but doctor and calibrate, which are about this machine, and completion, a script for the shell."""

PAGES = """
report resnet50.json --on h200,l4
report net.json --on a100
report gpt2.json
report recorded:h200/mnist-cnn-train-tf32
report recorded:h200/resnet50-train-fp32
report recorded:h200/gpt2-infer-bf16-compiled
report recorded:h200/distilbert-train-bf16 --on b200
report recorded:h200/resnet50-infer-fp32 recorded:h200/resnet50-infer-bf16
report resnet50.json recorded:h200/resnet50-train-fp32-graph
report ranks.rank0.json ranks.rank1.json
report grid
report mnist-conv2
"""
"""Reports, of which the numbers of the tables are kept."""

CALLS = """
rooflight.estimate("resnet50", batch=16, step="train")
rooflight.estimate("gpt2", batch=2, seq=256, dtype="bf16", step="train", checkpoint="blocks")
rooflight.estimate(net(), torch.randn(8, 3, 32, 32), step="train", optimizer="sgd")
rooflight.estimate(training, net(), torch.randn(8, 3, 32, 32))
rooflight.estimate(net(), torch.randn(8, 3, 32, 32), target="cpu")
rooflight.predict("resnet50", on=["a100", "h200"], batch=16, step="train")
rooflight.predict("gpt2", on=["h200", "a100"], batch=[1, 8, 64], seq=1024, step="train", dtype="bf16")
rooflight.predict(net(), torch.randn(8, 3, 224, 224), on="l4")
rooflight.predict(training, net(), torch.randn(64, 3, 32, 32), on=["h200", "rtx-4090"])
rooflight.predict("recorded:h200/mnist-cnn-train-tf32", on=["h200", "l4"])
rooflight.predict("recorded:h200/mnist-cnn-train-tf32", on=["h200", "l4"]).at("h200").error
rooflight.predict("llama3-8b", on="h200", gpus=4, parallel="tp", step="decode", past=512, dtype="bf16")
rooflight.predict("llama3-8b", on="h200", gpus=16, parallel="fsdp", step="train", dtype="bf16")
rooflight.compare("recorded:h200/resnet50-train-fp32")
rooflight.compare("recorded:h200/gpt2-train-bf16")
rooflight.compare("recorded:h200/vgg19-infer-fp32").whys[0].causes[0].b
rooflight.compare("resnet50.json", "recorded:h200/resnet50-train-fp32-graph")
rooflight.load("recorded:h200/resnet50-train-fp32")
rooflight.load("recorded:h200/mnist-cnn-infer-tf32").header.device
rooflight.load("gpt2.json")
rooflight.join([rooflight.load("ranks.rank0.json"), rooflight.load("ranks.rank1.json")])
rooflight.study("mnist-cnn", batch=[1, 8], on="h200", folder="found")
rooflight.accuracy()
len(rooflight.report("net.json").sections)
str(rooflight.estimate("mnist-cnn", batch=64))
"""
"""Calls from Python."""

LEDGERS = """
rooflight.estimate("mnist-cnn", batch=64, step="train")
rooflight.estimate("mnist-cnn-5x5", batch=64)
rooflight.estimate("alexnet", batch=16)
rooflight.estimate("vgg11", batch=4, step="train")
rooflight.estimate("googlenet", batch=4, step="train", optimizer="adamw")
rooflight.estimate("resnet18", batch=8, step="train", optimizer="sgd", autocast="bf16")
rooflight.estimate("resnet50", batch=16, step="train", tf32=False)
rooflight.estimate("wide-resnet50-2", batch=2)
rooflight.estimate("vit-b-16", batch=2, step="train", dtype="bf16")
rooflight.estimate("transformer", batch=4, step="train")
rooflight.estimate("word-lm", batch=20, step="train")
rooflight.estimate("distilbert", batch=8)
rooflight.estimate("distilbert-mlm", batch=2, step="train", checkpoint="blocks")
rooflight.estimate("gpt2", batch=2, seq=128, step="train", accumulate=2)
rooflight.estimate("gpt2-medium", seq=64, dtype="bf16")
rooflight.estimate("llama3-8b", seq=128, dtype="bf16", step="train")
rooflight.estimate("llama3-70b", step="decode", past=512, dtype="bf16")
rooflight.estimate("mixtral-8x7b", seq=64, dtype="bf16")
rooflight.estimate("llama3.2-1b", seq=64, step="train", dtype="bf16")
rooflight.estimate("qwen2.5-0.5b", seq=64, dtype="bf16")
rooflight.estimate("qwen3-30b-a3b", step="decode", past=128, dtype="bf16")
rooflight.estimate("gemma3-27b", step="decode", past=2048, dtype="bf16")
rooflight.estimate("gpt-oss-120b", step="decode", past=256, dtype="bf16")
rooflight.estimate("deepseek-v3", seq=16, dtype="bf16")
rooflight.estimate("torchvision:mobilenet_v2", batch=2, step="train")
rooflight.estimate("torchvision:swin_t", batch=2)
rooflight.estimate("torchvision:densenet121", batch=2)
rooflight.estimate("timm:convnext_tiny", batch=2, step="train")
rooflight.estimate("timm:efficientnet_b0", batch=2)
rooflight.estimate("hf:bert", seq=64, step="train")
"""
"""Models and options, of which every row of the estimate is kept."""

NET = """
from torch import nn


def make(width: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, groups=width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),
    )
"""
REGIONS = """
import torch

import rooflight

a = torch.ones(64, 64)
for _ in range(3):
    with rooflight.region("product"):
        a = a @ a / 64
"""
GRID = """
title = "A small grid"
layers = ["conv2"]

[[grid]]
model = "mnist-cnn"
batch = [1, 16, 64, 256]
step = ["infer", "train"]
on = ["h200", "a100"]

[[grid]]
model = "gpt2"
batch = [2, 512]
seq = 1024
step = "train"
dtype = "bf16"
on = "h200"
gpus = [1, 8]

[[grid]]
model = "resnet18"
tf32 = [true, false]

[[claim]]
claim = "flops(mnist-cnn, batch=64, step=infer) ~ 1.5 GFLOP within 10%"

[[claim]]
claim = "bound(mnist-cnn, batch=1) = memory"
says = "at batch 1 the network is bound by memory"
"""
