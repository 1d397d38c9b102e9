"""What is known of operators, a family a file: formula, kernel tasks, workspace, matrix products, tiles.

Importing this package registers all families. `registry` says how one is written, and what can be asked of an op.
Nothing in here imports torch: what only torch can tell (kernels on tensors without data, the dispatcher) is in `trace`.
"""

from rooflight.ops import (  # noqa: F401  (importing a family registers it)
    activations,
    attention,
    convolution,
    copies,
    fused_layers,
    indexing,
    interpolation,
    linear_algebra,
    losses,
    matmul,
    normalisation,
    optimizers,
    pointwise,
    pooling,
    randomness,
    recurrent,
    reductions,
    softmax,
    sorting,
)
