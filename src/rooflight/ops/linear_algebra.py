"""Factorisations, solvers, distances and Fourier transforms: counted in `other`, not as matrix work.

Counts are the leading terms of the textbook algorithms (Golub and Van Loan, Matrix Computations), b matrices a batch.
A Fourier transform of L points counts 5 L log2(L), the convention of FFT benchmarks; a real one half of that.
"""

from math import prod

from rooflight.ledger import Op, Tensor
from rooflight.ops.registry import Work, aten, counted, formula, never_timed


def _square(op: Op) -> dict[str, int]:
    a = op.tensor("A" if op.has("A") else "self")
    size = a.shape[-1]
    return {"b": a.numel // max(size * size, 1), "n": size}


def _sides(op: Op) -> dict[str, int]:
    """Of matrices whose longer side is m."""
    a = op.tensor("A" if op.has("A") else "self")
    shorter, longer = sorted(a.shape[-2:])
    return {"b": a.numel // max(shorter * longer, 1), "m": longer, "n": shorter}


formula("aten::linalg_cholesky_ex", "aten::cholesky")(counted("b * n**3 / 3", _square))
formula("aten::linalg_inv_ex", "aten::cholesky_inverse")(counted("2 * b * n**3", _square))
formula(*aten("linalg_lu_factor_ex linalg_lu _linalg_det _linalg_slogdet"))(
    counted(
        "b * (m * n**2 - n**3 / 3)",
        _sides,
        why="Gaussian elimination. A determinant is its diagonal multiplied.",
    )
)


# Elimination 2n^3/3, then two triangular systems for each of k right-hand sides.
@formula("aten::_linalg_solve_ex")
def solve(op: Op) -> Work:
    where = _square(op)
    where["k"] = op.tensor("B").numel // max(where["b"] * where["n"], 1)
    return Work(other="b * (2 * n**3 / 3 + 2 * n**2 * k)", where=where)


# A triangular system: n^2 for each right-hand side.
@formula("aten::linalg_solve_triangular", "aten::triangular_solve")
def solve_triangular(op: Op) -> Work:
    of_linalg = op.packet == "aten::linalg_solve_triangular"
    a, right = (op.tensor("self"), op.tensor("B")) if of_linalg else (op.tensor("A"), op.tensor("self"))
    return Work(other="n * r", where={"n": a.shape[-1], "r": right.numel})


# Factorised already: two triangular systems.
@formula("aten::cholesky_solve", "aten::_cholesky_solve_helper", "aten::linalg_lu_solve")
def solve_factorised(op: Op) -> Work:
    of_lu = op.packet == "aten::linalg_lu_solve"
    factor = "LU" if of_lu else "input2" if op.has("input2") else "A"
    a, right = op.tensor(factor), op.tensor("B" if of_lu else "self")
    return Work(other="2 * n * r", where={"n": a.shape[-1], "r": right.numel})


# Householder: 2mn^2 - 2n^3/3 for R, as much again to form Q.
@formula("aten::linalg_qr")
def qr(op: Op) -> Work:
    passes = "" if op.args.get("mode") == "r" else "2 * "
    return Work(other=f"{passes}b * (2 * m * n**2 - 2 * n**3 / 3)", where=_sides(op))


# Golub-Reinsch: values alone 4mn^2 - 4n^3/3, with thin U and V 14mn^2 + 8n^3.
@formula("aten::_linalg_svd")
def svd(op: Op) -> Work:
    values_only = op.args.get("compute_uv") is False
    other = "b * (4 * m * n**2 - 4 * n**3 / 3)" if values_only else "b * (14 * m * n**2 + 8 * n**3)"
    return Work(other=other, where=_sides(op))


# Symmetric: 4n^3/3 for the values, 9n^3 with vectors. General: 10n^3 and 25n^3.
@formula("aten::_linalg_eigh")
def eigh(op: Op) -> Work:
    values_only = op.args.get("compute_v") is False
    return Work(other="4 * b * n**3 / 3" if values_only else "9 * b * n**3", where=_square(op))


@formula("aten::linalg_eig", "aten::linalg_eigvals", "aten::_linalg_eigvals")
def eig(op: Op) -> Work:
    factor = 25 if op.packet == "aten::linalg_eig" else 10
    return Work(other=f"{factor} * b * n**3", where=_square(op))


# a2 * b3 - a3 * b2 for each element: two products and a difference.
@formula("aten::linalg_cross")
def cross(op: Op) -> Work:
    return Work(other="3 * n", where={"n": op.outputs[0].numel})


# sum(i1 * i2 * i3) over some dimensions, as nn.Bilinear has it. For each of U slices of one dimension torch takes two
# batched products: of the first two factors [F], summed over what the third is expanded by, then of that and the third
# [T]. The results [R] of each slice are added to those before.
@formula("aten::_trilinear")
def trilinear(op: Op) -> Work:
    factors = [(op.tensor(f"i{k}").shape, op.ints(f"expand{k}")) for k in (1, 2, 3)]
    summed, (unrolled,) = op.ints("sumdim"), op.ints("unroll_dim", [1])
    rank = len(factors[0][0]) + len(factors[0][1])
    sizes = [[_size(shape, expanded, dim) for shape, expanded in factors] for dim in range(rank)]
    slices, sizes[unrolled] = max(sizes[unrolled]), [1, 1, 1]
    first = prod(max(one, two) for one, two, _ in sizes)
    early = set(summed) & set(op.ints("expand3"))
    second = prod(1 if dim in early else max(three) for dim, three in enumerate(sizes))
    result = prod(max(three) for dim, three in enumerate(sizes) if dim not in summed)
    where = {"U": slices, "F": first, "T": second, "R": result}
    return Work(macs="U * (F + T)", other="U * R", where=where)


def _size(shape: tuple[int, ...], expanded: list[int], dim: int) -> int:
    """The size of a dimension after ones were put in at the `expanded` places."""
    return 1 if dim in expanded else shape[dim - sum(place < dim for place in expanded)]


def _pairs(op: Op) -> dict[str, int]:
    x = op.tensor("x1" if op.has("x1") else "self")
    return {"n": (op.tensor("grad") if op.has("grad") else op.outputs[0]).numel, "D": x.shape[-1]}


formula("aten::_cdist_forward", "aten::_pdist_forward")(
    counted(
        "3 * n * D",
        _pairs,
        why="n pairs of vectors of D: difference, power (or absolute value) and sum for each coordinate, and the root.",
    )
)


# |x|^2 + |y|^2 - 2 x y as one product: [-2x, |x|^2, 1] of the M rows with [y, 1, |y|^2] of the N others. Before it the
# squares of both, their sums, and -2x; after it the result of n is clamped and its root taken.
@formula("aten::_euclidean_dist")
def euclidean_dist(op: Op) -> Work:
    x, y = op.tensor("x1"), op.tensor("x2")
    where = {"n": op.outputs[0].numel, "D": x.shape[-1], "M": prod(x.shape[:-1]), "N": prod(y.shape[:-1])}
    return Work(macs="n * (D + 2)", other="2 * n + (3 * M + 2 * N) * D - M - N", where=where)


formula("aten::_cdist_backward", "aten::_pdist_backward")(
    counted(
        "n * (3 * D + 1)",
        _pairs,
        why="Per pair and coordinate the difference, its factor and the sum; per pair dy / distance.",
    )
)


def _points(op: Op, x: Tensor) -> dict[str, int]:
    return {"n": x.numel, "L": prod(x.shape[dim] for dim in op.ints("dim"))}


@formula("aten::_fft_c2c")
def fft(op: Op) -> Work:
    where = _points(op, op.tensor("self"))
    return Work(other="5 * n * log2(L)" if where["L"] else 0, where=where, note="by convention 5 L log2(L)")


# n counts the real side.
@formula("aten::_fft_r2c", "aten::_fft_c2r")
def real_fft(op: Op) -> Work:
    where = _points(op, op.tensor("self") if op.packet == "aten::_fft_r2c" else op.outputs[0])
    return Work(other="2.5 * n * log2(L)" if where["L"] else 0, where=where, note="by convention half of 5 L log2(L)")


# --- kernel tasks

_MANY_STEPS = """
    cholesky cholesky_inverse cholesky_solve _cholesky_solve_helper linalg_cholesky_ex triangular_solve
    linalg_solve_triangular linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_inv_ex linalg_qr linalg_eig
    linalg_eigvals _linalg_det _linalg_slogdet _linalg_eigh _linalg_eigvals _linalg_solve_ex _linalg_svd
    _cdist_forward _cdist_backward _pdist_forward _pdist_backward _fft_c2c _fft_r2c _fft_c2r
"""

never_timed(*aten(_MANY_STEPS))
