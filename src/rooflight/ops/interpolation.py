"""Resizing and sampling of images and volumes, and the gradients.

Linear interpolation between two values is w0 * a + w1 * b: 3 operations. Bilinear is 3 of them (9), trilinear 7 (21).
Cubic weighs four values: 7 operations, in two dimensions 4 rows and a column (35). Where a result lies between its
neighbours depends on its row and column alone; that is indexing, and not counted.
"""

from math import ceil

from rooflight.ledger import Op, Tensor
from rooflight.ops.registry import Work, aten, counted, formula


def _input(op: Op) -> Tensor:
    return op.tensor("self" if op.has("self") else "input")


# A copy. Made smaller, it reads only the elements it keeps.
@formula(
    *aten("upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d"),
    *aten("_upsample_nearest_exact2d _upsample_nearest_exact3d"),
)
def nearest(op: Op) -> Work:
    x, y = _input(op), op.outputs[0]
    return Work(reads="min(n, s) * e", where={"n": y.numel, "s": x.numel, "e": x.itemsize})


# Adds up the copies: one addition for each element of dy beyond one per element of dx.
@formula(
    *aten("upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward"),
    *aten("_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward"),
    *aten("_upsample_nearest_exact3d_backward"),
)
def nearest_backward(op: Op) -> Work:
    return Work(other="max(dy - dx, 0)", where={"dy": op.tensor("grad_output").numel, "dx": op.outputs[0].numel})


def _results(op: Op) -> dict[str, int]:
    return {"n": op.outputs[0].numel}


def _gradients(op: Op) -> dict[str, int]:
    return {"n": op.tensor("grad_output").numel}


# Back, every element of dy goes to all its neighbours: for each the weight's factors (one per dimension) are multiplied
# to it, and it is added. 2 * (1 + 1), 4 * (2 + 1), 8 * (3 + 1), 16 * (2 + 1).
_LINEAR_AND_CUBIC = {"linear1d": (3, 4), "bilinear2d": (9, 12), "trilinear3d": (21, 32), "bicubic2d": (35, 48)}
for _name, (_forward, _backward) in _LINEAR_AND_CUBIC.items():
    formula(f"aten::upsample_{_name}")(counted(f"{_forward} * n", _results))
    formula(f"aten::upsample_{_name}_backward")(counted(f"{_backward} * n", _gradients))


# Antialiased: the filter widens with the scale when the image is made smaller. It is applied along W, then along H:
# [N, C, Hi, Wi] -> [N, C, Hi, Wo] -> [N, C, Ho, Wo]; T weights are T products and T - 1 additions.
_REACH = {"bilinear": 1, "bicubic": 2, "lanczos": 3}


def _taps(size_in: int, size_out: int, reach: int) -> int:
    """Elements under the filter, which reaches so far on both sides, scaled when the image shrinks."""
    return min(2 * ceil(reach * max(size_in / max(size_out, 1), 1)), size_in)


def _antialiased(op: Op, x: tuple[int, ...], y: tuple[int, ...]) -> dict[str, int]:
    reach = next(value for name, value in _REACH.items() if name in op.packet)
    where = {"N": x[0], "C": x[1], "Hi": x[2], "Ho": y[2], "Wo": y[3]}
    return where | {"Th": _taps(x[2], y[2], reach), "Tw": _taps(x[3], y[3], reach)}


@formula("aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa", "aten::_upsample_lanczos2d_aa")
def antialiased(op: Op) -> Work:
    where = _antialiased(op, _input(op).shape, op.outputs[0].shape)
    return Work(other="N * C * Wo * (Hi * (2 * Tw - 1) + Ho * (2 * Th - 1))", where=where, note=_TAPS)


# Back through both passes, every element is multiplied and added under its whole filter.
@formula(*aten("_upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward _upsample_lanczos2d_aa_backward"))
def antialiased_backward(op: Op) -> Work:
    where = _antialiased(op, op.outputs[0].shape, op.tensor("grad_output").shape)
    return Work(other="2 * N * C * Wo * (Hi * Tw + Ho * Th)", where=where, note=_TAPS)


_TAPS = "Th, Tw: elements under the antialiasing filter"

# Sampling at n points of C channels. Per point: each coordinate from [-1, 1] to pixels (add, multiply, subtract,
# divide; 3 when the corners are aligned). In 2 dimensions linear: 4 distances and 4 products for the weights, then per
# channel 4 products and 3 additions. In 3: 6 distances and 8 weights of two products, then 8 products, 7 additions.
# Nearest rounds each coordinate and copies. Cubic: 35 per channel; its coefficients, one set per point, are left out.
_LINEAR, _NEAREST, _CUBIC = 0, 1, 2


def _sampling(op: Op) -> tuple[dict[str, int], int, int]:
    """Symbols, operations per point for its coordinates, and the interpolation mode."""
    grid, x = op.tensor("grid"), _input(op)
    dims = grid.shape[-1]
    cudnn = op.packet.startswith("aten::cudnn")
    aligned = cudnn or bool(op.args.get("align_corners"))
    where = {"n": grid.numel // max(dims, 1), "C": x.shape[1]}
    return where, dims * (3 if aligned else 4), op.ints("interpolation_mode", [_LINEAR])[0]


@formula("aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::cudnn_grid_sampler")
def grid_sampler(op: Op) -> Work:
    where, coordinates, mode = _sampling(op)
    volume = op.packet == "aten::grid_sampler_3d"
    if mode == _NEAREST:
        return Work(other=f"{coordinates + (3 if volume else 2)} * n", where=where)
    if mode == _CUBIC:
        return Work(other=f"n * ({coordinates} + 35 * C)", where=where)
    weights, per_channel = (22, 15) if volume else (8, 7)
    return Work(other=f"n * ({coordinates + weights} + {per_channel} * C)", where=where)


# Linear. To the input: per channel and corner a product and an addition (8; 16). To the grid: per channel, corner and
# coordinate dy * value times the other distances, subtracted: 4 * 2 * 3 = 24 in two dimensions, 8 * 3 * 4 = 96 in
# three. The weights of the corners again, and one product per coordinate for the change of scale.
@formula("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward", "aten::cudnn_grid_sampler_backward")
def grid_sampler_backward(op: Op) -> Work:
    where, coordinates, mode = _sampling(op)
    to_input, to_grid = map(bool, op.ints("output_mask", (1, 1)))
    volume = op.packet == "aten::grid_sampler_3d_backward"
    if mode == _NEAREST:
        return Work(other=f"n * ({coordinates + (3 if volume else 2)} + C)" if to_input else 0, where=where)
    if mode == _CUBIC:
        # 16 neighbours instead of 4.
        per_channel = (48 if to_input else 0) + (96 if to_grid else 0)
        return Work(other=f"n * ({coordinates} + {per_channel} * C)", where=where)
    per_channel = (16 if volume else 8) * to_input + (96 if volume else 24) * to_grid
    per_point = coordinates + (22 if volume else 8) + (3 if volume else 2) * to_grid
    return Work(other=f"n * ({per_point} + {per_channel} * C)", where=where)


# theta [N, 2, 3] applied to every point of the output grid: per coordinate 3 (2-d) or 4 (3-d) products and sums.
@formula("aten::affine_grid_generator", "aten::cudnn_affine_grid_generator")
def affine_grid(op: Op) -> Work:
    theta, grid = op.tensor("theta"), op.outputs[0]
    return Work(macs="n * k", where={"n": grid.numel, "k": theta.shape[-1]})


# torchvision. A product as of a convolution, after its inputs were sampled: an offset of row and column and 8 for the
# corners' weights at each of P points (a tap of an output, per group of offsets), then 7 for each of V values, and 1
# more with a mask.
@formula("torchvision::deform_conv2d")
def deform_conv(op: Op) -> Work:
    y, (cout, per_group, kh, kw) = op.outputs[0], op.tensor("weight").shape
    pixels, taps, masked = y.numel // max(cout, 1), kh * kw, op.args.get("use_mask", True) is not False
    where = {"y": y.numel, "k": per_group * taps, "P": pixels * taps * op.ints("offset_groups")[0]}
    where["V"] = pixels * taps * op.tensor("input").shape[1]
    return Work(macs="y * k", other=f"10 * P + {7 + masked} * V", where=where)


# Each of n results is the mean of s samples: 7 and an addition for each channel, 4 for the place of a sample and 8 for
# the weights of its corners. How many samples a region takes without `sampling_ratio` depends on its size.
@formula("torchvision::roi_align")
def roi_align(op: Op) -> Work:
    x, y, rois, ratio = op.tensor("input"), op.outputs[0], op.tensor("rois"), op.ints("sampling_ratio")[0]
    where = {"n": y.numel, "C": y.shape[1], "s": max(ratio, 1) ** 2, "x": x.numel, "e": x.itemsize, "r": rois.nbytes}
    note = "" if ratio > 0 else "one sample a result is assumed: how many there are depends on the regions"
    return Work(other="8 * n * s + 12 * n / C * s", reads="min(4 * n * s, x) * e + r", where=where, note=note)
