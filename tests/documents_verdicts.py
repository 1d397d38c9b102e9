"""What every claim of studies/*.toml must come out as, written by hand, with the reason.

Two verdicts of each: where no GPU is (estimates, and predictions for named devices) and by the recorded H200.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflight.study.hypotheses.verdict import Verdict


@dataclass(frozen=True)
class Expected:
    says: str
    without: Verdict
    """On a machine without a GPU."""
    measured: Verdict
    """With what the H200 measured."""
    why: str


def both(verdict: Verdict, says: str, why: str) -> Expected:
    """An estimate or a prediction settles it, and a measurement says the same."""
    return Expected(says, verdict, verdict, why)


def counted(verdict: Verdict, says: str, why: str) -> Expected:
    """About counters: without them nothing can be said."""
    return Expected(says, "not measured", verdict, why)


ALL_EXPLAINED = "causes explain all but a hundredth of the executed FLOPs"

VERDICTS: dict[str, tuple[Expected, ...]] = {
    "mnist-conv2": (
        both("refuted", "the second convolution takes 21,233,664 FLOP at batch 64",
             "2*9*32*64*576*64 = 1,358,954,496: 64 times as many"),
        both("held", "the second convolution takes 21,233,664 FLOP for one image", "2*9*32*64*576 = 21,233,664"),
        both("held", "2 x 3 x 3 x 32 x 64 x 24 x 24 x 64 = 1,358,954,496 FLOP at batch 64", "the formula with Cout"),
        counted("refuted", "counters see 2,949,120 FLOP in it", "tensor cores alone executed 1,358,954,496"),
        counted("held", "counters see what the formula says, once tensor cores are counted",
                "1,369,794,560 by 1,358,954,496 is 1.008: bias and layout are the rest"),
        counted("held", "without TF32 CUDA cores do all of it, and their counters see it",
                "1,368,391,680 by 1,358,954,496 is 1.007"),
        both("held", "FLOPs are linear in the batch", "useful FLOPs of convolutions and linear layers have a factor N"),
        counted("refuted", "so are the executed ones, at any batch",
                "two images execute 196 MFLOP for 48 useful, 64 images 1,570 for 1,535"),
        both("held", "1,199,882 parameters, 18,496 of them conv2's, at every batch", "9*32*64 + 64 = 18,496"),
        both("refuted", "64 images take 64 times the bytes of one in conv2",
             "the 73,984 bytes of parameters are there once: 15,048,960 and not 64 * 307,968 = 19,709,952"),
        both("held", "input, output and parameters of conv2 once each: 15,048,960 bytes",
             "64*32*26*26*4 + 64*64*24*24*4 + 18,496*4"),
        both("refuted", "memory is proportional to the batch", "parameters and workspaces do not grow"),
        both("held", "it is a straight line on a floor that stays", "from 256 to 512 twice what it is from 128 to 256"),
        both("held", "512 images take less than 16 times the time of one", "small steps wait for the host"),
        both("held", "a larger batch gives more images a second", "the same waiting serves more images"),
        both("held", "with one image the GPU waits for the host", "0.03 ms of work in a step of 0.3 ms"),
        both("refuted", "twice the channels, twice the FLOPs", "both Cin and Cout double: four times"),
        both("held", "twice the channels in and out, four times the FLOPs", "2*9*64*128*576*64 = 5,435,817,984"),
        both("held", "with 20 and 40 channels: 8,294,400 FLOP an image in conv2, 746,138 parameters",
             "2*9*20*40*576; 200 + 7,240 + 737,408 + 1,290"),
        both("held", "the lecture's network: 21,840 parameters, 480,500 multiply-adds an image",
             "144,000 + 320,000 + 16,000 + 500"),
        counted("refuted", ALL_EXPLAINED, "one image: 3.4% in inference, 1.9% in training, of a step of 0.02 GFLOP"),
    ),
    "transformers": (
        both("held", "124,439,808 parameters in GPT-2, 66,362,880 in DistilBERT, 44,140,544 in nn.Transformer",
             "as their authors publish them"),
        both("refuted", "training is twice the forward pass", "backward makes two products for every one of forward"),
        both("held", "training is three times the forward pass", "less the gradient of the first inputs, 1.1% at most"),
        both("held", "FLOPs are linear in the batch", "attention mixes tokens of a sequence, never sequences"),
        both("held", "time grows less than the batch", "one sequence does not fill a GPU"),
        both("held", "a larger batch gives more samples per second", "the same"),
        both("held", "in bf16 one sequence of 128 tokens leaves the GPU waiting for the host",
             "0.3 to 5 ms of work in steps of 2 to 36 ms"),
        Expected("bf16 makes every step shorter", "held", "refuted",
                 "predicted so; measured it is not where the host is the limit: nn.Transformer takes 31.9 ms for 27.5"),
        both("held", "the GPU's own time is shorter in bf16", "tensor cores, and half the bytes"),
        both("held", "half the bytes, half the memory", "workspaces of fixed size keep it from being exact"),
        counted("held", "executed FLOPs are the useful ones within 16%, in both precisions",
                "the most is 1.15, one sequence padded to tiles"),
        counted("held", ALL_EXPLAINED, "under 1% in all 20 steps"),
    ),
    "resnet-memory-roofline": (
        both("held", "ResNet-50 has double the parameters of ResNet-18", "25,557,032 by 11,689,512 is 2.186"),
        both("refuted", "on two GPUs ResNet-18 has 23,379,024 parameters, ResNet-50 51,114,064",
             "two copies of one set: 11,689,512 and 25,557,032"),
        both("refuted", "in theory training takes the memory of the parameters", "already 4.5 times as much at batch 2"),
        both("refuted", "training takes more than 290 times the memory that theory says",
             "127 (ResNet-18) and 220 (ResNet-50) at batch 256, and any other number at another batch"),
        both("held", "what is left after parameters, gradients and momentum is the saved activations: 5,425 and 21,027 MiB",
             "2.1% and 0.6% more: inputs, temporaries, workspaces"),
        both("refuted", "ResNet-50 trains at batch 256 on a V100 of 16 GB", "22.9 GB"),
        both("refuted", "on two GPUs each needs half the memory", "a little more than on one: buckets of gradients"),
        both("refuted", "the steps that were measured take 3.65 and 8.29 GFLOP in theory",
             "two images trained are 21.3 and 48.6 GFLOP"),
        counted("refuted", "the GPU executes 6.5 to 8.7 times the FLOPs of theory", "0.97 and 1.11 times"),
        counted("held", "executed FLOPs are the useful ones within 15%, tensor cores counted", "0.97 to 1.12"),
        counted("refuted", "a GPU with tensor cores executes 90% fewer FLOPs for the same training", "0.97 to 1.11"),
        both("held", "ResNet-50 runs much longer than ResNet-18", "2.1 to 2.9 times, host-bound or not"),
        both("refuted", "it runs 4.5% longer", "the same"),
        both("held", "the A100 outperforms the V100", "at all batches; most where the host is not the limit"),
        both("refuted", "prefer the V100: its balance is better", "up to 4.4 times slower"),
        both("held", "a larger batch gives more images a second", "at 64 more than at 2, at 256 more than at 64"),
        both("held", "two GPUs are nearly twice as fast", "DDP overlaps 47 and 102 MB of gradients with the backward"),
        both("refuted", "both networks are memory-bound", "batch 2: host-bound on A100 and H200, compute-bound on V100"),
        both("refuted", "on the V100 they lie left of the ridge, 17.44 FLOP/B", "24.8 and 18.1 FLOP/B lie right of it"),
        both("held", "with two images an A100 and an H200 wait for the host", "H200: 1.7 of 10.4 ms, 3.7 of 26.8 ms"),
        both("held", "at batch 256 an A100 and an H200 are memory-bound",
             "batch normalisation takes 37% of the GPU's time, convolutions 30%"),
        counted("held", ALL_EXPLAINED, "under 1% in all 12 steps"),
    ),
    "vgg-roofline": (
        both("refuted", "VGG-11 takes 121,745,440,768 FLOP at batch 16", "16 * 2 * 7,609,090,048 is twice that"),
        both("held", "those are multiply-adds; FLOPs are 243,490,881,536", "16 * 7,609,090,048 MACs"),
        both("refuted", "VGG-13 takes 58,856,046,592 FLOP at batch 16", "6.15 times low"),
        both("held", "VGG-13 takes 361,870,917,632 FLOP at batch 16", "16 * 2 * 11,308,466,176"),
        both("refuted", "VGG-19 takes 314,112,999,424 FLOP at batch 16", "those are MACs: 16 * 19,632,062,464"),
        both("refuted", "parameters: 132,863,336, 133,047,848 and 143,667,246", "143,667,240"),
        both("held", "a training step is three forward passes", "less the gradient of the image, 2.989"),
        counted("refuted", "a GPU with tensor cores executes 2% to 5% of the useful FLOPs", "1.009 to 1.014 of them"),
        counted("held", "executed FLOPs are the useful ones within 5%, tensor cores counted", "the same"),
        counted("held", "without TF32 fewer FLOPs are executed than useful: fast algorithms",
                "0.85 to 0.92: Winograd and FFT"),
        counted("refuted", "arithmetic intensity with tensor cores is 0.7 to 1.2 FLOP/B", "51 to 74 FLOP/B"),
        counted("held", "more bytes are moved than compulsory", "1.46 to 1.80 times"),
        both("held", "deeper is slower", "2.8, 4.0 and 5.2 ms on the H200"),
        both("refuted", "the V100 should be preferred to the A100", "it is 5.5 to 6.7 times slower"),
        both("refuted", "the A100 is 1.16 to 1.27 times as fast as the V100", "the same"),
        both("held", "without TF32 it is less than 1.5 times as fast", "1.30 to 1.34"),
        both("refuted", "performing very well, close to the roof", "17% to 24% of the H200's peak, 42% at most on others"),
        counted("held", ALL_EXPLAINED, "under 1% in all 10 steps"),
    ),
    "paleo-k80": (
        both("refuted", "VGG-16 takes 15,503 MFLOP an image", "30,940,528,640"),
        both("held", "VGG-16 takes 15,503 M multiply-adds an image", "15,470,264,320; the paper counts ReLUs too"),
        both("refuted", "GoogLeNet takes 1,606 M, ResNet-50 3,922 M", "1,498,376,192 and 4,089,184,256"),
        both("held", "VGG-16 is the heaviest, GoogLeNet the lightest", "30.9, 8.2 and 3.0 GFLOP"),
        both("refuted", "VGG-19 takes 15,517 M", "19,632,062,464: the other is VGG-16"),
        both("held", "convolutions are 99.37% of VGG-19's FLOPs, 99.20% of VGG-16's", "three linear layers are the rest"),
        both("held", "wide ResNet-50-2 has 68,883,240 parameters", "as torchvision publishes it"),
        both("refuted", "VGG-16 takes 1.776 ms on the K80 in single precision", "30.94 GFLOP / 8.73 TFLOP/s = 3.54 ms"),
        both("held", "by the peak of both dies it is 3.552 ms", "the same"),
        both("held", "by the peak of one die, which is one GPU, 7.1 ms; in double precision 21.3 ms",
             "30.94 GFLOP / 4.365 and / 1.455 TFLOP/s"),
        both("refuted", "VGG-16: 563 images a second", "53 even if both dies shared one image"),
        both("held", "one die: fewer than 140.8 images a second, in double precision fewer than 46.9", "27 and 9"),
        both("held", "no network reaches the peak: a step takes longer than FLOPs by peak", "5 to 11 times"),
        both("refuted", "a double GPU is slower than a single GPU", "two dies are faster than one"),
        both("held", "double precision takes more than 2.5 times single", "3.1 to 4.3 times"),
        both("held", "on a K80 the network with more FLOPs takes longer", "VGG-16 37 ms, ResNet-50 19 ms"),
        both("refuted", "and so it does on a GPU of today", "H200: VGG-16 1.2 ms, ResNet-50 3.7 ms, which the host takes"),
        both("refuted", "libraries reach half of the peak and more (PPP 0.5 to 1)", "2% to 24% at batch 16"),
        counted("held", ALL_EXPLAINED, "under 1% in all 12 steps"),
    ),
}  # fmt: skip

SHOWN = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 18, 20})
"""Mistakes of the documents that claims of the studies show.

The others are of tables and logs, and the linter's: 10 workspace, output and growth confused; 11 units parsed wrong;
19 misspelt metric names.
"""
