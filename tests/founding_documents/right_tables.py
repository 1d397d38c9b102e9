"""Tables of claims (sixty and some) in which every number is right: no row of them may be called wrong.

Their numbers are worked out by hand, taken from a ledger's sums, from a recording or from the documents' right rows.
Each function makes one table; its name is the table's, and the first line says why it is right.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

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

RIGHT: dict[str, Callable[[], ClaimTable]] = {}


def right(table: Callable[[], ClaimTable]) -> Callable[[], ClaimTable]:
    RIGHT[table.__name__] = table
    return table


# Layers of the MNIST net (000), by hand.


@right
def mnist_flops_of_every_layer() -> ClaimTable:
    """2 x multiply-adds by hand, at the ledger's batch, with their sum."""
    rows = [(layer.name, "FLOP", f"{2 * 64 * layer.macs:,}") for layer in MNIST]
    return ClaimTable(
        estimated("mnist-cnn", 64), long(*rows, ("total", "FLOP", f"{2 * 64 * macs_of(MNIST):,}"), batch=64)
    )


@right
def mnist_wide() -> ClaimTable:
    """One row a layer: MFLOPs, parameters, shape; and a total without a shape."""
    shapes = ("64x32x26x26", "64x64x24x24", "64x128", "64x10")
    rows: list[Cells] = [
        {"layer": layer.name, "MFLOPs": f"{128 * layer.macs / 1e6:.4f}", "#params": layer.params, "output shape": shape}
        for layer, shape in zip(MNIST, shapes, strict=True)
    ]
    sums = {"layer": "total", "MFLOPs": f"{128 * macs_of(MNIST) / 1e6:.1f}", "#params": params_of(MNIST)}
    return ClaimTable(estimated("mnist-cnn", 64), [*rows, {**sums, "output shape": ""}])


@right
def mnist_macs_called_macs() -> ClaimTable:
    """Multiply-adds under their own name, of one image, with the summary tool's rounded total."""
    rows = long(*((layer.name, "MACs", layer.macs) for layer in MNIST), ("total", "mult-adds", "11.99 M"), batch=1)
    return ClaimTable(estimated("mnist-cnn", 64), rows)


@right
def mnist_macs_in_a_column_of_flops() -> ClaimTable:
    """The same multiply-adds called FLOPs in every row and in the total: another convention, and one alone."""
    rows = long(*((layer.name, "FLOPs", layer.macs) for layer in MNIST), ("total", "FLOPs", macs_of(MNIST)), batch=1)
    return ClaimTable(estimated("mnist-cnn", 64), rows)


@right
def mnist_flops_beside_their_macs() -> ClaimTable:
    """Two columns, FLOPs twice the multiply-adds."""
    rows: list[Cells] = [
        {
            "layer": layer.name,
            "batch": 64,
            "GMACs": f"{64 * layer.macs / 1e9:.6f}",
            "GFLOPs": f"{128 * layer.macs / 1e9:.6f}",
        }
        for layer in MNIST[:3]
    ]
    return ClaimTable(estimated("mnist-cnn", 64), rows)


@right
def mnist_parameters_of_torch_modules() -> ClaimTable:
    """Counted in plain torch modules, not by rooflight."""
    modules = {
        "conv1": nn.Conv2d(1, 32, 3),
        "conv2": nn.Conv2d(32, 64, 3),
        "fc1": nn.Linear(9216, 128),
        "fc2": nn.Linear(128, 10),
    }
    counts = {name: sum(p.numel() for p in module.parameters()) for name, module in modules.items()}
    rows = long(
        *((name, "parameters", count) for name, count in counts.items()), ("total", "parameters", sum(counts.values()))
    )
    return ClaimTable(estimated("mnist-cnn", 64), rows)


@right
def mnist_summary_of_figure_4() -> ClaimTable:
    """The four sizes that a summary tool prints, in MiB: right by its convention, which sees no functional op."""
    rows = long(("input size", "0.00 MiB"), ("forward/backward size", "0.45 MiB"), ("params size", "4.58 MiB"),
                ("estimated total size", "5.03 MiB"), ("total mult-adds", "11.99 M"), batch=1)  # fmt: skip
    return ClaimTable(estimated("mnist-cnn", 64), rows)


@right
def mnist_sizes_in_powers_of_1000() -> ClaimTable:
    """MB and KB that are 10^6 and 10^3 bytes, all of them."""
    rows = long(("total", "params size", f"{4 * params_of(MNIST) / 1e6:.2f} MB"),
                ("conv2", "output bytes", f"{64 * 64 * 24 * 24 * 4 / 1e6:.3f} MB"),
                ("conv2", "param bytes", f"{4 * CONV2.params / 1e3:.3f} KB"),
                ("conv2", "input bytes", f"{64 * 32 * 26 * 26 * 4 / 1e6:.2f} MB"))  # fmt: skip
    return ClaimTable(estimated("mnist-cnn", 64), rows)


@right
def mnist_sizes_in_powers_of_1024() -> ClaimTable:
    """KiB and MiB, said so; the two bytes that make 221,440 at batch 1 and 9,511,168 at batch 64."""
    rows = [*long(("conv2", "output bytes", "9216 KiB"), ("conv2", "param bytes", "72.25 KiB"),
                  ("conv2", "output + parameter bytes", 9_437_184 + 73_984), ("total", "params size", "4.577 MiB"), batch=64),
            *long(("conv2", "output + parameter bytes", stated("mnist32-64 conv2 b1", "conv2 output + parameter bytes")), batch=1)]  # fmt: skip
    return ClaimTable(estimated("mnist-cnn", 64), rows)


@right
def mnist_conv2_by_batch() -> ClaimTable:
    """FLOPs and outputs proportional to the batch, parameters not."""
    rows: list[Cells] = [
        {"layer": "conv2", "batch": batch, "MFLOPs": f"{2 * batch * CONV2.macs / 1e6:.3f}", "parameters": CONV2.params,
         "output bytes": batch * 64 * 24 * 24 * 4}
        for batch in (1, 2, 16, 64, 128, 512)
    ]  # fmt: skip
    return ClaimTable(estimated("mnist-cnn", 64), rows)


@right
def mnist_operator_memory_in_kib() -> ClaimTable:
    """What the document's profiler printed of conv2, in KiB: output, workspace, both together, and the difference."""
    rows = long(("conv2", "size increase", "9216 KiB"), ("conv2", "workspace", "31392 KiB"),
                ("conv2", "allocation size", "40608 KiB"), ("conv2", "self size increase", "-22176 KiB"), batch=64)  # fmt: skip
    return ClaimTable(estimated("mnist-cnn", 64), rows)


@right
def mnist_operator_memory_in_kb() -> ClaimTable:
    """The same as the profiler writes it: KB for KiB in every row; 40,608 is 9,216 + 31,392."""
    rows = long(("conv2", "output tensor", "9,216 KB"), ("conv2", "workspace", "31,392 KB"),
                ("conv2", "allocation size", "40,608 KB"), batch=64)  # fmt: skip
    return ClaimTable(estimated("mnist-cnn", 64), rows)


@right
def mnist_workspace_of_another_device() -> ClaimTable:
    """The document's A100 took 31,392 KiB for Winograd; the recording's H200 took other kernels, and cannot judge it."""
    rows = long(("conv2", "output tensor", "9216 KiB"), ("conv2", "workspace", "31392 KiB"),
                ("conv2", "allocation size", "40608 KiB"), batch=64, device=A100)  # fmt: skip
    return ClaimTable(recorded("mnist-cnn-infer-tf32"), rows)


@right
def mnist_output_sizes() -> ClaimTable:
    """28 - 2 = 26, 26 - 2 = 24, halved 12, flattened 9,216."""
    rows = long(("conv1", "output size", 26), ("conv2", "output size", 24), ("max_pool2d", "output size", 12),
                ("fc1", "input features", 9216), ("fc1", "output", "64x128"))  # fmt: skip
    return ClaimTable(estimated("mnist-cnn", 64), rows)


@right
def mnist_5x5() -> ClaimTable:
    """The lecture's smaller net: 21,840 parameters, 480,500 multiply-adds."""
    macs = 10 * 24 * 24 * 25 + 20 * 8 * 8 * 10 * 25 + 320 * 50 + 50 * 10
    assert macs == correct("mnist10-20", "MAC per image")
    rows = long(("conv1", "parameters", 260), ("conv2", "parameters", 5020), ("fc1", "parameters", 16050),
                ("fc2", "parameters", 510), ("total", "parameters", 21840), ("total", "MACs", macs),
                ("fc1", "input features", 320), ("conv2", "output size", 8), batch=1)  # fmt: skip
    return ClaimTable(estimated("mnist-cnn-5x5"), rows)


@right
def mnist_with_other_channels() -> ClaimTable:
    """20 and 40 channels: 746,138 parameters, 5,760 features."""
    rows = long(("conv2", "FLOP", correct("mnist20-40 conv2 b1", "modified conv2 FLOP")),
                ("total", "parameters", 200 + 7240 + 737408 + 1290), ("fc1", "in_features", 5760),
                ("conv1", "output elements", 20 * 26 * 26), ("conv2", "output elements", 40 * 24 * 24))  # fmt: skip
    return ClaimTable(estimated("mnist-cnn", 1, "infer", "20,40"), rows)


@right
def mnist_training_by_phase() -> ClaimTable:
    """Backward is twice the forward, but for the first layer, whose input wants no gradient."""
    forward = {layer.name: 2 * 64 * layer.macs for layer in MNIST}
    backward = {name: flops * (1 if name == "conv1" else 2) for name, flops in forward.items()}
    rows = [*long(*((name, "FLOP", flops) for name, flops in forward.items()), step="forward"),
            *long(*((name, "FLOP", flops) for name, flops in backward.items()), step="backward"),
            *long(("total", "FLOP", sum(forward.values()) + sum(backward.values())), step="training")]  # fmt: skip
    return ClaimTable(estimated("mnist-cnn", 64, "train"), rows)


@right
def mnist_memory_of_training() -> ClaimTable:
    """One gradient and one momentum for each parameter."""
    size = 4 * params_of(MNIST)
    rows = long(("params size", size), ("gradients", size), ("momentum", size))
    return ClaimTable(estimated("mnist-cnn", 64, "train"), rows)


@right
def mnist_with_decimal_commas() -> ClaimTable:
    """Semicolons between the cells, commas in the numbers."""
    rows = long(("conv2", "GFLOPs", "1,359"), ("conv1", "GFLOPs", "0,0249"), ("fc1", "GFLOPs", "0,151"),
                ("total", "params size (MB)", "4,7995"))  # fmt: skip
    return ClaimTable(estimated("mnist-cnn", 64), rows, delimiter=";")


@right
def mnist_shares() -> ClaimTable:
    """Percent of the FLOPs, with one and with two decimals."""
    sum_ = macs_of(MNIST)
    rows = long(*((layer.name, "share of flops", f"{100 * layer.macs / sum_:.2f} %") for layer in MNIST),
                ("Linear", "share of flops", f"{100 * (MNIST[2].macs + MNIST[3].macs) / sum_:.1f} %"))  # fmt: skip
    return ClaimTable(estimated("mnist-cnn", 64), rows)


@right
def mnist_ratios() -> ClaimTable:
    """One layer by another, and by the whole."""
    rows = long(("flops of conv2 / flops of conv1", f"{CONV2.macs / MNIST[0].macs:.4f}"),
                ("parameters of fc1 / parameters", f"{100 * MNIST[2].params / params_of(MNIST):.2f} %"),
                ("flops of conv2 / flops", f"{CONV2.macs / macs_of(MNIST):.5f}"))  # fmt: skip
    return ClaimTable(estimated("mnist-cnn", 64), rows)


@right
def mnist_conv2_intensity() -> ClaimTable:
    """FLOPs by the bytes of input, output and parameters: 90.3 at batch 64."""
    moved_ = correct("mnist32-64 conv2 b64", "conv2 input bytes") + 9_437_184 + 73_984
    flops = 2 * 64 * CONV2.macs
    rows = long(
        ("conv2", "FLOP", flops), ("conv2", "bytes", moved_), ("conv2", "arithmetic intensity", f"{flops / moved_:.1f}")
    )
    return ClaimTable(estimated("mnist-cnn", 64), rows)


# VGG (003), by hand and as its tables have it.


@right
def vgg11_table_1() -> ClaimTable:
    """The document's first table: FLOPs of one image and parameters, all eleven rows; its total put right."""
    rows: list[Cells] = [
        {"layer": layer.name, "batch": 1, "FLOPs": stated(f"vgg11 {layer.name}", "FLOP per image"),
         "parameters": stated(f"vgg11 {layer.name}", "parameters (Fig 2)")}
        for layer in vgg(11)
    ]  # fmt: skip
    return ClaimTable(
        estimated("vgg11", 16),
        [*rows, {"layer": "total", "batch": 16, "FLOPs": 32 * macs_of(vgg(11)), "parameters": 132863336}],
    )


@right
def vgg19_table_3() -> ClaimTable:
    """The third: multiply-adds in every row and in the total, 16 times their sum; its parameters' last digit put right."""
    rows = [*long(*((layer.name, "FLOP per image", stated(f"vgg19 {layer.name}", "FLOP per image")) for layer in vgg(19))),
            *long(("total", "FLOP", stated("vgg19", "total FLOP batch 16")), batch=16),
            *long(("total", "parameters", params_of(vgg(19))))]  # fmt: skip
    return ClaimTable(estimated("vgg19", 16), rows)


@right
def vgg13_table_2_put_right() -> ClaimTable:
    """The second, with the sizes before the pools."""
    rows: list[Cells] = [
        {"layer": layer.name, "output size": layer.size, "FLOP per image": 2 * layer.macs, "parameters": layer.params}
        for layer in vgg(13)
    ]
    return ClaimTable(estimated("vgg13", 16), rows)


@right
def vgg_rounded_rows_and_their_total() -> ClaimTable:
    """GFLOP with three digits; the total is the sum of what was rounded, not of what is written."""
    rows = long(*((layer.name, "FLOPs (G)", f"{2 * layer.macs / 1e9:.3g}") for layer in vgg(16)),
                ("total", "FLOPs (G)", f"{2 * macs_of(vgg(16)) / 1e9:.2f}"), batch=1)  # fmt: skip
    return ClaimTable(estimated("vgg16"), rows)


@right
def vgg_three_models() -> ClaimTable:
    """One table, three models in a column: parameters and FLOPs at batch 16."""
    rows: list[Cells] = [
        {
            "model": f"vgg{depth}",
            "batch": 16,
            "parameters": params_of(vgg(depth)),
            "GFLOPs": f"{32 * macs_of(vgg(depth)) / 1e9:.2f}",
        }
        for depth in (11, 13, 19)
    ]
    return ClaimTable(estimated("vgg11", 16), rows)


@right
def vgg_conv_layers_and_share() -> ClaimTable:
    """13 convolutions, 99.20% of the multiply-adds; the rest are the linear layers'."""
    layers = vgg(16)
    share = 100 * macs_of(layer for layer in layers if layer.name.startswith("Conv")) / macs_of(layers)
    rows = long(("Conv2d", "conv layers", 13), ("Conv2d", "share of flops", f"{share:.2f} %"),
                ("Linear", "share of flops", f"{100 - share:.2f} %"))  # fmt: skip
    return ClaimTable(estimated("vgg16"), rows)


@right
def vgg16_in_two_units() -> ClaimTable:
    """15.47 GMAC are 30.94 GFLOP."""
    macs = macs_of(vgg(16))
    rows = long(("MACs", f"{macs / 1e9:.2f} GMAC"), ("FLOPs", f"{2 * macs / 1e9:.2f} GFLOP"),
                ("parameters", f"{params_of(vgg(16)) / 1e6:.1f} M"), ("params size", f"{4 * params_of(vgg(16)) / 2**20:.2f} MiB"), batch=1)  # fmt: skip
    return ClaimTable(estimated("vgg16"), rows)


@right
def vgg16_as_pthflops_counts() -> ClaimTable:
    """004's rows of convolutions and linear layers: multiply-adds and the bias, one convention throughout."""
    names = [
        *(f"features_{n}" for n in (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)),
        "classifier_0",
        "classifier_3",
        "classifier_6",
    ]
    rows = long(*((name, "ops", stated(f"vgg16 {name}", "ops")) for name in names), batch=1)
    return ClaimTable(estimated("vgg16"), rows)


def _counted(model: str, gpu: str) -> dict[str, object]:
    """The counters of document 003."""
    run = f"{model} {gpu} b16"
    return {name: stated(run, name) for name in ("measured FLOP", "DRAM bytes", "time")}


def _vgg_point(model: str, time: str) -> list[Cells]:
    found = _counted(model, "V100")
    flops, size, seconds = (float(str(value)) for value in found.values())
    return long(
        ("measured FLOP", found["measured FLOP"]), ("DRAM bytes", found["DRAM bytes"]), (time, f"{seconds:.9f} s"),
        ("arithmetic intensity", stated(f"{model} V100 b16", "arithmetic intensity")),
        ("performance", f"{flops / seconds / 1e9:.2f} GFLOP/s"), ("achieved bandwidth", f"{size / seconds / 1e9:.1f} GB/s"),
        ("peak", "15.7 TFLOP/s"), ("bandwidth", "900 GB/s"), ("ridge point", "17.44"), device=V100, precision="fp32",
    )  # fmt: skip


@right
def vgg11_measured_on_v100() -> ClaimTable:
    """A column of table 4 with the roofs beside it; the time says whose it is."""
    return ClaimTable(estimated("vgg11", 16), _vgg_point("vgg11", "kernel time"))


@right
def vgg13_measured_on_v100() -> ClaimTable:
    """The same of VGG-13, the time called runtime."""
    return ClaimTable(estimated("vgg13", 16), _vgg_point("vgg13", "runtime"))


@right
def vgg19_measured_on_v100() -> ClaimTable:
    """The same of VGG-19, the time called time."""
    return ClaimTable(estimated("vgg19", 16), _vgg_point("vgg19", "time"))


@right
def vgg_table_4() -> ClaimTable:
    """Table 4 whole, wide: three models on the V100."""
    rows: list[Cells] = []
    for model in ("vgg11", "vgg13", "vgg19"):
        run = f"{model} V100 b16"
        rows.append({
            "model": model, "device": V100, "batch": 16, "measured FLOPs": stated(run, "measured FLOP"),
            "DRAM bytes": stated(run, "DRAM bytes"), "time (s)": f"{stated(run, 'time'):.9f}", "AI": stated(run, "arithmetic intensity"),
            "GFLOP/s": stated(run, "performance") if model != "vgg19" else f"{correct(run, 'performance'):.2f}",
        })  # fmt: skip
    return ClaimTable(estimated("vgg11", 16), rows)


@right
def vgg_flop_beside_a_device() -> ClaimTable:
    """Table 4 as it is printed: FLOP, a device, no word that it was counted; it may be a measurement."""
    rows = long(("FLOP", stated("vgg11 V100 b16", "measured FLOP")), ("parameters", 132863336), ("DRAM bytes", stated("vgg11 V100 b16", "DRAM bytes")),
                device="V100", batch=16)  # fmt: skip
    return ClaimTable(estimated("vgg11", 16), rows)


@right
def vgg_flop_measured_and_estimated() -> ClaimTable:
    """One name, two kinds, said in a column."""
    rows = [*long(("total", "FLOP", 32 * macs_of(vgg(11))), kind="estimated", batch=16),
            *long(("total", "FLOP", stated("vgg11 V100 b16", "measured FLOP")), kind="measured", batch=16, device=V100),
            *long(("total", "time", "0.16332 s"), kind="measured", batch=16, device=V100),
            *long(("total", "time", f"{32 * macs_of(vgg(11)) / PEAK['V100 fp32'] * 1e3:.2f} ms"), kind="estimated", batch=16, device=V100, precision="fp32")]  # fmt: skip
    return ClaimTable(estimated("vgg11", 16), rows)


@right
def vgg11_on_a100_put_right() -> ClaimTable:
    """Table 5 with the FLOPs that the tensor cores did: 1,723 GFLOP/s, 4.46% of what the TF32 roofs allow there."""
    flops, run = 32 * macs_of(vgg(11)), "vgg11 A100 b16"
    rows = long(
        ("FLOP", flops), ("DRAM bytes", stated(run, "DRAM bytes")), ("kernel time", f"{stated(run, 'time'):.9f} s"),
        ("performance", f"{correct(run, 'performance'):.1f} GFLOP/s"), ("achieved bandwidth", "69.3 GB/s"),
        ("peak", "156 TFLOP/s"), ("bandwidth", "1555 GB/s"), ("ridge point", "100.3"), device=A100, precision="tf32",
    )  # fmt: skip
    return ClaimTable(estimated("vgg11", 16), rows)


@right
def vgg_faster_on_the_a100() -> ClaimTable:
    """Times of both GPUs, their ratio, and which was faster."""
    times = {gpu: stated(f"vgg19 {gpu} b16", "time") for gpu in ("V100", "A100")}
    rows = [*long(("kernel time", f"{times['V100']:.6f} s"), device=V100), *long(("kernel time", f"{times['A100']:.6f} s"), device=A100),
            *long((f"kernel time on {V100} / kernel time on {A100}", f"{times['V100'] / times['A100']:.3f}"), ("faster device", A100))]  # fmt: skip
    return ClaimTable(estimated("vgg19", 16), rows)


# Devices (002, 003, 004).


@right
def devices_of_table_6() -> ClaimTable:
    """Peak, bandwidth and ridge of both GPUs as 003 has them."""
    rows: list[Cells] = [
        {"device": V100, "precision": "fp32", "peak (TFLOP/s)": 15.7, "bandwidth (GB/s)": 900, "peak AI": 17.4},
        {"device": A100, "precision": "fp32", "peak (TFLOP/s)": 19.5, "bandwidth (GB/s)": 1555, "peak AI": 12.5},
        {"device": A100, "precision": "tf32", "peak (TFLOP/s)": 156, "bandwidth (GB/s)": 1555, "peak AI": 100.3},
    ]
    return ClaimTable(estimated("vgg11", 16), rows)


@right
def devices_in_single_and_double_precision() -> ClaimTable:
    """K80: a die, the board, two dies; V100. Single and double are precisions."""
    rows = [*long(("peak", "4.37 TFLOP/s"), device="K80", precision="single"), *long(("peak", "1.456 TFLOP/s"), device="K80", precision="double"),
            *long(("peak", "8.73 TFLOP/s"), device="k80-board", precision="single"), *long(("peak", "2.91 TFLOP/s"), device="k80-board", precision="double"),
            *long(("peak", "8740 GFLOP/s"), device="2x K80", precision="single"), *long(("peak", "7.8 TFLOP/s"), device="V100", precision="double"),
            *long(("bandwidth", "240 GB/s"), device="K80")]  # fmt: skip
    return ClaimTable(estimated("vgg16"), rows)


@right
def devices_without_their_memory_size() -> ClaimTable:
    """A100 alone is the one with 40 GB or the one with 80; A100 40GB is one of them."""
    rows = [*long(("bandwidth", "1555 GB/s"), ("peak", "19.5 TFLOP/s"), device="A100", precision="fp32"),
            *long(("bandwidth", "1.555 TB/s"), device="A100 40GB"), *long(("nvlink bandwidth", "300 GB/s"), device="V100"),
            *long(("peak", "494.5 TFLOP/s"), ("bandwidth", "4.8 TB/s"), ("ridge point", "103"), device="H200", precision="tf32")]  # fmt: skip
    return ClaimTable(estimated("vgg11", 16), rows)


# FLOPs over a peak (004), put right.


def _ratio(depth: int, batch: int, peak: str) -> float:
    return 2 * batch * macs_of(vgg(depth)) / PEAK[peak]


@right
def k80_table_put_right() -> ClaimTable:
    """FLOPs, not multiply-adds, over one die's peak: 7.08 ms and 141/s in single, 21.25 ms and 47.1/s in double precision."""
    rows: list[Cells] = []
    for precision, peak in (("single", "K80 fp32"), ("double", "K80 fp64")):
        time = _ratio(16, 1, peak)
        rows += long(("FLOPs", "30.94 GFLOP"), ("peak", f"{PEAK[peak] / 1e9:.0f} GFLOP/s"), ("inference time", f"{1e3 * time:.2f} ms"),
                     ("throughput", f"{1 / time:.1f} images/s"), device="K80", precision=precision, batch=1, kind="estimated")  # fmt: skip
    return ClaimTable(estimated("vgg16"), rows)


@right
def k80_table_of_three_models() -> ClaimTable:
    """The same of three models of torchvision, by their multiply-adds."""
    macs = {"vgg16": macs_of(vgg(16)), "googlenet": 1_498_376_192, "resnet50": 4_089_184_256}
    rows: list[Cells] = [
        {"model": model, "device": "K80", "precision": "single", "batch": 1, "kind": "estimated", "MACs": count,
         "inference time (ms)": f"{2e3 * count / PEAK['K80 fp32']:.3f}", "throughput": f"{PEAK['K80 fp32'] / 2 / count:.1f}"}
        for model, count in macs.items()
    ]  # fmt: skip
    return ClaimTable(estimated("vgg16"), rows)


@right
def v100_time_by_the_plain_ratio() -> ClaimTable:
    """VGG-16 on a V100: 1.97 ms, 507/s; in double precision 3.97 ms."""
    rows: list[Cells] = [
        {"model": "vgg16", "device": V100, "precision": precision, "batch": 1, "kind": "estimated", "GFLOPs": "30.94",
         "peak (TFLOP/s)": PEAK[f"V100 {precision}"] / 1e12, "time (ms)": f"{1e3 * _ratio(16, 1, f'V100 {precision}'):.3f}",
         "throughput": f"{1 / _ratio(16, 1, f'V100 {precision}'):.1f}"}
        for precision in ("fp32", "fp64")
    ]  # fmt: skip
    return ClaimTable(estimated("vgg16"), rows)


@right
def a_rate_of_a_time_that_was_rounded() -> ClaimTable:
    """563.117/s was computed before 1.7758 ms was rounded."""
    rows = long(("inference time", "1.7758 ms"), ("throughput", "563.117 images/s"), ("MACs", 1_498_376_192),
                device="A100", batch=1)  # fmt: skip
    return ClaimTable(estimated("googlenet"), rows)


# ResNets (002).


def _experiment(number: int, model: str, time: str) -> list[Cells]:
    run = f"Exp{number} {model} V100"
    return long(
        (time, f"{stated(run, 'time')} s"), ("actual FLOP", stated(run, "actual FLOP")), ("DRAM bytes", stated(run, "DRAM bytes")),
        ("achieved bandwidth", f"{stated(run, 'throughput') / 1e9:.2f} GB/s"), ("arithmetic intensity", stated(run, "arithmetic intensity")),
        ("performance", f"{stated(run, 'performance'):.2f} GFLOP/s"), ("peak", "15.7 TFLOP/s"), ("bandwidth", "900 GB/s"),
        device=V100, precision="fp32", batch=2, step="training",
    )  # fmt: skip


@right
def resnet18_trial_1() -> ClaimTable:
    """Measured time, counters and what follows from them, with peak and bandwidth beside: host-bound, and right."""
    return ClaimTable(estimated("resnet18", 2, "train"), _experiment(1, "resnet18", "time"))


@right
def resnet50_trial_2() -> ClaimTable:
    """The same of ResNet-50, the time called step time."""
    return ClaimTable(estimated("resnet50", 2, "train"), _experiment(2, "resnet50", "step time"))


@right
def resnets_on_v100_wide() -> ClaimTable:
    """Both in one wide table, GB/s and GFLOP/s as columns."""
    rows: list[Cells] = []
    for number, model in ((1, "resnet18"), (2, "resnet50")):
        run = f"Exp{number} {model} V100"
        rows.append({"model": model, "device": V100, "batch": 2, "step": "training", "runtime (s)": stated(run, "time"),
                     "DRAM bytes": stated(run, "DRAM bytes"), "actual FLOP": stated(run, "actual FLOP"),
                     "FLOP/B": f"{stated(run, 'arithmetic intensity'):.3f}", "GFLOP/s": f"{stated(run, 'performance'):.3f}"})  # fmt: skip
    return ClaimTable(estimated("resnet18", 2, "train"), rows)


@right
def resnets_traffic_on_a100() -> ClaimTable:
    """Trial 3's time, bytes and bytes a second, the rows that are right there, and the ratio to the V100's bytes."""
    run = "Exp3 resnet18 A100"
    rows = [*long(("wall time", f"{stated(run, 'time')} s"), ("DRAM bytes", stated(run, "DRAM bytes")),
                  ("achieved bandwidth", f"{stated(run, 'throughput') / 1e9:.3f} GB/s"), ("peak", "19.5 TFLOP/s"), device=A100, precision="fp32"),
            *long(("DRAM bytes", stated("Exp1 resnet18 V100", "DRAM bytes")), device=V100),
            *long((f"DRAM bytes on {A100} / DRAM bytes on {V100}", "0.588"))]  # fmt: skip
    return ClaimTable(estimated("resnet18", 2, "train"), rows)


@right
def resnet18_memory_at_batch_256() -> ClaimTable:
    """Parameters, what is kept for backward, and what nvidia-smi showed on a V100, by its own parameters."""
    used, size = stated("Exp1", "actual GPU memory"), 4 * 11_689_512
    rows = [*long(("parameters", 11_689_512), ("parameter bytes", f"{size / 2**20:.2f} MiB"), ("activations", "5269 MiB"), ("gradients", size)),
            *long(("gpu memory", f"{used / 2**20:.0f} MiB"), ("gpu memory / parameter bytes", f"{used / size:.1f}"), device=V100)]  # fmt: skip
    return ClaimTable(estimated("resnet18", 256, "train"), rows)


@right
def vgg19_against_its_roof() -> ClaimTable:
    """Right of the ridge, though barely, and at 17% of the roof: by the kernels' own time."""
    run = "vgg19 V100 b16"
    rows = long(
        ("measured FLOP", stated(run, "measured FLOP")), ("DRAM bytes", stated(run, "DRAM bytes")), ("kernel time", f"{stated(run, 'time'):.6f} s"),
        ("arithmetic intensity", "17.64"), ("ridge point", "17.44"), ("side of the ridge", "compute"), ("performance", "2697.85 GFLOP/s"),
        ("peak", "15.7 TFLOP/s"), ("percent of roof", f"{correct(run, 'percent of attainable'):.1f} %"), device=V100, precision="fp32",
    )  # fmt: skip
    return ClaimTable(estimated("vgg19", 16), rows)


@right
def resnets_replicated_on_two_gpus() -> ClaimTable:
    """Two replicas hold copies of one model's 11,689,512; ResNet-50 has 2.19 times as many."""
    rows = [*long(("parameters", 11_689_512), note="1 GPU"), *long(("parameters", "11.69 M"), note="2 GPUs"),
            *long(("parameters of resnet50 / parameters of resnet18", "2.186"))]  # fmt: skip
    return ClaimTable(estimated("resnet18", 256, "train"), rows)


# Times of devices that nobody here can check.


@right
def times_measured_elsewhere() -> ClaimTable:
    """Inference times of ResNet-50 at batch 16 on three GPUs, all slower than their roofs; and its parameters."""
    times = {"V100": "24.1 ms", "A100": "11.9 ms", "K80": "0.14 s", "H100": "6,100 us"}
    rows = [
        row for device, time in times.items() for row in long(("inference time", time), device=device, kind="measured")
    ]
    return ClaimTable(estimated("resnet50", 16), [*rows, *long(("parameters", 25_557_032), kind="estimated")])


@right
def times_measured_elsewhere_and_their_rates() -> ClaimTable:
    """Batch, step time, images a second and GFLOP/s, each from the one before, beside the peak."""
    flops = 2 * 16 * 4_089_184_256
    rows: list[Cells] = [
        {"device": device, "precision": "fp32", "batch": 16, "step time (ms)": f"{1e3 * time:.1f}", "throughput": f"{16 / time:.0f}",
         "GFLOP/s": f"{flops / time / 1e9:.0f}", "peak (TFLOP/s)": peak}
        for device, time, peak in ((V100, 0.0241, 15.7), ("K80", 0.142, 4.37))
    ]  # fmt: skip
    return ClaimTable(estimated("resnet50", 16), rows)


@right
def times_of_nothing_that_is_known() -> ClaimTable:
    """An accuracy and a time on a foreign GPU: nothing can be checked, and nothing is wrong."""
    rows = long(("accuracy", "97.1 %"), ("time", "35 ms"), device="V100", kind="measured")
    return ClaimTable(estimated("resnet50", 16), rows, checkable=False)


@right
def times_at_another_batch() -> ClaimTable:
    """A training step on an A100 at another batch than the ledger's, throughput by it."""
    rows = long(
        ("step time", "61.5 ms"),
        ("throughput", "520.3 images/s"),
        ("parameters", 25_557_032),
        device="A100",
        batch=32,
        step="training",
        kind="measured",
    )
    return ClaimTable(estimated("resnet50", 2, "train"), rows)


@right
def times_with_decimal_commas() -> ClaimTable:
    """Semicolons and commas in a wide table of measured times and their throughput."""
    rows: list[Cells] = [
        {
            "device": "V100",
            "batch": batch,
            "step time (ms)": f"{time:.2f}".replace(".", ","),
            "throughput": f"{1e3 * batch / time:.1f}".replace(".", ","),
        }
        for batch, time in ((8, 21.5), (16, 38.75), (32, 74.25))
    ]
    return ClaimTable(estimated("resnet50", 16), [*rows, {"batch": 16, "parameters": "25557032"}], delimiter=";")


@right
def times_in_fp16_beside_the_fp32_peak() -> ClaimTable:
    """6.2 ms for ResNet-50 at batch 16: too fast for 15.7 TFLOP/s, and far from the 125 of fp16, which the row says."""
    rows = [*long(("inference time", "6.2 ms"), ("throughput", "2581 images/s"), device=V100, precision="fp16", batch=16, kind="measured"),
            *long(("peak", "15.7 TFLOP/s"), device=V100, precision="fp32"), *long(("peak", "125 TFLOP/s"), device=V100, precision="fp16")]  # fmt: skip
    return ClaimTable(estimated("resnet50", 16), rows)


@right
def times_of_three_models() -> ClaimTable:
    """Measured on a V100, with throughput, models in a column; and the parameters of each."""
    params = {"resnet18": 11_689_512, "resnet50": 25_557_032, "vgg16": params_of(vgg(16))}
    rows: list[Cells] = [
        {
            "model": model,
            "device": V100,
            "batch": 16,
            "kind": "measured",
            "runtime (ms)": time,
            "images/s": f"{16e3 / float(time):.0f}",
            "parameters": params[model],
        }
        for model, time in (("resnet18", "9.4"), ("resnet50", "24.1"), ("vgg16", "52.7"))
    ]
    return ClaimTable(estimated("resnet18", 16), rows)


@right
def rates_of_numbers_with_two_digits() -> ClaimTable:
    """GFLOP/s, GB/s and FLOP/B were computed before their inputs were rounded to two and three digits."""
    run = "vgg11 V100 b16"
    flops, size, time = (stated(run, name) for name in ("measured FLOP", "DRAM bytes", "time"))
    rows = long(("measured FLOP", f"{flops / 1e9:.0f} GFLOP"), ("DRAM bytes", f"{size / 1e9:.1f} GB"), ("kernel time", f"{time:.2f} s"), ("performance", f"{flops / time / 1e9:.0f} GFLOP/s"),
                ("achieved bandwidth", f"{size / time / 1e9:.1f} GB/s"), ("arithmetic intensity", f"{flops / size:.2f}"), ("peak", "15.7 TFLOP/s"), device=V100, precision="fp32", batch=16)  # fmt: skip
    return ClaimTable(estimated("vgg11", 16), rows)


@right
def memory_of_another_device_beside_a_recording() -> ClaimTable:
    """An H200's recording does not judge the memory, the kernels or the time of a V100."""
    ledger = recorded("resnet50-infer-fp32")
    rows = [*long(("peak memory", f"{of_step(ledger, 'peak_allocated_bytes') / 1e6:.0f} MB"), ("wall time", f"{1e3 * of_step(ledger, 'wall_time_s'):.2f} ms"), device="h200"),
            *long(("peak memory", "412 MB"), ("wall time", "25.3 ms"), ("kernels", 231), ("parameters", 25_557_032), device=V100, batch=16)]  # fmt: skip
    return ClaimTable(ledger, rows)


@right
def a_recording_and_another_batch() -> ClaimTable:
    """What was measured does not scale: a time at batch 1 can neither be right nor wrong; FLOPs can."""
    rows = [
        *long(("wall time", "3.9 ms"), ("throughput", "256 images/s"), device="h200", batch=1),
        *long(("FLOPs", 2 * 4_089_184_256), batch=1),
    ]
    return ClaimTable(recorded("resnet50-infer-fp32"), rows)


@right
def percent_of_a_peak() -> ClaimTable:
    """GFLOP/s by the peak of the precision that the row says."""
    rows = long(
        ("performance", "4690 GFLOP/s"),
        ("peak", "15.7 TFLOP/s"),
        ("performance / peak", "29.9 %"),
        ("batch", 16),
        device=V100,
        precision="fp32",
        batch=16,
    )
    return ClaimTable(estimated("resnet50", 16), rows)


@right
def training_in_tera() -> ClaimTable:
    """FLOPs of a training step at batch 256 in TFLOP, by phase and in all, from the ledger."""
    ledger = estimated("resnet18", 256, "train")
    phases = {name: total(op for op in ledger.ops if op.phase == name).flops or 0 for name in ("forward", "backward")}
    rows = [*(row for name, flops in phases.items() for row in long(("FLOP", f"{flops / 1e12:.3f} TFLOP"), step=name, batch=256)),
            *long(("FLOP", f"{sum(phases.values()) / 1e12:.2f} TFLOP"), step="training", batch=256)]  # fmt: skip
    return ClaimTable(ledger, rows)


# Recordings, read directly from their measurements.


@right
def recorded_mnist_step() -> ClaimTable:
    """Three scopes of time, counted FLOPs, DRAM bytes and memory of the H200's recording."""
    ledger = recorded("mnist-cnn-infer-tf32")
    rows = long(
        ("wall time", f"{1e6 * of_step(ledger, 'wall_time_s'):.0f} us"), ("gpu busy", f"{1e6 * of_step(ledger, 'gpu_busy_s'):.1f} us"),
        ("sum of kernels", f"{1e3 * of_step(ledger, 'kernel_time_s'):.3f} ms"), ("measured FLOP", f"{executed(ledger):,.0f}"),
        ("DRAM bytes", f"{moved(ledger) / 1e6:.2f} MB"), ("peak memory", f"{of_step(ledger, 'peak_allocated_bytes') / 1e6:.1f} MB"),
        ("reserved", f"{of_step(ledger, 'peak_reserved_bytes') / 1e6:.1f} MB"), ("kernels", 17),
    )  # fmt: skip
    return ClaimTable(ledger, rows)


@right
def recorded_mnist_layers() -> ClaimTable:
    """Conv2 of the recording: executed FLOPs, workspace and net growth."""
    ledger = recorded("mnist-cnn-infer-tf32")
    flops = sum(
        of_layer(ledger, "conv2", f"{unit}_flops_{name}") for unit, name in (("tensor", "tf32"), ("cuda", "fp32"))
    )
    rows = long(("conv2", "measured FLOP", f"{flops:.0f}"), ("conv2", "tensor flops", 2 * 64 * CONV2.macs), ("conv2", "output bytes", 9_437_184),
                ("conv2", "growth", f"{of_layer(ledger, 'conv2', 'growth_bytes'):.0f}"), ("conv2", "workspace", f"{of_layer(ledger, 'conv2', 'workspace_bytes'):.0f}"))  # fmt: skip
    return ClaimTable(ledger, rows)


@right
def recorded_vgg19_roofline() -> ClaimTable:
    """Executed FLOPs by GPU-busy time and by DRAM bytes, on the H200."""
    ledger = recorded("vgg19-infer-fp32")
    busy = of_step(ledger, "gpu_busy_s")
    rows = long(
        ("measured FLOP", f"{executed(ledger) / 1e9:.1f} GFLOP"), ("DRAM bytes", f"{moved(ledger) / 1e9:.3f} GB"), ("gpu busy", f"{1e3 * busy:.3f} ms"),
        ("performance", f"{executed(ledger) / busy / 1e12:.1f} TFLOP/s"), ("achieved bandwidth", f"{moved(ledger) / busy / 1e9:.0f} GB/s"),
        ("arithmetic intensity", f"{executed(ledger) / moved(ledger):.1f}"), device="h200",
    )  # fmt: skip
    return ClaimTable(ledger, rows)


@right
def recorded_vgg19_beside_both_peaks() -> ClaimTable:
    """The tensor cores did it in TF32: 2.5 times faster than the fp32 peak would allow, which is the H200's too."""
    ledger = recorded("vgg19-infer-fp32")
    wall = of_step(ledger, "wall_time_s")
    rows = [*long(("FLOP", 32 * macs_of(vgg(19))), ("wall time", f"{1e3 * wall:.2f} ms"), ("throughput", f"{16 / wall:.0f} images/s"), device="H200"),
            *long(("peak", "67 TFLOP/s"), device="H200", precision="fp32"), *long(("peak", "494.5 TFLOP/s"), device="H200", precision="tf32")]  # fmt: skip
    return ClaimTable(ledger, rows)


@right
def times_in_tf32_beside_the_fp32_peak() -> ClaimTable:
    """8.1 ms for VGG-19 at batch 16 on an A100: too fast for 19.5 TFLOP/s, and half of what TF32's 156 allow."""
    rows = [*long(("time", "8.1 ms"), ("throughput", "1975 images/s"), device=A100, batch=16, kind="measured"),
            *long(("peak", "19.5 TFLOP/s"), device=A100, precision="fp32"), *long(("peak", "156 TFLOP/s"), device=A100, precision="tf32")]  # fmt: skip
    return ClaimTable(estimated("vgg19", 16), rows)


@right
def recorded_bounds() -> ClaimTable:
    """More than, less than, about."""
    ledger = recorded("resnet50-infer-fp32")
    rows = long(
        ("gpu busy / wall time", "<60 %"),
        ("wall time", ">5 ms"),
        ("DRAM bytes", "~3.7 GB"),
        ("parameters", "25.6 M"),
        ("kernels", ">=240"),
    )
    assert 0.5 < of_step(ledger, "gpu_busy_s") / of_step(ledger, "wall_time_s") < 0.6
    return ClaimTable(ledger, rows)


@right
def recorded_resnet50_throughput() -> ClaimTable:
    """Wall time and images a second, kernels, and how much of the step the GPU worked."""
    ledger = recorded("resnet50-infer-fp32")
    wall, busy = of_step(ledger, "wall_time_s"), of_step(ledger, "gpu_busy_s")
    rows = long(("wall time", f"{1e3 * wall:.2f} ms"), ("throughput", f"{16 / wall:,.0f} images/s"), ("kernels", 240), ("gpu busy / wall time", f"{100 * busy / wall:.1f} %"),
                ("DRAM read", f"{of_step(ledger, 'dram_bytes_read') / 1e9:.3f} GB"), ("DRAM written", f"{of_step(ledger, 'dram_bytes_written') / 1e9:.3f} GB"), batch=16)  # fmt: skip
    return ClaimTable(ledger, rows)


@right
def recorded_counters_by_name() -> ClaimTable:
    """Counters under their own names, and what they add up to."""
    ledger = recorded("mnist-cnn-infer-tf32")
    names = (
        "dram__bytes_read.sum",
        *(f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("fadd", "fmul", "ffma")),
    )
    fadd, fmul, ffma = (of_step(ledger, name) for name in names[1:])
    rows = long(
        *((name, f"{of_step(ledger, name):.0f}") for name in names), ("cuda flops", f"{fadd + fmul + 2 * ffma:.0f}")
    )
    return ClaimTable(ledger, rows)


@right
def recorded_mnist_training() -> ClaimTable:
    """A training step: tensor and CUDA cores apart, DRAM read and written and both, wide."""
    ledger = recorded("mnist-cnn-train-tf32")
    read, written = of_step(ledger, "dram_bytes_read"), of_step(ledger, "dram_bytes_written")
    row: Cells = {
        "layer": "total", "step": "training", "wall time (ms)": f"{1e3 * of_step(ledger, 'wall_time_s'):.2f}", "tensor flops": f"{of_step(ledger, 'tensor_flops_tf32'):.0f}",
        "cuda flops": f"{of_step(ledger, 'cuda_flops_fp32'):.0f}", "DRAM read": f"{read:.0f}", "DRAM written": f"{written:.0f}", "DRAM bytes": f"{read + written:.0f}",
    }  # fmt: skip
    return ClaimTable(ledger, [row])


@right
def studied_resnet18_beside_the_documents_v100() -> ClaimTable:
    """A study's H200 run of the document's step, and the document's V100 beside it."""
    ledger = studied("resnet-memory-roofline", "resnet18-b2-train-fp32")
    wall, busy = of_step(ledger, "wall_time_s"), of_step(ledger, "gpu_busy_s")
    rows = [*long(("wall time", f"{1e3 * wall:.1f} ms"), ("gpu busy", f"{1e3 * busy:.2f} ms"), ("wall time / gpu busy", f"{wall / busy:.1f}"),
                  ("bound", "host"), device="h200"),
            *long(("wall time", "0.2029 s"), ("actual FLOP", stated("Exp1 resnet18 V100", "actual FLOP")), device=V100)]  # fmt: skip
    return ClaimTable(ledger, rows)


@right
def studied_vgg11_without_tf32() -> ClaimTable:
    """CUDA cores alone did it: their FLOPs are all that were executed, and fewer than the formula says (Winograd)."""
    ledger = studied("vgg-roofline", "vgg11-b16-infer-fp32-h200-07467297")
    flops = of_step(ledger, "cuda_flops_fp32")
    rows = long(("FLOP", 32 * macs_of(vgg(11))), ("measured FLOP", f"{flops:.0f}"), ("cuda flops", f"{flops:.0f}"),
                ("measured FLOP / FLOP", f"{flops / 32 / macs_of(vgg(11)):.3f}"), ("wall time", f"{1e3 * of_step(ledger, 'wall_time_s'):.2f} ms"))  # fmt: skip
    return ClaimTable(ledger, rows)


# Sums of ledgers.


@right
def alexnet_from_the_ledger() -> ClaimTable:
    """004's third network: the ledger's sums, and layers that add up to them."""
    ledger = estimated("alexnet")
    sums = total(ledger.ops)
    layers = [module.path for module in ledger.modules if module.type in ("Conv2d", "Linear")]
    rows = [
        *((path, "MACs", total(op for op in ledger.ops if op.module == path).macs) for path in layers),
        ("total", "MACs", sums.macs),
    ]
    return ClaimTable(ledger, long(*rows, ("total", "parameters", 61_100_840), batch=1))


@right
def gpt2_from_the_ledger() -> ClaimTable:
    """124,439,808 parameters; compulsory bytes read and written add up."""
    ledger = estimated("gpt2")
    sums = total(ledger.ops)
    rows = long(("parameters", "124.4 M"), ("params size", f"{4 * 124_439_808 / 1e6:.1f} MB"), ("MACs", sums.macs), ("FLOPs", f"{sums.flops / 1e9:.1f} GFLOP"),
                ("bytes read", sums.bytes_read), ("bytes written", sums.bytes_written), ("bytes", sums.bytes_read + sums.bytes_written))  # fmt: skip
    return ClaimTable(ledger, rows)


# As others write them: forms that a stranger's tables had.


@right
def tflops_as_a_speed() -> ClaimTable:
    """FLOPs of the step by its wall time, under the name that datasheets have for FLOP/s."""
    ledger = recorded("resnet50-infer-fp32")
    flops, time = total(ledger.ops).flops, of_step(ledger, "wall_time_s")
    rows: list[Cells] = [
        {"layer": "total", "wall time (ms)": f"{1e3 * time:.3f}", "TFLOPS": f"{flops / time / 1e12:.2f}"}
    ]
    return ClaimTable(ledger, rows)


@right
def time_of_one_image() -> ClaimTable:
    """The step by its batch of 16; img/s is its inverse."""
    ledger = recorded("resnet50-infer-fp32")
    time = of_step(ledger, "wall_time_s")
    rows: list[Cells] = [
        {"layer": "total", "wall time per image (ms)": f"{1e3 * time / 16:.4f}", "img/s": f"{16 / time:.0f}"}
    ]
    return ClaimTable(ledger, rows)


@right
def shares_without_a_percent_sign() -> ClaimTable:
    """99.2 and 0.8 are of one column."""
    layers = vgg(16)
    share = 100 * macs_of(layer for layer in layers if layer.name.startswith("Conv")) / macs_of(layers)
    rows: list[Cells] = [
        {"layer": "Conv2d", "share": f"{share:.1f}"},
        {"layer": "Linear", "share": f"{100 - share:.1f}"},
    ]
    return ClaimTable(estimated("vgg16"), rows)


@right
def torchsummary_of_resnet18() -> ClaimTable:
    """8,230,376 numbers that modules give, blocks beside their layers, 4 bytes each and twice."""
    outputs, params = 2 * 8_230_376 * 4 / 2**20, 11_689_512 * 4 / 2**20
    rows = long(("Input size (MB)", f"{3 * 224 * 224 * 4 / 2**20:.2f}"), ("Params size (MB)", f"{params:.2f}"),
                ("Forward/backward pass size (MB)", f"{outputs:.2f}"),
                ("Estimated Total Size (MB)", f"{outputs + params + 3 * 224 * 224 * 4 / 2**20:.2f}"))  # fmt: skip
    return ClaimTable(estimated("resnet18"), rows)


@right
def layers_as_people_count_them() -> ClaimTable:
    """Of VGG-16 13 convolutions and 16 layers with weights; a picture of 224."""
    rows = long(("conv layers", 13), ("layers", 16), ("Image size", 224), ("input size", "224x224"))
    return ClaimTable(estimated("vgg16"), rows)


@right
def paper_of_models() -> ClaimTable:
    """A row a model, of totals."""
    rows: list[Cells] = [
        {
            "model": f"vgg{depth}",
            "Params (M)": f"{params_of(vgg(depth)) / 1e6:.1f}",
            "GMACs": f"{macs_of(vgg(depth)) / 1e9:.2f}",
        }
        for depth in (11, 16)
    ]
    return ClaimTable(estimated("vgg11"), rows)


@right
def powers_of_ten_and_errors() -> ClaimTable:
    """One number in the ways people write it."""
    rows = long(("params", "25.6x10^6"), ("params", "**25.6M**"), ("params", "25.6 M ± 0.1 M"), ("params", "25-26M"),
                ("params", "about 25.6 M"), ("params", "25'557'032"))  # fmt: skip
    return ClaimTable(estimated("resnet50"), rows)
