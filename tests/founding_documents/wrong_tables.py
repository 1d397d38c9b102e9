"""Tables of claims (sixty and some) with one planted mistake each, out of the twenty that the founding documents made.

Each function makes a right table, and says which of its cells is changed and how. A mistake sits plainly in its own
quantity, or inside a time, a rate or a ratio that was computed from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from rooflight.ledger import total
from tests.founding_documents.claim_tables import (
    A100,
    CONV2,
    MNIST,
    PEAK,
    V100,
    Cells,
    ClaimTable,
    correct,
    estimated,
    executed,
    long,
    macs_of,
    moved,
    of_layer,
    of_step,
    params_of,
    recorded,
    stated,
    studied,
    vgg,
)

Inside = Literal["", "time", "rate", "ratio"]
MISTAKES = {
    1: "Cout missing from the formula of a convolution",
    2: "parameters scaled with the batch",
    3: "multiply-adds and FLOPs mixed, in a table or against a peak",
    4: "a total that is not the sum of its rows",
    5: "an output size typed by hand",
    6: "a batch unrecorded or mislabelled",
    7: "tensor-core work missing from the counters",
    8: "a forward estimate for a training step",
    9: "parameters for all of the memory",
    10: "workspace, output and net growth confused",
    11: "KB, KiB and MB mixed, units of a log parsed wrong",
    12: "replicas counted twice",
    13: "functional ops unseen, an identity pool charged",
    14: "one model's numbers under another's name",
    15: "a bound without the side of the ridge or the distance to the roof",
    16: "time scopes mixed",
    17: "a peak off by ten, of another precision, or of two dies",
    18: "hardware preferred by balance, not by time",
    19: "a misspelt metric name",
    20: "disagreeing tools left unexplained",
}


@dataclass(frozen=True)
class PlantedTable:
    """A right table, and the cells of one row that are changed."""

    right: ClaimTable
    at: int
    cells: Cells

    @property
    def wrong(self) -> ClaimTable:
        rows = [{**row, **self.cells} if place == self.at else row for place, row in enumerate(self.right.rows)]
        return replace(self.right, rows=rows)

    @property
    def planted(self) -> list[int]:
        """Which of the claims are the changed ones, counted in the order in which they are read."""
        table = self.wrong
        changed = {"value"} if "value" in table.columns else set(self.cells)
        return [n for n, (place, column) in enumerate(table.cells) if place == self.at and column in changed]


@dataclass(frozen=True)
class Planting:
    mistake: int
    inside: Inside
    table: Callable[[], PlantedTable]


WRONG: dict[str, Planting] = {}


def plants(mistake: int, inside: Inside = "") -> Callable[[Callable[[], PlantedTable]], Callable[[], PlantedTable]]:
    def kept(table: Callable[[], PlantedTable]) -> Callable[[], PlantedTable]:
        WRONG[table.__name__] = Planting(mistake, inside, table)
        return table

    return kept


def counts() -> dict[int, Counter[str]]:
    """How many tables plant each mistake, by where it sits."""
    found: dict[int, Counter[str]] = {mistake: Counter() for mistake in MISTAKES}
    for planting in WRONG.values():
        found[planting.mistake][planting.inside or "itself"] += 1
    return found


def changed(right: ClaimTable, at: int, value: object, **more: object) -> PlantedTable:
    return PlantedTable(right, at, {"value": value, **more})


# Right tables that several mistakes are planted in.


def _mnist(batch: int = 64) -> ClaimTable:
    rows = long(
        *((layer.name, "FLOP", 2 * batch * layer.macs) for layer in MNIST),
        ("total", "FLOP", 2 * batch * macs_of(MNIST)),
        batch=batch,
    )
    return ClaimTable(estimated("mnist-cnn", 64), rows)


def _conv2_run() -> ClaimTable:
    """Conv2 on the H200: FLOPs, the time of its kernels, and what follows."""
    ledger = recorded("mnist-cnn-infer-tf32")
    time = of_layer(ledger, "conv2", "kernel_time_s")
    rows = long(("conv2", "FLOP", 2 * 64 * CONV2.macs), ("conv2", "kernel time", f"{1e6 * time:.2f} us"),
                ("conv2", "performance", f"{2 * 64 * CONV2.macs / time / 1e12:.2f} TFLOP/s"))  # fmt: skip
    return ClaimTable(ledger, rows)


def _vgg_table(depth: int, batch: int = 1) -> ClaimTable:
    layers = vgg(depth)
    rows = long(
        *((layer.name, "FLOP per image", 2 * layer.macs) for layer in layers),
        ("total", "FLOP per image", 2 * macs_of(layers)),
    )
    return ClaimTable(estimated(f"vgg{depth}", 16), rows)


def _by_peak(depth: int, device: str, key: str, precision: str) -> ClaimTable:
    """FLOPs over a peak: FLOPs, peak, time, throughput."""
    flops = 2 * macs_of(vgg(depth))
    time = flops / PEAK[key]
    rows = long(("FLOPs", flops), ("peak", f"{PEAK[key] / 1e9:.0f} GFLOP/s"), ("inference time", f"{1e3 * time:.3f} ms"), ("throughput", f"{1 / time:.1f} images/s"),
                device=device, precision=precision, batch=1, kind="estimated")  # fmt: skip
    return ClaimTable(estimated(f"vgg{depth}"), rows)


def _v100_point(model: str, time: str = "kernel time") -> ClaimTable:
    """Counters, time and what follows from them, on the document's V100."""
    run = f"{model} V100 b16"
    flops, size, seconds = (stated(run, name) for name in ("measured FLOP", "DRAM bytes", "time"))
    rows = long(("measured FLOP", flops), ("DRAM bytes", size), (time, f"{seconds:.6f} s"), ("performance", f"{flops / seconds / 1e9:.1f} GFLOP/s"),
                ("achieved bandwidth", f"{size / seconds / 1e9:.1f} GB/s"), ("arithmetic intensity", f"{flops / size:.3f}"),
                ("peak", "15.7 TFLOP/s"), ("bandwidth", "900 GB/s"), device=V100, precision="fp32", batch=16)  # fmt: skip
    return ClaimTable(estimated(model, 16), rows)


def _recorded_run(name: str, batch: int) -> ClaimTable:
    """A run of the H200: times of three scopes, counters, rates by GPU-busy time, throughput by the wall."""
    ledger = recorded(name)
    wall, busy = of_step(ledger, "wall_time_s"), of_step(ledger, "gpu_busy_s")
    rows = long(
        ("wall time", f"{1e3 * wall:.3f} ms"), ("gpu busy", f"{1e3 * busy:.3f} ms"), ("measured FLOP", f"{executed(ledger):.0f}"), ("DRAM bytes", f"{moved(ledger):.0f}"),
        ("throughput", f"{batch / wall:.0f} images/s"), ("performance", f"{executed(ledger) / busy / 1e12:.2f} TFLOP/s"),
        ("achieved bandwidth", f"{moved(ledger) / busy / 1e9:.0f} GB/s"), ("arithmetic intensity", f"{executed(ledger) / moved(ledger):.2f}"),
        ("peak memory", f"{of_step(ledger, 'peak_allocated_bytes'):.0f}"), ("wall time / gpu busy", f"{wall / busy:.3f}"), batch=batch, device="h200",
    )  # fmt: skip
    return ClaimTable(ledger, rows)


WALL, BUSY, FLOPS, DRAM, THROUGHPUT, PERFORMANCE, TRAFFIC, INTENSITY, MEMORY, RATIO = range(10)
"""Rows of a recorded run."""


# 1 Cout missing.


@plants(1)
def cout_missing_of_conv2() -> PlantedTable:
    """At batch 32, where it cannot be taken for the batch."""
    return changed(_mnist(32), 1, 2 * 32 * CONV2.macs // 64)


@plants(1)
def cout_missing_of_a_vgg_layer() -> PlantedTable:
    return changed(_vgg_table(11), 1, 2 * vgg(11)[1].macs // 128)


@plants(1, "rate")
def cout_missing_in_a_rate() -> PlantedTable:
    """TFLOP/s of conv2 by FLOPs without the 64 output channels, beside the right FLOPs and the time."""
    table = _conv2_run()
    time = of_layer(table.ledger, "conv2", "kernel_time_s")
    return changed(table, 2, f"{2 * CONV2.macs / time / 1e12:.4f} TFLOP/s")


@plants(1, "ratio")
def cout_missing_in_a_share() -> PlantedTable:
    sum_ = macs_of(MNIST)
    right = ClaimTable(
        estimated("mnist-cnn", 64),
        long(*((layer.name, "share of flops", f"{100 * layer.macs / sum_:.2f} %") for layer in MNIST)),
    )
    return changed(right, 1, f"{100 * CONV2.macs / 64 / sum_:.2f} %")


# 2 Parameters scaled with the batch.


@plants(2)
def parameters_times_batch_in_conv2() -> PlantedTable:
    rows = long(
        ("conv2", "output tensor", 9_437_184),
        ("conv2", "param bytes", 73_984),
        ("conv2", "output + parameter bytes", 9_511_168),
        batch=64,
    )
    return changed(ClaimTable(estimated("mnist-cnn", 64), rows), 2, 64 * 221_440)


@plants(2)
def parameters_times_batch_of_vgg() -> PlantedTable:
    size = 4 * params_of(vgg(11))
    rows = long(("parameters", params_of(vgg(11))), ("params size", size), ("FLOPs", 32 * macs_of(vgg(11))), batch=16)
    return changed(ClaimTable(estimated("vgg11", 16), rows), 1, 16 * size)


@plants(2, "ratio")
def parameters_times_batch_in_a_ratio() -> PlantedTable:
    """Memory by parameters that were multiplied by 256."""
    used, size = stated("Exp1", "actual GPU memory"), 4 * 11_689_512
    rows = long(
        ("gpu memory", used),
        ("parameter bytes", size),
        ("gpu memory / parameter bytes", f"{used / size:.1f}"),
        device=V100,
        batch=256,
    )
    return changed(ClaimTable(estimated("resnet18", 256, "train"), rows), 2, f"{used / size / 256:.3f}")


# 3 Multiply-adds and FLOPs mixed.


@plants(3)
def macs_in_one_row_of_flops() -> PlantedTable:
    return changed(_mnist(), 1, 64 * CONV2.macs)


@plants(3)
def macs_in_the_total_of_flops() -> PlantedTable:
    """003's first table: rows in FLOPs, the total in multiply-adds."""
    rows = [
        *long(*((layer.name, "FLOP per image", 2 * layer.macs) for layer in vgg(11))),
        *long(("total", "FLOP", 32 * macs_of(vgg(11))), batch=16),
    ]
    return changed(ClaimTable(estimated("vgg11", 16), rows), len(rows) - 1, stated("vgg11", "total FLOP batch 16"))


@plants(3, "time")
def macs_over_the_peak_of_a_v100() -> PlantedTable:
    """0.985 ms for 1.971."""
    return changed(_by_peak(16, V100, "V100 fp32", "fp32"), 2, f"{1e3 * macs_of(vgg(16)) / PEAK['V100 fp32']:.3f} ms")


@plants(3, "time")
def macs_over_the_peak_of_a_k80() -> PlantedTable:
    return changed(_by_peak(16, "K80", "K80 fp64", "double"), 2, f"{1e3 * macs_of(vgg(16)) / PEAK['K80 fp64']:.2f} ms")


@plants(3, "time")
def macs_over_a_peak_in_a_wide_table() -> PlantedTable:
    """Nothing beside it but the model's name, the device and its parameters; and that it was computed."""
    rows: list[Cells] = [
        {
            "model": "vgg19",
            "device": V100,
            "precision": "fp32",
            "batch": 16,
            "kind": "estimated",
            "parameters": params_of(vgg(19)),
            "time (ms)": f"{32e3 * macs_of(vgg(19)) / PEAK['V100 fp32']:.2f}",
        }
    ]
    right = ClaimTable(estimated("vgg19", 16), rows)
    return PlantedTable(right, 0, {"time (ms)": f"{16e3 * macs_of(vgg(19)) / PEAK['V100 fp32']:.2f}"})


@plants(3, "rate")
def macs_in_a_throughput() -> PlantedTable:
    """282.3/s on one die of a K80, where FLOPs give 141.2."""
    return changed(_by_peak(16, "K80", "K80 fp32", "single"), 3, f"{PEAK['K80 fp32'] / macs_of(vgg(16)):.1f} images/s")


@plants(3, "rate")
def macs_in_a_performance() -> PlantedTable:
    """GFLOP/s by multiply-adds, beside FLOPs and the time."""
    run = "vgg11 A100 b16"
    time, flops = stated(run, "time"), 32 * macs_of(vgg(11))
    rows = long(
        ("FLOP", flops),
        ("kernel time", f"{time:.6f} s"),
        ("performance", f"{flops / time / 1e9:.1f} GFLOP/s"),
        device=A100,
        batch=16,
        kind="estimated",
    )
    return changed(ClaimTable(estimated("vgg11", 16), rows), 2, f"{flops / 2 / time / 1e9:.1f} GFLOP/s")


@plants(3, "ratio")
def macs_in_an_intensity() -> PlantedTable:
    size = correct("mnist32-64 conv2 b64", "conv2 input bytes") + 9_511_168
    flops = 128 * CONV2.macs
    rows = long(
        ("conv2", "FLOP", flops), ("conv2", "bytes", size), ("conv2", "FLOP / bytes", f"{flops / size:.2f}"), batch=64
    )
    return changed(ClaimTable(estimated("mnist-cnn", 64), rows), 2, f"{flops / 2 / size:.2f}")


@plants(3, "rate")
def macs_in_a_throughput_of_one_model_of_three() -> PlantedTable:
    macs = {"vgg16": macs_of(vgg(16)), "googlenet": 1_498_376_192, "alexnet": 714_188_480}
    rows: list[Cells] = [
        {"model": model, "device": "K80", "precision": "single", "batch": 1, "kind": "estimated", "MACs": count, "inference time (ms)": f"{2e3 * count / PEAK['K80 fp32']:.4f}",
         "throughput": f"{PEAK['K80 fp32'] / 2 / count:.1f}"}
        for model, count in macs.items()
    ]  # fmt: skip
    return PlantedTable(
        ClaimTable(estimated("vgg16"), rows), 2, {"throughput": f"{PEAK['K80 fp32'] / macs['alexnet']:.1f}"}
    )


# 4 Totals.


@plants(4)
def total_of_parameters() -> PlantedTable:
    rows = long(
        *((layer.name, "parameters", layer.params) for layer in MNIST), ("total", "parameters", params_of(MNIST))
    )
    return changed(ClaimTable(estimated("mnist-cnn", 64), rows), 4, params_of(MNIST) - MNIST[3].params)


@plants(4)
def total_sixteen_times_its_rows() -> PlantedTable:
    """Of one image as the rows are, and multiplied by the batch."""
    return changed(_vgg_table(13), len(vgg(13)), 32 * macs_of(vgg(13)))


@plants(4, "time")
def total_of_kernel_times() -> PlantedTable:
    """The sum leaves out the convolutions' neighbour."""
    ledger = recorded("mnist-cnn-infer-tf32")
    times = {name: of_layer(ledger, name, "kernel_time_s") for name in ("conv1", "conv2", "fc1", "fc2")}
    whole = of_step(ledger, "kernel_time_s")
    rows = long(
        *((name, "kernel time", f"{1e6 * time:.2f} us") for name, time in times.items()),
        ("total", "kernel time", f"{1e6 * whole:.1f} us"),
    )
    return changed(ClaimTable(ledger, rows), 4, f"{1e6 * sum(times.values()):.1f} us")


@plants(4, "ratio")
def shares_that_are_more_than_all() -> PlantedTable:
    layers = vgg(16)
    conv = 100 * macs_of(layer for layer in layers if layer.name.startswith("Conv")) / macs_of(layers)
    rows = long(("Conv2d", "share of flops", f"{conv:.2f} %"), ("Linear", "share of flops", f"{100 - conv:.2f} %"))
    return changed(ClaimTable(estimated("vgg16"), rows), 1, "8.00 %")


# 5 Output sizes typed by hand.


def _vgg13_sizes() -> ClaimTable:
    rows: list[Cells] = [
        {"layer": layer.name, "output size": layer.size, "FLOP per image": 2 * layer.macs} for layer in vgg(13)[:10]
    ]
    return ClaimTable(estimated("vgg13", 16), rows)


@plants(5)
def output_size_after_the_pool() -> PlantedTable:
    return PlantedTable(_vgg13_sizes(), 1, {"output size": 112})


@plants(5)
def flops_by_the_size_after_the_pool() -> PlantedTable:
    return PlantedTable(_vgg13_sizes(), 5, {"FLOP per image": 2 * vgg(13)[5].macs // 4})


@plants(5)
def output_size_without_the_border() -> PlantedTable:
    rows = long(("conv1", "output size", 26), ("conv2", "output size", 24), ("fc1", "input features", 9216))
    return changed(ClaimTable(estimated("mnist-cnn", 64), rows), 1, 26)


@plants(5, "ratio")
def output_size_in_a_share() -> PlantedTable:
    layers = vgg(13)
    rows = long(
        *((layer.name, "share of flops", f"{100 * layer.macs / macs_of(layers):.2f} %") for layer in layers[:4])
    )
    return changed(ClaimTable(estimated("vgg13", 16), rows), 3, f"{100 * layers[3].macs / 4 / macs_of(layers):.2f} %")


# 6 Batch.


@plants(6)
def batch_of_an_output() -> PlantedTable:
    """The caption says 1, and the bytes are of 64."""
    rows = [
        *long(("conv2", "output bytes", 147_456), batch=1),
        *long(("conv1", "output bytes", 32 * 26 * 26 * 4), batch=1),
        *long(("conv2", "FLOP", 128 * CONV2.macs), batch=64),
    ]
    return changed(ClaimTable(estimated("mnist-cnn", 64), rows), 0, 9_437_184)


@plants(6)
def batch_of_the_flops() -> PlantedTable:
    rows = [
        *long(("FLOP", 32 * macs_of(vgg(11))), batch=16),
        *long(("FLOP", 2 * macs_of(vgg(11))), batch=1),
        *long(("parameters", params_of(vgg(11)))),
    ]
    return changed(ClaimTable(estimated("vgg11", 16), rows), 0, 64 * macs_of(vgg(11)))


@plants(6, "rate")
def batch_in_a_recorded_throughput() -> PlantedTable:
    """32 images by the time of a step of 16."""
    table = _recorded_run("resnet50-infer-fp32", 16)
    return changed(table, THROUGHPUT, f"{32 / of_step(table.ledger, 'wall_time_s'):.0f} images/s")


@plants(6, "rate")
def batch_in_a_throughput_elsewhere() -> PlantedTable:
    """Of a GPU that was not measured: the row's own batch and time contradict it."""
    rows: list[Cells] = [
        {
            "device": "V100",
            "batch": batch,
            "step time (ms)": f"{time:.2f}",
            "throughput": f"{1e3 * batch / time:.1f}",
            "parameters": 25_557_032,
        }
        for batch, time in ((8, 21.5), (16, 38.75), (32, 74.25))
    ]
    return PlantedTable(ClaimTable(estimated("resnet50", 16), rows), 1, {"throughput": f"{1e3 * 64 / 38.75:.1f}"})


@plants(6, "time")
def batch_in_a_time_by_the_peak() -> PlantedTable:
    """The time of one image in the row of sixteen: faster than the GPU can."""
    flops = 32 * macs_of(vgg(19))
    rows = long(
        ("FLOPs", flops),
        ("peak", "15.7 TFLOP/s"),
        ("time", f"{1e3 * flops / 15.7e12:.2f} ms"),
        device=V100,
        precision="fp32",
        batch=16,
        kind="estimated",
    )
    return changed(ClaimTable(estimated("vgg19", 16), rows), 2, f"{1e3 * flops / 16 / 15.7e12:.3f} ms")


@plants(6, "rate")
def batch_left_out_of_a_throughput() -> PlantedTable:
    """Steps a second called images a second."""
    rows = long(
        ("step time", "38.75 ms"),
        ("throughput", "412.9 images/s"),
        ("parameters", 25_557_032),
        device=V100,
        batch=16,
        kind="measured",
    )
    return changed(ClaimTable(estimated("resnet50", 16), rows), 1, "25.8 images/s")


@plants(6, "ratio")
def batches_in_a_speed_up() -> PlantedTable:
    """Throughput of a step of 32 by that of one of 16, as if they were the same: its own rows give half."""
    rows = [*long(("throughput", "1345 images/s"), device=A100, batch=16), *long(("throughput", "415 images/s"), device=V100, batch=16),
            *long((f"throughput on {A100} / throughput on {V100}", "3.24"), batch=16), *long(("parameters", 25_557_032))]  # fmt: skip
    return changed(ClaimTable(estimated("resnet50", 16), rows), 2, "1.62")


# 7 Tensor-core work missing.


@plants(7)
def tensor_work_missing_of_mnist() -> PlantedTable:
    table = _recorded_run("mnist-cnn-infer-tf32", 64)
    return changed(table, FLOPS, f"{of_step(table.ledger, 'cuda_flops_fp32'):.0f}")


@plants(7)
def tensor_work_missing_on_an_a100() -> PlantedTable:
    """002's trial 3: fadd + fmul + 2 x ffma of a training step that ran in TF32; a V100 counted eight times as much."""
    rows = [
        *long(("actual FLOP", 21_768_880_128), ("wall time", "0.223984715 s"), device=A100),
        *long(("actual FLOP", stated("Exp1 resnet18 V100", "actual FLOP")), device=V100),
    ]
    return changed(ClaimTable(estimated("resnet18", 2, "train"), rows), 0, stated("Exp3 resnet18 A100", "actual FLOP"))


@plants(7, "rate")
def tensor_work_missing_in_a_rate() -> PlantedTable:
    table = _recorded_run("vgg19-infer-fp32", 16)
    rate = of_step(table.ledger, "cuda_flops_fp32") / of_step(table.ledger, "gpu_busy_s")
    return changed(table, PERFORMANCE, f"{rate / 1e12:.2f} TFLOP/s")


@plants(7, "ratio")
def tensor_work_missing_in_an_intensity() -> PlantedTable:
    table = _recorded_run("vgg19-infer-fp32", 16)
    return changed(table, INTENSITY, f"{of_step(table.ledger, 'cuda_flops_fp32') / moved(table.ledger):.2f}")


@plants(7, "rate")
def tensor_work_missing_in_the_rate_of_a_layer() -> PlantedTable:
    ledger = recorded("mnist-cnn-infer-tf32")
    time, cuda = of_layer(ledger, "conv2", "kernel_time_s"), of_layer(ledger, "conv2", "cuda_flops_fp32")
    whole = cuda + of_layer(ledger, "conv2", "tensor_flops_tf32")
    rows = long(
        ("conv2", "measured FLOP", f"{whole:.0f}"),
        ("conv2", "kernel time", f"{1e6 * time:.2f} us"),
        ("conv2", "performance", f"{whole / time / 1e12:.2f} TFLOP/s"),
    )
    return changed(ClaimTable(ledger, rows), 2, f"{cuda / time / 1e9:.1f} GFLOP/s")


# 8 Forward for training.


@plants(8)
def forward_flops_of_a_training_step() -> PlantedTable:
    forward = 2 * 3_628_146_688
    whole = total(estimated("resnet18", 2, "train").ops).flops
    rows = [*long(("FLOP", forward), step="forward", batch=2), *long(("FLOP", whole), step="training", batch=2)]
    return changed(ClaimTable(estimated("resnet18", 2, "train"), rows), 1, forward)


@plants(8, "ratio")
def forward_flops_in_a_ratio() -> PlantedTable:
    """Measured of a training step by the estimate of its forward pass."""
    ledger = studied("resnet-memory-roofline", "resnet18-b2-train-fp32")
    whole, ran = total(ledger.ops).flops, executed(ledger) + of_step(ledger, "cuda_flops_fp64")
    rows = long(
        ("measured FLOP", f"{ran:.0f}"),
        ("theoretical FLOP", whole),
        ("measured FLOP / theoretical FLOP", f"{ran / (whole or 1):.3f}"),
        batch=2,
        step="training",
    )
    return changed(ClaimTable(ledger, rows), 2, f"{ran / (2 * 3_628_146_688):.3f}")


@plants(8, "time")
def forward_flops_in_a_time() -> PlantedTable:
    """A training step in the time that its forward pass takes at the peak."""
    whole = total(estimated("resnet50", 2, "train").ops).flops or 0
    rows = long(
        ("FLOPs", whole),
        ("peak", "15.7 TFLOP/s"),
        ("step time", f"{1e3 * whole / 15.7e12:.3f} ms"),
        device=V100,
        precision="fp32",
        batch=2,
        step="training",
        kind="estimated",
    )
    return changed(
        ClaimTable(estimated("resnet50", 2, "train"), rows), 2, f"{1e3 * 4 * 4_089_184_256 / 15.7e12:.3f} ms"
    )


@plants(8, "rate")
def forward_flops_in_a_rate() -> PlantedTable:
    """GFLOP/s of a training step by the FLOPs of its forward pass, beside those of the step and its time."""
    whole = total(estimated("resnet50", 2, "train").ops).flops or 0
    rows = long(
        ("FLOPs", whole),
        ("kernel time", "25.0 ms"),
        ("performance", f"{whole / 0.025 / 1e9:.0f} GFLOP/s"),
        device=V100,
        precision="fp32",
        batch=2,
        step="training",
    )
    return changed(
        ClaimTable(estimated("resnet50", 2, "train"), rows), 2, f"{4 * 4_089_184_256 / 0.025 / 1e9:.0f} GFLOP/s"
    )


# 9 Parameters for the memory.


@plants(9)
def parameters_for_the_peak_memory() -> PlantedTable:
    return changed(_recorded_run("vgg19-infer-fp32", 16), MEMORY, 4 * params_of(vgg(19)))


@plants(9)
def parameters_for_the_gpu_memory() -> PlantedTable:
    ledger = recorded("resnet50-train-fp32")
    used = of_step(ledger, "peak_reserved_bytes") + of_step(ledger, "outside_bytes")
    rows = long(
        ("parameter bytes", 102_228_128),
        ("gpu memory", f"{used:.0f}"),
        ("peak memory", f"{of_step(ledger, 'peak_allocated_bytes'):.0f}"),
    )
    return changed(ClaimTable(ledger, rows), 1, 102_228_128)


@plants(9, "ratio")
def parameters_in_a_ratio_of_memory() -> PlantedTable:
    """ "More than 290 times", where the table's own numbers give 289."""
    used, size = stated("Exp1", "actual GPU memory"), 4 * 11_689_512
    rows = long(
        ("gpu memory", used),
        ("parameter bytes", size),
        ("gpu memory / parameter bytes", f"{used / size:.1f}"),
        device=V100,
        batch=256,
    )
    return changed(ClaimTable(estimated("resnet18", 256, "train"), rows), 2, ">290")


# 10 Workspace, output, growth.


def _conv2_memory() -> ClaimTable:
    ledger = recorded("mnist-cnn-infer-tf32")
    rows = long(("conv2", "output tensor", 9_437_184), ("conv2", "growth", f"{of_layer(ledger, 'conv2', 'growth_bytes'):.0f}"),
                ("conv2", "workspace", f"{of_layer(ledger, 'conv2', 'workspace_bytes'):.0f}"))  # fmt: skip
    return ClaimTable(ledger, rows)


@plants(10)
def allocation_for_the_growth() -> PlantedTable:
    table = _conv2_memory()
    return changed(table, 1, f"{9_437_184 + of_layer(table.ledger, 'conv2', 'workspace_bytes'):.0f}")


@plants(10)
def output_for_the_workspace() -> PlantedTable:
    return changed(_conv2_memory(), 2, 9_437_184)


@plants(10)
def workspace_for_the_output() -> PlantedTable:
    """Of the document's profile: 31,392 KiB are what the kernel gave back."""
    rows = long(
        ("conv2", "output tensor", "9216 KiB"),
        ("conv2", "workspace", "31392 KiB"),
        ("conv2", "allocation size", "40608 KiB"),
        batch=64,
    )
    return changed(ClaimTable(estimated("mnist-cnn", 64), rows), 0, "31392 KiB")


@plants(10, "ratio")
def allocation_in_a_ratio() -> PlantedTable:
    rows = long(
        ("conv2", "output tensor", "9216 KiB"),
        ("conv2", "workspace", "31392 KiB"),
        ("conv2", "workspace / output tensor", "3.406"),
        batch=64,
    )
    return changed(ClaimTable(estimated("mnist-cnn", 64), rows), 2, f"{40608 / 9216:.3f}")


# 11 Units.


@plants(11)
def mib_and_mb_in_one_table() -> PlantedTable:
    rows = long(
        ("total", "params size", "4.80 MB"), ("conv2", "output bytes", "9.44 MB"), ("conv2", "input bytes", "5.54 MB")
    )
    return changed(ClaimTable(estimated("mnist-cnn", 64), rows), 0, "4.58 MB")


@plants(11)
def bytes_of_a_log_without_their_unit() -> PlantedTable:
    """Kilobytes of a log read as bytes."""
    ledger = recorded("resnet50-infer-fp32")
    rows = long(
        ("DRAM read", f"{of_step(ledger, 'dram_bytes_read'):.0f}"),
        ("DRAM written", f"{of_step(ledger, 'dram_bytes_written'):.0f}"),
        ("kernels", 240),
    )
    return changed(ClaimTable(ledger, rows), 0, f"{of_step(ledger, 'dram_bytes_read') / 1e3:.0f}")


@plants(11, "rate")
def kib_read_as_kb_in_a_rate() -> PlantedTable:
    """GB/s by KiB taken for KB, on a GPU that was not measured: its own rows contradict it."""
    seconds, kib = 0.163317, 16_180_371
    rows = long(
        ("DRAM bytes", f"{kib} KiB"),
        ("kernel time", f"{seconds} s"),
        ("achieved bandwidth", f"{kib * 1024 / seconds / 1e9:.2f} GB/s"),
        ("bandwidth", "900 GB/s"),
        device=V100,
        batch=16,
    )
    return changed(ClaimTable(estimated("vgg11", 16), rows), 2, f"{kib * 1000 / seconds / 1e9:.2f} GB/s")


@plants(11, "ratio")
def mib_by_mb_in_a_ratio() -> PlantedTable:
    """Memory in MiB by parameters in MB."""
    used, size = stated("Exp1", "actual GPU memory"), 4 * 11_689_512
    rows = long(
        ("gpu memory", f"{used / 2**20:.0f} MiB"),
        ("parameter bytes", f"{size / 1e6:.3f} MB"),
        ("gpu memory / parameter bytes", f"{used / size:.1f}"),
        device=V100,
        batch=256,
    )
    return changed(ClaimTable(estimated("resnet18", 256, "train"), rows), 2, f"{used / 2**20 / (size / 1e6):.1f}")


@plants(11, "time")
def seconds_for_milliseconds() -> PlantedTable:
    return changed(
        _recorded_run("resnet50-infer-fp32", 16),
        WALL,
        f"{1e3 * of_step(recorded('resnet50-infer-fp32'), 'wall_time_s'):.3f} s",
    )


@plants(11, "ratio")
def kib_read_as_kb_in_an_intensity() -> PlantedTable:
    kib, flops = 16_180_371, stated("vgg11 V100 b16", "measured FLOP")
    rows = long(
        ("measured FLOP", flops),
        ("DRAM bytes", f"{kib} KiB"),
        ("arithmetic intensity", f"{flops / kib / 1024:.3f}"),
        device=V100,
        batch=16,
    )
    return changed(ClaimTable(estimated("vgg11", 16), rows), 2, f"{flops / kib / 1000:.3f}")


@plants(11, "rate")
def only_what_was_read_in_a_rate() -> PlantedTable:
    """Bytes read by the time, where bytes read and written are called for."""
    table = _recorded_run("vgg19-infer-fp32", 16)
    return changed(
        table,
        TRAFFIC,
        f"{of_step(table.ledger, 'dram_bytes_read') / of_step(table.ledger, 'gpu_busy_s') / 1e9:.0f} GB/s",
    )


# 12 Replicas.


@plants(12)
def parameters_of_two_replicas() -> PlantedTable:
    rows = [
        *long(("parameters", 11_689_512), note="1 GPU"),
        *long(("parameters", 11_689_512), note="2 GPUs"),
        *long(("gradients", 4 * 11_689_512)),
    ]
    return changed(ClaimTable(estimated("resnet18", 256, "train"), rows), 1, 23_379_024)


@plants(12)
def bytes_of_two_replicas() -> PlantedTable:
    size = 4 * 25_557_032
    rows = long(("parameters", 25_557_032), ("parameter bytes", size))
    return changed(ClaimTable(estimated("resnet50", 256, "train"), rows), 1, 2 * size)


@plants(12, "ratio")
def replicas_in_a_ratio() -> PlantedTable:
    rows = [*long(("parameters", 11_689_512), model="resnet18"), *long(("parameters", 25_557_032), model="resnet50"),
            *long(("parameters of resnet50 / parameters of resnet18", "2.186"))]  # fmt: skip
    return changed(ClaimTable(estimated("resnet18", 256, "train"), rows), 2, "4.373")


@plants(12, "rate")
def replicas_in_a_throughput() -> PlantedTable:
    """Twice the images of the one GPU that was measured."""
    table = _recorded_run("resnet50-infer-fp32", 16)
    return changed(table, THROUGHPUT, f"{2 * 16 / of_step(table.ledger, 'wall_time_s'):.0f} images/s")


# 13 Functional ops, identity pool.


@plants(13)
def identity_pool_charged() -> PlantedTable:
    rows = long(
        ("features_0", "FLOP", 2 * vgg(16)[0].macs), ("avgpool", "ops", 0), ("classifier_6", "FLOP", 8_192_000), batch=1
    )
    return changed(ClaimTable(estimated("vgg16"), rows), 1, stated("vgg16 avgpool", "ops"))


@plants(13)
def functional_ops_unseen_in_bytes() -> PlantedTable:
    """The step's bytes as the sum over its modules: what relu, pool and log_softmax move is missing."""
    ledger = estimated("mnist-cnn", 64)
    sizes = {
        name: total(op for op in ledger.ops if op.module == name).bytes for name in ("conv1", "conv2", "fc1", "fc2")
    }
    rows = long(*((name, "bytes", size) for name, size in sizes.items()), ("total", "bytes", total(ledger.ops).bytes))
    return changed(ClaimTable(ledger, rows), 4, sum(size or 0 for size in sizes.values()))


@plants(13, "time")
def functional_ops_unseen_in_a_time() -> PlantedTable:
    """Kernel time of the step without the functional ops, on the recording."""
    ledger = recorded("mnist-cnn-train-tf32")
    modules = sum(of_layer(ledger, name, "kernel_time_s") for name in ("conv1", "conv2", "fc1", "fc2"))
    rows = long(("kernel time", f"{1e6 * of_step(ledger, 'kernel_time_s'):.1f} us"), ("kernels", 58))
    return changed(ClaimTable(ledger, rows), 0, f"{1e6 * modules:.1f} us")


# 14 Another model.


def _vgg19() -> ClaimTable:
    layers = vgg(19)
    share = 100 * macs_of(layer for layer in layers if layer.name.startswith("Conv")) / macs_of(layers)
    rows = [*long(("parameters", params_of(layers)), ("FLOPs", 32 * macs_of(layers)), batch=16, model="vgg19"), *long(("Conv2d", "share of flops", f"{share:.2f} %"), batch=16, model="vgg19"),
            *long(("total", "time", f"{32e3 * macs_of(layers) / 15.7e12:.2f} ms"), batch=16, model="vgg19", device=V100, precision="fp32", kind="estimated")]  # fmt: skip
    return ClaimTable(estimated("vgg19", 16), rows)


@plants(14)
def parameters_of_another_model() -> PlantedTable:
    return changed(_vgg19(), 0, params_of(vgg(16)))


@plants(14)
def flops_of_another_model() -> PlantedTable:
    return changed(_vgg19(), 1, 32 * macs_of(vgg(16)))


@plants(14, "ratio")
def share_of_another_model() -> PlantedTable:
    """The convolutions' share is VGG-16's."""
    return changed(_vgg19(), 2, "99.20 %")


@plants(14, "time")
def time_of_another_model() -> PlantedTable:
    """VGG-11's FLOPs over the peak: faster than VGG-19 can be."""
    return changed(_vgg19(), 3, f"{32e3 * macs_of(vgg(11)) / 15.7e12:.2f} ms")


@plants(14, "ratio")
def another_model_in_a_ratio() -> PlantedTable:
    """VGG-16's parameters for VGG-19's, by VGG-11's."""
    rows = [
        *long(("parameters", params_of(vgg(19))), model="vgg19"),
        *long(("parameters", params_of(vgg(11))), model="vgg11"),
        *long(("parameters of vgg19 / parameters of vgg11", f"{params_of(vgg(19)) / params_of(vgg(11)):.4f}")),
    ]
    return changed(ClaimTable(estimated("vgg19", 16), rows), 2, f"{params_of(vgg(16)) / params_of(vgg(11)):.4f}")


# 15 Bound.


def _vgg19_roof() -> ClaimTable:
    """By kernel time, so that no scope is mixed."""
    run = "vgg19 V100 b16"
    rows = long(
        ("measured FLOP", stated(run, "measured FLOP")), ("DRAM bytes", stated(run, "DRAM bytes")), ("kernel time", f"{stated(run, 'time'):.6f} s"),
        ("percent of roof", f"{correct(run, 'percent of attainable'):.1f} %"), ("ridge point", "17.44"), device=V100, precision="fp32", batch=16,
    )  # fmt: skip
    return ClaimTable(estimated("vgg19", 16), rows)


@plants(15)
def memory_side_of_the_ridge() -> PlantedTable:
    """002 calls trial 1 memory-bound: 21.9 FLOP a byte, where the ridge is at 17.4."""
    run = "Exp1 resnet18 V100"
    rows = long(("actual FLOP", stated(run, "actual FLOP")), ("DRAM bytes", stated(run, "DRAM bytes")), ("arithmetic intensity", "21.945"),
                ("ridge point", "17.44"), ("side of the ridge", "compute"), device=V100, precision="fp32", batch=2)  # fmt: skip
    return changed(ClaimTable(estimated("resnet18", 2, "train"), rows), 4, "memory")


@plants(15)
def memory_bound_where_the_host_is_the_limit() -> PlantedTable:
    ledger = recorded("mnist-cnn-infer-tf32")
    rows = long(
        ("wall time", f"{1e6 * of_step(ledger, 'wall_time_s'):.0f} us"),
        ("gpu busy", f"{1e6 * of_step(ledger, 'gpu_busy_s'):.1f} us"),
        ("bound", "host"),
    )
    return changed(ClaimTable(ledger, rows), 2, "memory")


@plants(15)
def memory_bound_far_from_the_roof() -> PlantedTable:
    run = "Exp2 resnet50 V100"
    rows = long(
        ("actual FLOP", stated(run, "actual FLOP")),
        ("DRAM bytes", stated(run, "DRAM bytes")),
        ("kernel time", f"{stated(run, 'time')} s"),
        ("bound", "overhead"),
        device=V100,
        precision="fp32",
    )
    return changed(ClaimTable(estimated("resnet50", 2, "train"), rows), 3, "memory-bound")


@plants(15, "ratio")
def close_to_the_roof() -> PlantedTable:
    """ "Performing very well": 86% where it is 17%."""
    return changed(_vgg19_roof(), 3, "86 %")


# 16 Time scopes.


@plants(16)
def gpu_busy_for_the_wall() -> PlantedTable:
    table = _recorded_run("resnet50-infer-fp32", 16)
    return changed(table, WALL, f"{1e3 * of_step(table.ledger, 'gpu_busy_s'):.3f} ms")


@plants(16)
def wall_for_gpu_busy() -> PlantedTable:
    ledger = studied("resnet-memory-roofline", "resnet18-b2-train-fp32")
    rows = long(
        ("wall time", f"{1e3 * of_step(ledger, 'wall_time_s'):.1f} ms"),
        ("gpu busy", f"{1e3 * of_step(ledger, 'gpu_busy_s'):.2f} ms"),
    )
    return changed(ClaimTable(ledger, rows), 1, f"{1e3 * of_step(ledger, 'wall_time_s'):.2f} ms")


@plants(16, "rate")
def throughput_by_gpu_busy() -> PlantedTable:
    """Images a second as if the host cost nothing."""
    table = _recorded_run("resnet50-infer-fp32", 16)
    return changed(table, THROUGHPUT, f"{16 / of_step(table.ledger, 'gpu_busy_s'):.0f} images/s")


@plants(16, "ratio")
def speed_up_of_two_scopes() -> PlantedTable:
    """Wall time of one GPU by the kernel time of the other."""
    rows = [*long(("wall time", "31.0 ms"), ("kernel time", "20.0 ms"), device=V100), *long(("wall time", "24.8 ms"), ("kernel time", "12.5 ms"), device=A100),
            *long((f"wall time on {V100} / wall time on {A100}", "1.25"), ("parameters", 25_557_032))]  # fmt: skip
    return changed(ClaimTable(estimated("resnet50", 16), rows), 4, "2.48")


# 17 Peaks.


@plants(17)
def peak_off_by_ten() -> PlantedTable:
    return changed(_v100_point("vgg11"), 6, "157000 GFLOP/s")


@plants(17)
def board_for_one_die() -> PlantedTable:
    rows = [
        *long(("peak", "4368 GFLOP/s"), device="K80", precision="single"),
        *long(("peak", "1456 GFLOP/s"), device="K80", precision="double"),
    ]
    return changed(ClaimTable(estimated("vgg16"), rows), 0, "8730 GFLOP/s")


@plants(17)
def double_precision_as_two_gpus() -> PlantedTable:
    rows = [
        *long(("peak", "8730 GFLOP/s"), device="2x K80", precision="single"),
        *long(("peak", "1456 GFLOP/s"), device="K80", precision="double"),
    ]
    return changed(ClaimTable(estimated("vgg16"), rows), 0, "2910 GFLOP/s")


@plants(17, "time")
def time_by_the_boards_peak() -> PlantedTable:
    """3.54 ms on one die, whose peak allows 7.08."""
    return changed(
        _by_peak(16, "K80", "K80 fp32", "single"), 2, f"{2e3 * macs_of(vgg(16)) / PEAK['board fp32']:.2f} ms"
    )


@plants(17, "ratio")
def percent_of_a_peak_of_two_dies() -> PlantedTable:
    rows = long(
        ("performance", "873.6 GFLOP/s"),
        ("peak", "4368 GFLOP/s"),
        ("performance / peak", "20.0 %"),
        device="K80",
        precision="single",
        batch=1,
    )
    return changed(ClaimTable(estimated("vgg16"), rows), 2, "10.0 %")


@plants(17, "ratio")
def ridge_by_nvlink() -> PlantedTable:
    """A peak by the bandwidth between GPUs."""
    rows = long(
        ("peak", "15.7 TFLOP/s"), ("bandwidth", "900 GB/s"), ("ridge point", "17.44"), device=V100, precision="fp32"
    )
    return changed(ClaimTable(estimated("vgg11", 16), rows), 2, "52.33")


@plants(17, "time")
def time_by_the_peak_of_another_precision() -> PlantedTable:
    """21.25 ms in single precision, by the peak of double."""
    return changed(_by_peak(16, "K80", "K80 fp32", "single"), 2, f"{2e3 * macs_of(vgg(16)) / PEAK['K80 fp64']:.2f} ms")


@plants(17, "ratio")
def percent_of_the_peak_of_another_precision() -> PlantedTable:
    """TF32's FLOP/s by the peak of fp32."""
    rows = long(
        ("performance", "7800 GFLOP/s"),
        ("peak", "156 TFLOP/s"),
        ("performance / peak", "5.0 %"),
        device=A100,
        precision="tf32",
        batch=16,
    )
    return changed(ClaimTable(estimated("vgg19", 16), rows), 2, "40.0 %")


# 18 Preferred by balance.


def _two_gpus(model: str) -> ClaimTable:
    times = {gpu: stated(f"{model} {gpu} b16", "time") for gpu in ("V100", "A100")}
    rows = [*long(("kernel time", f"{times['V100']:.6f} s"), device=V100), *long(("kernel time", f"{times['A100']:.6f} s"), device=A100),
            *long(("faster device", A100), (f"kernel time on {V100} / kernel time on {A100}", f"{times['V100'] / times['A100']:.3f}"))]  # fmt: skip
    return ClaimTable(estimated(model, 16), rows)


@plants(18)
def v100_preferred_for_vgg11() -> PlantedTable:
    return changed(_two_gpus("vgg11"), 2, V100, quantity="preferred device")


@plants(18)
def v100_preferred_for_vgg19() -> PlantedTable:
    return changed(_two_gpus("vgg19"), 2, V100)


@plants(18, "ratio")
def speed_up_upside_down() -> PlantedTable:
    """As if the V100 were the faster one."""
    times = [stated(f"vgg13 {gpu} b16", "time") for gpu in ("A100", "V100")]
    return changed(_two_gpus("vgg13"), 3, f"{times[0] / times[1]:.3f}")


# 19 Misspelt metrics.


def _counters() -> ClaimTable:
    ledger = recorded("mnist-cnn-infer-tf32")
    names = [f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("fadd", "fmul", "ffma")]
    return ClaimTable(
        ledger, long(*((name, f"{of_step(ledger, name):.0f}") for name in ("dram__bytes_read.sum", *names)))
    )


@plants(19)
def fmuls_for_fmul() -> PlantedTable:
    return changed(_counters(), 2, "n/a", quantity="smsp__sass_thread_inst_executed_op_fmuls_pred_on.sum")


@plants(19)
def reads_for_read() -> PlantedTable:
    return changed(_counters(), 0, 0, quantity="dram__bytes_reads.sum")


@plants(19, "rate")
def a_misspelt_counter_in_a_rate() -> PlantedTable:
    """What Nsight Compute did not find is missing from the CUDA cores' FLOPs: fadd + 2 x ffma alone."""
    ledger = recorded("mnist-cnn-infer-fp32")
    fadd, fmul, ffma = (
        of_step(ledger, f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum") for op in ("fadd", "fmul", "ffma")
    )
    rows = long(
        ("cuda flops", f"{fadd + fmul + 2 * ffma:.0f}"), ("gpu busy", f"{1e6 * of_step(ledger, 'gpu_busy_s'):.2f} us")
    )
    return changed(ClaimTable(ledger, rows), 0, f"{fadd + 2 * ffma:.0f}")


# 20 Disagreeing tools.


@plants(20)
def two_summaries_of_one_model() -> PlantedTable:
    """0.45 MiB by one tool, 0.52 by the other."""
    rows = [
        *long(("forward/backward size", "0.45 MiB"), note="torch-summary", batch=1),
        *long(("forward/backward size", "0.447 MiB"), note="torchsummary", batch=1),
        *long(("parameters", 1_199_882)),
    ]
    return changed(ClaimTable(estimated("mnist-cnn", 64), rows), 1, "0.52 MiB")


@plants(20)
def two_counts_of_one_run() -> PlantedTable:
    """Of a GPU that was not measured: neither can be checked, and both cannot stand."""
    rows = [*long(("measured FLOP", stated("vgg11 V100 b16", "measured FLOP")), device=V100, batch=16, note="ncu"),
            *long(("measured FLOP", "221.7 GFLOP"), device=V100, batch=16, note="nvprof"), *long(("parameters", params_of(vgg(11))))]  # fmt: skip
    return changed(ClaimTable(estimated("vgg11", 16), rows), 1, "301.2 GFLOP")


@plants(20, "time")
def two_times_of_one_run() -> PlantedTable:
    rows = [
        *long(("wall time", "0.2029 s"), device=V100, batch=2, note="timer"),
        *long(("wall time", "0.203 s"), device=V100, batch=2, note="log"),
        *long(("parameters", 11_689_512)),
    ]
    return changed(ClaimTable(estimated("resnet18", 2, "train"), rows), 1, "0.031 s")


# As others write them: mistakes that a stranger's tables had.


def _resnet50(*rows: tuple[object, ...]) -> ClaimTable:
    ledger = recorded("resnet50-infer-fp32")
    time = f"{1e3 * of_step(ledger, 'wall_time_s'):.3f} ms"
    return ClaimTable(ledger, long(("wall time", time), ("FLOPs", total(ledger.ops).flops), *rows))


@plants(16, "rate")
def a_speed_while_busy_beside_the_wall() -> PlantedTable:
    """By the GPU-busy time, where the only time of the table is the wall's."""
    ledger = recorded("resnet50-infer-fp32")
    flops, wall, busy = total(ledger.ops).flops, of_step(ledger, "wall_time_s"), of_step(ledger, "gpu_busy_s")
    right = _resnet50(("TFLOP/s", f"{flops / wall / 1e12:.2f}"))
    return changed(right, 2, f"{flops / busy / 1e12:.2f}")


@plants(3, "ratio")
def utilisation_of_multiply_adds() -> PlantedTable:
    """MFU against 494.5 TFLOP/s, the tf32 peak of an H200."""
    ledger = recorded("resnet50-infer-fp32")
    used = 100 * total(ledger.ops).flops / of_step(ledger, "wall_time_s") / 494.5e12
    return changed(_resnet50(("MFU", f"{used:.2f}%")), 2, f"{used / 2:.2f}%")


@plants(3, "ratio")
def intensity_of_multiply_adds() -> PlantedTable:
    ledger = recorded("resnet50-infer-fp32")
    sums = total(ledger.ops)
    return changed(_resnet50(("AI", f"{sums.flops / sums.bytes:.3f}")), 2, f"{sums.macs / sums.bytes:.3f}")


@plants(11)
def gigabytes_called_gibibytes() -> PlantedTable:
    """Who writes GiB says which it is."""
    ledger = recorded("resnet50-infer-fp32")
    peak = of_step(ledger, "peak_allocated_bytes")
    return changed(_resnet50(("peak memory (GiB)", f"{peak / 2**30:.4f}")), 2, f"{peak / 1e9:.4f}")


@plants(6)
def a_batch_copied_to_the_next() -> PlantedTable:
    """Batch 2 has the FLOPs of batch 1, which are its multiply-adds as well."""
    layers = vgg(16)
    rows = [
        row
        for batch in (1, 2, 4)
        for row in long(("FLOPs", f"{2 * batch * macs_of(layers) / 1e9:.2f} GFLOP"), batch=batch)
    ]
    return changed(ClaimTable(estimated("vgg16"), rows), 1, f"{2 * macs_of(layers) / 1e9:.2f} GFLOP")


@plants(15, "ratio")
def a_side_against_its_own_ridge() -> PlantedTable:
    """19.3 FLOP/B are right of a ridge of 17.4."""
    rows = long(("AI", "19.3"), ("ridge point", "17.4"), ("side", "compute"), device="V100")
    return changed(ClaimTable(estimated("resnet50"), rows), 2, "memory")
