"""Convolutions of one, two and three dimensions: dense, grouped, depthwise, dilated, transposed; and their gradients.

Every output element is a dot product over (Cin / G) * kernel. Dilation and stride change only the output's size.
A transposed convolution scatters instead: every *input* element meets (Cout / G) * kernel weights.
"""

from rooflight.estimation.registry import Work, formula
from rooflight.ledger import Op, Tensor

_AXES = {1: ("W",), 2: ("H", "W"), 3: ("D", "H", "W")}


def _symbols(x: Tensor, weight: Tensor, y: Tensor, *, groups: int, transposed: bool) -> tuple[str, dict[str, int]]:
    """MACs of one pass as text, with its symbols. x [N, Cin, ...], y [N, Cout, ...].

    weight is [Cout, Cin/G, ...], or [Cin, Cout/G, ...] when transposed.
    """
    axes = _AXES[len(weight.shape) - 2]
    # An input without a batch dimension is one sample.
    batch = x.shape[0] if len(x.shape) == len(weight.shape) else 1
    channels_in, channels_out = (x.shape[-len(axes) - 1], y.shape[-len(axes) - 1])
    where = {"N": batch, "Cin": channels_in, "Cout": channels_out}
    pixels = x.shape[-len(axes) :] if transposed else y.shape[-len(axes) :]
    suffix = "i" if transposed else "o"
    where |= {f"{axis}{suffix}": size for axis, size in zip(axes, pixels, strict=True)}
    where |= {f"K{axis.lower()}": size for axis, size in zip(axes, weight.shape[2:], strict=True)}
    spatial = " * ".join(f"{axis}{suffix}" for axis in axes)
    kernel = " * ".join(f"K{axis.lower()}" for axis in axes)
    contracted, produced = ("Cout", "Cin") if transposed else ("Cin", "Cout")
    if groups > 1:
        where["G"] = groups
        contracted = f"({contracted} // G)"
    return f"N * {produced} * {spatial} * {contracted} * {kernel}", where


@formula("aten::convolution", "aten::cudnn_convolution", "aten::_convolution", "aten::convolution_overrideable")
def convolution(op: Op) -> Work:
    x, weight, y = op.tensor("input" if op.has("input") else "self"), op.tensor("weight"), op.outputs[0]
    groups, transposed = op.ints("groups", [1])[0], bool(op.args.get("transposed"))
    macs, where = _symbols(x, weight, y, groups=groups, transposed=transposed)
    return Work(macs=macs, where=where)


# dgrad: dx = dy * w^T, as many MACs as forward. wgrad: dw = x^T * dy, as many again. The bias gradient adds dy up.
@formula("aten::convolution_backward")
def convolution_backward(op: Op) -> Work:
    dy, x, weight = op.tensor("grad_output"), op.tensor("input"), op.tensor("weight")
    groups, transposed = op.ints("groups", [1])[0], bool(op.args.get("transposed"))
    dgrad, wgrad, bgrad = _mask(op)
    macs, where = _symbols(x, weight, dy, groups=groups, transposed=transposed)
    passes = dgrad + wgrad
    names = [name for name, on in (("dgrad", dgrad), ("wgrad", wgrad), ("bias gradient", bgrad)) if on]
    note = f"computes {', '.join(names)}" if names else "computes nothing"
    return Work(
        macs=f"P * {macs}" if passes else 0,
        other="dy - Cout" if bgrad else 0,
        # dgrad reads dy and w, wgrad reads dy and x.
        reads=dy.nbytes + (weight.nbytes if dgrad else 0) + (x.nbytes if wgrad else 0),
        where={"P": passes, **where, "dy": dy.numel},
        note=note,
    )


def _mask(op: Op) -> tuple[bool, bool, bool]:
    mask = op.args.get("output_mask")
    if not isinstance(mask, list):
        return True, True, False
    dx, dw, db = (bool(item) for item in mask)
    return dx, dw, db
