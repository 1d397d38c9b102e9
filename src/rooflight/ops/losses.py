"""Losses and their gradients. Cross-entropy arrives as a log-softmax and a negative log-likelihood.

Reducing n values to one adds n - 1, and for the mean 1 more to divide. In the gradient the factor 1/n is folded into
one constant.
"""

from __future__ import annotations

from rooflight.ledger import Op
from rooflight.ops.kernel_task import Task, plain_task, precision_of, reduce_task
from rooflight.ops.registry import Formula, Work, aten, counted, formula, never_timed, task

_NONE, _MEAN, _SUM = 0, 1, 2


def _reduction(op: Op) -> int:
    return op.ints("reduction", [_MEAN])[0]


def _loss(per_element: int) -> Formula:
    """`per_element` operations for each of n pairs, then the reduction."""

    def loss(op: Op) -> Work:
        count = per_element + op.has("weight")
        n = {"n": max(op.tensor("self").numel, op.tensor("target").numel)}
        if _reduction(op) == _NONE:
            return Work(other=f"{count} * n", where=n)
        return Work(other=f"{count + 1} * n" if _reduction(op) == _MEAN else f"{count + 1} * n - 1", where=n)

    return loss


def _gradient(per_element: int) -> Formula:
    def gradient(op: Op) -> Work:
        return Work(other=f"{per_element + op.has('weight')} * n", where={"n": op.outputs[0].numel})

    return gradient


# (x - t)^2: subtract, square. Gradient c * (x - t) * dy: subtract and two products.
formula("aten::mse_loss")(_loss(2))
formula("aten::mse_loss_backward")(_gradient(3))
# z = |x - t|: 2. z < beta: 1. The longer branch 0.5 * z * z / beta: 3. Gradient: x - t, two comparisons, 3 products.
formula("aten::smooth_l1_loss")(_loss(6))
formula("aten::smooth_l1_loss_backward")(_gradient(6))
# z = |x - t|: 2. z <= delta: 1. 0.5 * z * z or delta * (z - c): 2. Gradient: x - t, two comparisons, two products.
formula("aten::huber_loss")(_loss(5))
formula("aten::huber_loss_backward")(_gradient(5))
# (t - 1) * max(log1p(-x), -100) - t * max(log(x), -100): negate, log1p, max, subtract, multiply; log, max, multiply;
# subtract. Gradient dy * (x - t) / max((1 - x) * x, eps): subtract, subtract, multiply, max, multiply, divide.
formula("aten::binary_cross_entropy")(_loss(9))
formula("aten::binary_cross_entropy_backward")(_gradient(6))
# log1p(exp(-t * x)): negate, multiply, exp, log1p. Gradient -t * dy * z / (1 + z) with z = exp(-t * x): 7.
formula("aten::soft_margin_loss")(_loss(4))
formula("aten::soft_margin_loss_backward")(_gradient(7))


# (1 - t) * x - log_sigmoid(x): subtract, multiply, 6 for log_sigmoid, subtract: 9. With a weight p for positives
# the second term takes a factor (p - 1) * t + 1: 4 more.
@formula("aten::binary_cross_entropy_with_logits")
def bce_with_logits(op: Op) -> Work:
    return _loss(13 if op.has("pos_weight") else 9)(op)


# x [N, C] (or [N, C, H, W]) and a class for each of n places: picks one element per place. Negate n, then the sum
# and for the mean the quotient. Class weights: a product per place, and (for the mean) their sum.
@formula("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss(op: Op) -> Work:
    x, target = op.tensor("self"), op.tensor("target")
    weighted, reduction = op.has("weight"), _reduction(op)
    per_place, rest = 1 + weighted, 0
    if reduction != _NONE:
        per_place, rest = per_place + 1, -1
    if reduction == _MEAN:
        per_place, rest = per_place + weighted, rest + (0 if weighted else 1)
    other = f"{per_place} * n" + (" - 1" if rest else "")
    where = {"n": target.numel, "e": x.itemsize, "i": target.itemsize}
    if weighted:
        where["w"] = op.tensor("weight").nbytes
    return Work(other=other, reads="n * e + n * i" + " + w" * weighted, where=where)


# -dy at the class of each place (times its weight), zero elsewhere: the whole gradient is written, x is not read.
@formula("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward(op: Op) -> Work:
    target, dy = op.tensor("target"), op.tensor("grad_output")
    small = dy.nbytes + sum(op.tensor(name).nbytes for name in ("weight", "total_weight") if op.has(name))
    where = {"n": target.numel, "i": target.itemsize, "s": small}
    other = "2 * n" if op.has("weight") else "n"
    return Work(other=other, reads="n * i + s", where=where, note="s: bytes of dy, the class weights and their sum")


# x [N, C]: for every other class max(0, margin - x[target] + x): subtract, add, max, and the sum over C; p = 2 squares.
@formula("aten::multi_margin_loss", "aten::multi_margin_loss_backward")
def multi_margin_loss(op: Op) -> Work:
    count = 4 + (op.args.get("p", 1) == 2) + op.has("weight")
    return Work(other=f"{count} * n", where={"n": op.tensor("self").numel})


def _ctc(op: Op) -> dict[str, int]:
    steps, batch, classes = op.tensor("log_probs").shape
    targets, lengths = op.tensor("targets"), op.ints("target_lengths")
    # Targets in one row after another are told apart by their lengths; where those are a tensor, take them as equal.
    length = targets.shape[1] if len(targets.shape) == 2 else max(lengths, default=targets.numel // max(batch, 1))
    return {"N": batch, "T": steps, "S": length, "C": classes}


formula("aten::_ctc_loss", "aten::_cudnn_ctc_loss")(
    counted(
        "13 * N * T * (2 * S + 1)",
        _ctc,
        why="log_probs [T, N, C], targets of length S: the recursion over T steps and 2S + 1 states adds three terms "
        "in logarithms (max 2, subtract 3, exp 3, add 2, log and add 2) and the log-probability: 13 operations.",
    )
)
formula("aten::_ctc_loss_backward")(
    counted(
        "20 * N * T * (2 * S + 1) + 4 * N * T * C",
        _ctc,
        why="The recursion backwards, then per state its product with the forward one added to its class (7, as "
        "logaddexp), and per class the gradient exp(x) - exp(...): 4.",
    )
)


# --- kernel tasks


@task("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss_tasks(op: Op) -> list[Task]:
    """One number of every row is read, and they are added up: by one block of threads, where rows are rows."""
    x, target = op.tensor("self"), op.tensor("target")
    if len(x.shape) > 2 or _reduction(op) == _NONE:
        return [reduce_task(x.dtype, kept=1, reduced=target.numel, innermost=True)]
    return [Task("nll-forward", precision_of(x.dtype), (max(1, target.numel), x.shape[-1]))]


@task(*aten("mse_loss smooth_l1_loss huber_loss binary_cross_entropy"))
def loss_tasks(op: Op) -> list[Task]:
    """A number for every pair, then their sum."""
    x, target = op.tensor("self"), op.tensor("target")
    count = max(x.numel, target.numel)
    family = "math" if "entropy" in op.packet else "plain"
    pairs = Task(family, precision_of(x.dtype), (max(1, count), x.nbytes + target.nbytes, count * x.itemsize))
    if _reduction(op) == _NONE:
        return [pairs]
    return [pairs, reduce_task(x.dtype, kept=1, reduced=count, innermost=True)]


@task("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward_tasks(op: Op) -> list[Task]:
    """Zeros, and one number of every row written."""
    out, target = op.outputs[0], op.tensor("target")
    return [
        plain_task(out.numel, 0, out.nbytes, out.dtype),
        plain_task(target.numel, target.nbytes, target.numel * out.itemsize, out.dtype),
    ]


never_timed("aten::_ctc_loss", "aten::_ctc_loss_backward")
