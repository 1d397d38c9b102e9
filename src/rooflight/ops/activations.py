"""Activation functions and their gradients, by the definition each comment gives.

As everywhere: elementary functions count 1, and where the data chooses a branch the longer one counts.
"""

from __future__ import annotations

from rooflight.ledger import Op
from rooflight.ops.pointwise import constant_is_one, each, elements, math_tasks, times
from rooflight.ops.registry import Work, aten, formula, task

# With an in-place form.
_IN_PLACE = {
    "relu": 1,  # max(x, 0)
    "threshold": 1,  # x > t ? x : value
    "leaky_relu": 2,  # x > 0 ? x : slope * x
    "celu": 4,  # x > 0 ? x : alpha * expm1(x / alpha): compare, divide, expm1, multiply
    "silu": 4,  # x / (1 + exp(-x)): negate, exp, add, divide
    "mish": 4,  # x * tanh(log1p(exp(x)))
    "hardtanh": 2,  # min(max(x, low), high)
    "hardsigmoid": 4,  # min(max(x + 3, 0), 6) / 6
    "hardswish": 5,  # x * min(max(x + 3, 0), 6) / 6
}

_OUT_OF_PLACE = {
    "hardshrink": 2,  # -lambda <= x <= lambda ? 0 : x
    "softshrink": 3,  # x > lambda ? x - lambda : x < -lambda ? x + lambda : 0: two comparisons, one addition
    # min(x, 0) - log1p(exp(-|x|)): min, abs, negate, exp, log1p, subtract
    "log_sigmoid_forward": 6,
    "glu": 5,  # a * sigmoid(b), per element of the half that comes out: sigmoid is 4
    "_prelu_kernel": 2,  # x > 0 ? x : weight * x
    "threshold_backward": 1,  # x > t ? dy : 0
    "leaky_relu_backward": 2,  # x > 0 ? dy : slope * dy
    "hardtanh_backward": 2,  # low < x < high ? dy : 0
    "hardsigmoid_backward": 3,  # -3 < x < 3 ? dy / 6 : 0
    "hardswish_backward": 5,  # x < -3 ? 0 : x <= 3 ? dy * (x / 3 + 0.5) : dy
    "hardshrink_backward": 2,  # -lambda <= x <= lambda ? 0 : dy
    "softshrink_backward": 2,
    "sigmoid_backward": 3,  # dy * (1 - y) * y
    "tanh_backward": 3,  # dy * (1 - y * y)
    # s = sigmoid(x): 4. dy * s * (1 + x * (1 - s)): subtract, multiply, add, multiply, multiply: 5.
    "silu_backward": 9,
    # s = sigmoid(x): 4. t = tanh(log1p(exp(x))): 3. dy * (t + x * s * (1 - t * t)): 6.
    "mish_backward": 13,
    # z = exp(-|x|): abs, negate, exp: 3. x < 0: 1. dy * (max' - sign * (z / (1 + z))): add, divide, multiply,
    # subtract, multiply: 5.
    "log_sigmoid_backward": 9,
    # dx = x > 0 ? dy : weight * dy, dweight = x > 0 ? 0 : x * dy: compare, multiply, multiply.
    "_prelu_kernel_backward": 3,
    "rrelu_with_noise_backward": 1,  # noise * dy
}

for _name, _count in _IN_PLACE.items():
    formula(f"aten::{_name}", f"aten::{_name}_")(each(_count))
for _name, _count in _OUT_OF_PLACE.items():
    formula(f"aten::{_name}")(each(_count))


# "none": 0.5 * x * (1 + erf(x / sqrt(2))): scale, erf, add, halve, multiply = 5.
# "tanh": 0.5 * x * (1 + tanh(b * (x + k * x^3))): the cube 2, inside 3, tanh 1, add, halve, multiply 3 = 9.
@formula("aten::gelu", "aten::gelu_")
def gelu(op: Op) -> Work:
    tanh = op.args.get("approximate") == "tanh"
    return Work(other=f"{9 if tanh else 5} * n", where={"n": elements(op)}, note="tanh form" if tanh else "erf form")


# "none": cdf = 0.5 * (1 + erf(x / sqrt(2))): 4. pdf = c * exp(-0.5 * x * x): 4. dy * (cdf + x * pdf): 3. Sum 11.
# "tanh": t = tanh(b * (x + k * x^3)): 6, of which x^2 is used again. 0.5 * x: 1. 1 + t: 1. 0.5 * (1 + t): 1.
#         1 - t * t: 2. b * (1 + 3k * x^2): 3. The product of the three derivatives: 2. dy * (left + right): 2. Sum 18.
@formula("aten::gelu_backward")
def gelu_backward(op: Op) -> Work:
    tanh = op.args.get("approximate") == "tanh"
    return Work(other=f"{18 if tanh else 11} * n", where={"n": elements(op)}, note="tanh form" if tanh else "erf form")


# x > 0 ? scale * x : (alpha * scale) * expm1(input_scale * x): compare, expm1, multiply, and the input scale.
@formula("aten::elu", "aten::elu_")
def elu(op: Op) -> Work:
    return Work(other=f"{3 if constant_is_one(op, 'input_scale') else 4} * n", where={"n": elements(op)})


# From x: compare, then dy * (alpha * scale * input_scale) * exp(input_scale * x): exp and two products.
# From the result: compare, then dy * input_scale * (y + alpha * scale): add and product.
@formula("aten::elu_backward")
def elu_backward(op: Op) -> Work:
    count = (3 if op.args.get("is_result") else 4) + (not constant_is_one(op, "input_scale"))
    return Work(other=f"{count} * n", where={"n": elements(op)})


# beta * x > threshold ? x : log1p(exp(beta * x)) / beta: compare, exp, log1p; with beta also a product and a quotient.
@formula("aten::softplus")
def softplus(op: Op) -> Work:
    return Work(other=f"{3 if constant_is_one(op, 'beta') else 5} * n", where={"n": elements(op)})


# z = exp(beta * x); beta * x > threshold ? dy : dy * z / (z + 1): exp, compare, multiply, add, divide.
@formula("aten::softplus_backward")
def softplus_backward(op: Op) -> Work:
    return Work(other=f"{5 if constant_is_one(op, 'beta') else 6} * n", where={"n": elements(op)})


# y = a * s, s = sigmoid(b): 4. da = s * dy: 1. db = (1 - s) * s * a * dy: 4. Per element of dy, which is half of x.
@formula("aten::glu_backward")
def glu_backward(op: Op) -> Work:
    return Work(other="9 * n", where={"n": op.tensor("grad_output").numel})


# Training: a slope drawn for every element (draw, scale, shift), then a leaky relu. Otherwise a leaky relu.
@formula("aten::rrelu_with_noise", "aten::rrelu_with_noise_")
def rrelu_with_noise(op: Op) -> Work:
    count = 5 if op.args.get("training") else 2
    return Work(other=times(count, "n"), where={"n": elements(op)})


# --- kernel tasks

_MATH = """
    gelu gelu_backward silu silu_ silu_backward tanh_backward sigmoid_backward softplus softplus_backward
    mish mish_ mish_backward elu elu_ elu_backward log_sigmoid_forward log_sigmoid_backward
"""

task(*aten(_MATH))(math_tasks)  # the others are bound by their bytes
