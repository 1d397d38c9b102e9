"""Random numbers: a number drawn counts 1, whatever the distribution; a fill writes and reads nothing."""

from rooflight.estimation.formulas.pointwise import elements
from rooflight.estimation.registry import Work, formula
from rooflight.ledger import Op


@formula(
    "aten::rand",
    "aten::randn",
    "aten::randint",
    "aten::randperm",
    "aten::rand_like",
    "aten::randn_like",
    "aten::randint_like",
    "aten::uniform_",
    "aten::normal_",
    "aten::exponential_",
    "aten::random_",
    "aten::geometric_",
    "aten::cauchy_",
    "aten::log_normal_",
)
def draw(op: Op) -> Work:
    return Work(other="n", reads=0, where={"n": elements(op)})


# The parameters of the distribution are tensors, and read.
@formula("aten::normal", "aten::poisson", "aten::binomial", "aten::_standard_gamma", "aten::_sample_dirichlet")
def draw_from(op: Op) -> Work:
    return Work(other="n", where={"n": elements(op)})


# Draw, then compare with the probability: one number, or read from a tensor.
@formula("aten::bernoulli", "aten::bernoulli_")
def bernoulli(op: Op) -> Work:
    where = {"n": elements(op)}
    if isinstance(op.args.get("p"), float | int) or (op.packet.endswith("_") and not op.has("p")):
        return Work(other="2 * n", reads=0, where=where)
    probabilities = op.tensor("p" if op.has("p") else "self")
    return Work(other="2 * n", reads="P", where={**where, "P": probabilities.nbytes})


# Draw, compare, then x * mask * scale. Without training (or with p = 0) it hands the input on.
@formula("aten::native_dropout", "aten::_fused_dropout")
def dropout(op: Op) -> Work:
    if op.args.get("train") is False or op.args.get("p") == 0:
        return Work(note="copies: not training, or p = 0")
    return Work(other="4 * n", where={"n": elements(op)})


@formula("aten::native_dropout_backward", "aten::_masked_scale")
def dropout_backward(op: Op) -> Work:
    return Work(other="2 * n", where={"n": elements(op)})


# R rows of C probabilities. One sample, or several without replacement: draw n numbers, divide, then the largest of
# each row (n - R comparisons), or the k largest by sorting. With replacement: divide by the sum (2n - R), add up
# (n - R), then for each of the s samples draw and search among C.
@formula("aten::multinomial")
def multinomial(op: Op) -> Work:
    p, samples = op.tensor("self"), op.ints("num_samples")[0]
    classes = p.shape[-1]
    where = {"n": p.numel, "R": p.numel // classes, "C": classes, "s": samples}
    if samples == 1:
        return Work(other="3 * n - R", where=where)
    if op.args.get("replacement"):
        return Work(other="3 * n - 2 * R + R * s * (1 + ceil(log2(C)))", where=where)
    return Work(other="2 * n + n * ceil(log2(C))", where=where)
