"""A real call for every aten name with a formula, so that a slip in an argument's name fails.

Most calls follow from the schema (`call_by_schema`); `CALLS` has those that need particular shapes or types,
`PRETENDED` those that no CPU build of torch can run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from recording import Pretended, meta, numbers, record

from rooflight.ledger import Op

aten = torch.ops.aten


def call_by_schema(name: str) -> Op:
    """The first overload that runs on tensors of one shape and other arguments of a plain value."""
    packet, problems = getattr(aten, name), []
    for overload in packet.overloads():
        function = getattr(packet, overload)
        arguments = function._schema.arguments
        if any(a.kwarg_only and a.alias_info is not None for a in arguments):
            continue  # an out variant
        needed = [a for a in arguments if not a.has_default_value()]
        try:
            args = [_value(str(a.type)) for a in needed if not a.kwarg_only]
            return record(function, *args, **{a.name: _value(str(a.type)) for a in needed if a.kwarg_only})
        except Exception as error:
            problems.append(f"{overload}: {error}")
    raise AssertionError(f"aten::{name} needs a call of its own in CALLS:\n" + "\n".join(problems))


def _value(kind: str) -> Any:
    if kind == "Tensor":
        return meta(2, 3, 4, 4)
    if kind == "List[Tensor]":
        return [meta(2, 3), meta(4)]
    plain = {"number": 2, "float": 0.5, "int": 1, "SymInt": 1, "bool": True, "str": "sum", "List[int]": [1]}
    return plain[kind]


def bits(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=torch.bool)


def waves(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=torch.complex64)


X, X3, X5 = meta(2, 3, 8, 8), meta(2, 3, 8), meta(2, 3, 8, 8, 8)
C, M = meta(3), meta(4, 4)
STATISTICS = (C, C, C, C)  # weight, bias, running mean, running variance
ALL = [True, True, True]
STEP = {"lr": 0.1, "weight_decay": 0.1, "maximize": False}
LISTS = [[torch.ones(2)], [torch.ones(2)], [torch.ones(2)]]

CALLS: dict[str, Callable[[], Op]] = {
    # pointwise
    "__ilshift__": lambda: record(aten.__ilshift__.Scalar, numbers(3), 1),
    "__irshift__": lambda: record(aten.__irshift__.Scalar, numbers(3), 1),
    "clamp": lambda: record(aten.clamp.default, X, 0, 1),
    "clamp_": lambda: record(aten.clamp_.default, meta(3), 0),
    "where": lambda: record(aten.where.self, bits(2, 3), meta(2, 3), meta(2, 3)),
    "equal": lambda: record(aten.equal.default, torch.ones(3), torch.ones(3)),
    "glu_backward": lambda: record(aten.glu_backward.default, meta(2, 2), meta(2, 4), 1),
    # copies
    "_chunk_cat": lambda: record(aten._chunk_cat.default, [meta(4, 2), meta(4, 2)], 0, 2),
    "_conj": lambda: record(aten._conj.default, waves(3)),
    "_conj_copy": lambda: record(aten._conj_copy.default, waves(3)),
    "_reshape_copy": lambda: record(aten._reshape_copy.default, M, [16]),
    "_unsafe_view": lambda: record(aten._unsafe_view.default, M, [16]),
    "_stack": lambda: record(aten._stack.default, [M, M]),
    "stack": lambda: record(aten.stack.default, [M, M]),
    "cat": lambda: record(aten.cat.default, [M, M]),
    "as_strided_scatter": lambda: record(aten.as_strided_scatter.default, M, meta(2), [2], [1]),
    "constant_pad_nd": lambda: record(aten.constant_pad_nd.default, M, [1, 1]),
    "empty_permuted": lambda: record(aten.empty_permuted.default, [2, 3], [1, 0], device="meta"),
    "expand": lambda: record(aten.expand.default, meta(1, 3), [2, 3]),
    "expand_copy": lambda: record(aten.expand_copy.default, meta(1, 3), [2, 3]),
    "permute": lambda: record(aten.permute.default, meta(2, 3), [1, 0]),
    "permute_copy": lambda: record(aten.permute_copy.default, meta(2, 3), [1, 0]),
    "repeat": lambda: record(aten.repeat.default, C, [4]),
    "split_with_sizes": lambda: record(aten.split_with_sizes.default, C, [1, 2]),
    "split_with_sizes_copy": lambda: record(aten.split_with_sizes_copy.default, C, [1, 2]),
    "unsafe_split_with_sizes": lambda: record(aten.unsafe_split_with_sizes.default, C, [1, 2]),
    "t": lambda: record(aten.t.default, M),
    "t_": lambda: record(aten.t_.default, meta(2, 3)),
    "t_copy": lambda: record(aten.t_copy.default, M),
    "view_as_complex": lambda: record(aten.view_as_complex.default, meta(3, 2)),
    "view_as_complex_copy": lambda: record(aten.view_as_complex_copy.default, meta(3, 2)),
    "view_as_real": lambda: record(aten.view_as_real.default, waves(3)),
    "view_as_real_copy": lambda: record(aten.view_as_real_copy.default, waves(3)),
    "_local_scalar_dense": lambda: record(aten._local_scalar_dense.default, torch.ones(())),
    "im2col": lambda: record(aten.im2col.default, X, [2, 2], [1, 1], [0, 0], [1, 1]),
    "col2im": lambda: record(aten.col2im.default, meta(2, 12, 49), [8, 8], [2, 2], [1, 1], [0, 0], [1, 1]),
    "unfold_backward": lambda: record(aten.unfold_backward.default, meta(3, 2), [4], 0, 2, 1),
    "reflection_pad1d": lambda: record(aten.reflection_pad1d.default, X3, [1, 1]),
    "reflection_pad2d": lambda: record(aten.reflection_pad2d.default, X, [1] * 4),
    "reflection_pad3d": lambda: record(aten.reflection_pad3d.default, X5, [1] * 6),
    "replication_pad1d": lambda: record(aten.replication_pad1d.default, X3, [1, 1]),
    "replication_pad2d": lambda: record(aten.replication_pad2d.default, X, [1] * 4),
    "replication_pad3d": lambda: record(aten.replication_pad3d.default, X5, [1] * 6),
    "reflection_pad1d_backward": lambda: record(aten.reflection_pad1d_backward.default, meta(2, 3, 10), X3, [1, 1]),
    "reflection_pad2d_backward": lambda: record(aten.reflection_pad2d_backward.default, meta(2, 3, 10, 10), X, [1] * 4),
    "reflection_pad3d_backward": lambda: record(
        aten.reflection_pad3d_backward.default, meta(2, 3, 10, 10, 10), X5, [1] * 6
    ),
    "replication_pad1d_backward": lambda: record(aten.replication_pad1d_backward.default, meta(2, 3, 10), X3, [1, 1]),
    "replication_pad2d_backward": lambda: record(
        aten.replication_pad2d_backward.default, meta(2, 3, 10, 10), X, [1] * 4
    ),
    "replication_pad3d_backward": lambda: record(
        aten.replication_pad3d_backward.default, meta(2, 3, 10, 10, 10), X5, [1] * 6
    ),
    # indexing
    "embedding": lambda: record(aten.embedding.default, meta(10, 4), numbers(2, 3)),
    "_embedding_bag": lambda: record(aten._embedding_bag.default, meta(10, 4), numbers(6), numbers(2)),
    "_embedding_bag_forward_only": lambda: record(
        aten._embedding_bag_forward_only.default, meta(10, 4), numbers(6), numbers(2)
    ),
    "_embedding_bag_dense_backward": lambda: record(
        aten._embedding_bag_dense_backward.default,
        meta(2, 4), numbers(6), numbers(6), numbers(2), numbers(0), 10, False, 0, None,
    ),
    "_embedding_bag_backward": lambda: record(
        aten._embedding_bag_backward.default,
        torch.ones(2, 4), torch.zeros(6, dtype=torch.int64), torch.tensor([0, 3]), torch.zeros(6, dtype=torch.int64),
        torch.tensor([3, 3]), torch.zeros(0, dtype=torch.int64), 10, False, 0, False, None,
    ),
    "gather": lambda: record(aten.gather.default, M, 0, numbers(2, 4)),
    "take": lambda: record(aten.take.default, M, numbers(5)),
    "index": lambda: record(aten.index.Tensor, M, [None, numbers(5)]),
    "_unsafe_index": lambda: record(aten._unsafe_index.Tensor, M, [None, numbers(5)]),
    "index_add": lambda: record(aten.index_add.default, M, 0, numbers(2), meta(2, 4)),
    "index_add_": lambda: record(aten.index_add_.default, meta(4, 4), 0, numbers(2), meta(2, 4)),
    "index_copy": lambda: record(aten.index_copy.default, M, 0, numbers(2), meta(2, 4)),
    "index_copy_": lambda: record(aten.index_copy_.default, meta(4, 4), 0, numbers(2), meta(2, 4)),
    "index_fill": lambda: record(aten.index_fill.int_Scalar, M, 0, numbers(2), 1),
    "index_fill_": lambda: record(aten.index_fill_.int_Scalar, meta(4, 4), 0, numbers(2), 1),
    "scatter": lambda: record(aten.scatter.src, M, 0, numbers(2, 4), M),
    "scatter_": lambda: record(aten.scatter_.value, meta(4, 4), 0, numbers(2, 4), 1),
    "scatter_add": lambda: record(aten.scatter_add.default, M, 0, numbers(2, 4), M),
    "scatter_add_": lambda: record(aten.scatter_add_.default, meta(4, 4), 0, numbers(2, 4), M),
    "scatter_reduce": lambda: record(aten.scatter_reduce.two, M, 0, numbers(2, 4), M, "mean"),
    "scatter_reduce_": lambda: record(aten.scatter_reduce_.two, meta(4, 4), 0, numbers(2, 4), M, "sum"),
    "masked_fill": lambda: record(aten.masked_fill.Scalar, M, bits(4, 4), 0),
    "masked_scatter": lambda: record(aten.masked_scatter.default, M, bits(4, 4), M),
    "masked_scatter_": lambda: record(aten.masked_scatter_.default, meta(4, 4), bits(4, 4), M),
    "masked_select": lambda: record(aten.masked_select.default, torch.ones(3), torch.ones(3) > 0),
    "nonzero": lambda: record(aten.nonzero.default, torch.ones(3)),
    # randomness
    "native_dropout": lambda: record(aten.native_dropout.default, X, 0.5, True),
    "binomial": lambda: record(aten.binomial.default, torch.ones(3), torch.ones(3)),
    "_sample_dirichlet": lambda: record(aten._sample_dirichlet.default, torch.ones(3)),
    "multinomial": lambda: record(aten.multinomial.default, M, 1),
    # reductions
    "_is_all_true": lambda: record(aten._is_all_true.default, bits(3)),
    "_is_any_true": lambda: record(aten._is_any_true.default, bits(3)),
    "trace": lambda: record(aten.trace.default, M),
    # normalisation
    "native_batch_norm": lambda: record(aten.native_batch_norm.default, X, *STATISTICS, True, 0.1, 1e-5),
    "_native_batch_norm_legit": lambda: record(
        aten._native_batch_norm_legit.default, X, *STATISTICS, True, 0.1, 1e-5
    ),
    "_native_batch_norm_legit_functional": lambda: record(
        aten._native_batch_norm_legit_functional.default, X, *STATISTICS, True, 0.1, 1e-5
    ),
    "_native_batch_norm_legit_no_training": lambda: record(
        aten._native_batch_norm_legit_no_training.default, X, *STATISTICS, 0.1, 1e-5
    ),
    "_batch_norm_with_update": lambda: record(aten._batch_norm_with_update.default, X, *STATISTICS, 0.1, 1e-5),
    "_batch_norm_with_update_functional": lambda: record(
        aten._batch_norm_with_update_functional.default, X, *STATISTICS, 0.1, 1e-5
    ),
    "_batch_norm_no_update": lambda: record(aten._batch_norm_no_update.default, X, *STATISTICS, 0.1, 1e-5),
    "native_batch_norm_backward": lambda: record(
        aten.native_batch_norm_backward.default, X, X, C, C, C, C, C, True, 1e-5, ALL
    ),
    "batch_norm_backward": lambda: record(
        aten.batch_norm_backward.default, X, X, C, C, C, C, C, True, 1e-5, ALL, meta(0)
    ),
    "native_layer_norm": lambda: record(aten.native_layer_norm.default, M, [4], meta(4), meta(4), 1e-5),
    "native_layer_norm_backward": lambda: record(
        aten.native_layer_norm_backward.default, M, M, [4], meta(4, 1), meta(4, 1), meta(4), meta(4), ALL
    ),
    "native_group_norm": lambda: record(aten.native_group_norm.default, X, C, C, 2, 3, 64, 3, 1e-5),
    "native_group_norm_backward": lambda: record(
        aten.native_group_norm_backward.default, X, X, meta(2, 3), meta(2, 3), C, 2, 3, 64, 3, ALL
    ),
    "_fused_rms_norm": lambda: record(aten._fused_rms_norm.default, M, [4], meta(4), 1e-5),
    "_fused_rms_norm_backward": lambda: record(
        aten._fused_rms_norm_backward.default, M, M, [4], meta(4, 1), meta(4), [True, True]
    ),
    # softmax
    "_softmax": lambda: record(aten._softmax.default, M, 1, False),
    "_log_softmax": lambda: record(aten._log_softmax.default, M, 1, False),
    "_masked_softmax": lambda: record(
        aten._masked_softmax.default, torch.ones(1, 1, 3, 3), torch.ones(3, 3) > 1, -1, 0
    ),
    "_masked_softmax_backward": lambda: record(
        aten._masked_softmax_backward.default, torch.ones(3, 3), torch.ones(3, 3), torch.ones(3, 3) > 1
    ),
    # pooling
    "max_pool1d": lambda: record(aten.max_pool1d.default, X3, [2]),
    "avg_pool1d": lambda: record(aten.avg_pool1d.default, X3, [2]),
    "max_pool3d": lambda: record(aten.max_pool3d.default, X5, [2]),
    "max_pool3d_with_indices": lambda: record(aten.max_pool3d_with_indices.default, X5, [2]),
    "avg_pool3d": lambda: record(aten.avg_pool3d.default, X5, [2]),
    "max_pool2d_with_indices_backward": lambda: record(
        aten.max_pool2d_with_indices_backward.default,
        meta(2, 3, 4, 4), X, [2, 2], [2, 2], [0, 0], [1, 1], False, numbers(2, 3, 4, 4),
    ),
    "max_pool3d_with_indices_backward": lambda: record(
        aten.max_pool3d_with_indices_backward.default,
        meta(2, 3, 4, 4, 4), X5, [2] * 3, [2] * 3, [0] * 3, [1] * 3, False, numbers(2, 3, 4, 4, 4),
    ),
    "avg_pool2d_backward": lambda: record(
        aten.avg_pool2d_backward.default, meta(2, 3, 4, 4), X, [2, 2], [2, 2], [0, 0], False, True, None
    ),
    "avg_pool3d_backward": lambda: record(
        aten.avg_pool3d_backward.default, meta(2, 3, 4, 4, 4), X5, [2] * 3, [2] * 3, [0] * 3, False, True, None
    ),
    "adaptive_avg_pool1d": lambda: record(aten.adaptive_avg_pool1d.default, X3, [3]),
    "adaptive_avg_pool2d": lambda: record(aten.adaptive_avg_pool2d.default, X, [3, 3]),
    "_adaptive_avg_pool2d": lambda: record(aten._adaptive_avg_pool2d.default, X, [3, 3]),
    "adaptive_avg_pool3d": lambda: record(aten.adaptive_avg_pool3d.default, X5, [3, 3, 3]),
    "_adaptive_avg_pool3d": lambda: record(aten._adaptive_avg_pool3d.default, X5, [3, 3, 3]),
    "_adaptive_avg_pool2d_backward": lambda: record(aten._adaptive_avg_pool2d_backward.default, meta(2, 3, 3, 3), X),
    "_adaptive_avg_pool3d_backward": lambda: record(
        aten._adaptive_avg_pool3d_backward.default, meta(2, 3, 3, 3, 3), X5
    ),
    "adaptive_max_pool1d": lambda: record(aten.adaptive_max_pool1d.default, X3, [3]),
    "adaptive_max_pool2d": lambda: record(aten.adaptive_max_pool2d.default, X, [3, 3]),
    "adaptive_max_pool3d": lambda: record(aten.adaptive_max_pool3d.default, X5, [3, 3, 3]),
    "adaptive_max_pool2d_backward": lambda: record(
        aten.adaptive_max_pool2d_backward.default, meta(2, 3, 3, 3), X, numbers(2, 3, 3, 3)
    ),
    "adaptive_max_pool3d_backward": lambda: record(
        aten.adaptive_max_pool3d_backward.default, meta(2, 3, 3, 3, 3), X5, numbers(2, 3, 3, 3, 3)
    ),
    "fractional_max_pool2d": lambda: record(aten.fractional_max_pool2d.default, X, [2, 2], [4, 4], meta(2, 3, 2)),
    "fractional_max_pool3d": lambda: record(aten.fractional_max_pool3d.default, X5, [2] * 3, [4] * 3, meta(2, 3, 3)),
    "fractional_max_pool2d_backward": lambda: record(
        aten.fractional_max_pool2d_backward.default, meta(2, 3, 4, 4), X, [2, 2], [4, 4], numbers(2, 3, 4, 4)
    ),
    "max_unpool2d": lambda: record(aten.max_unpool2d.default, meta(2, 3, 4, 4), numbers(2, 3, 4, 4), [8, 8]),
    "max_unpool3d": lambda: record(
        aten.max_unpool3d.default, meta(2, 3, 4, 4, 4), numbers(2, 3, 4, 4, 4), [8] * 3, [2] * 3, [0] * 3
    ),
    # interpolation
    "upsample_nearest1d": lambda: record(aten.upsample_nearest1d.default, X3, [16]),
    "upsample_nearest2d": lambda: record(aten.upsample_nearest2d.default, X, [16, 16]),
    "upsample_nearest3d": lambda: record(aten.upsample_nearest3d.default, X5, [16] * 3),
    "_upsample_nearest_exact1d": lambda: record(aten._upsample_nearest_exact1d.default, X3, [16]),
    "_upsample_nearest_exact2d": lambda: record(aten._upsample_nearest_exact2d.vec, X, [16, 16], None),
    "_upsample_nearest_exact3d": lambda: record(aten._upsample_nearest_exact3d.default, X5, [16] * 3),
    "upsample_linear1d": lambda: record(aten.upsample_linear1d.default, X3, [16], False),
    "upsample_bilinear2d": lambda: record(aten.upsample_bilinear2d.default, X, [16, 16], False),
    "upsample_bicubic2d": lambda: record(aten.upsample_bicubic2d.default, X, [16, 16], False),
    "upsample_trilinear3d": lambda: record(aten.upsample_trilinear3d.default, X5, [16] * 3, False),
    "_upsample_bilinear2d_aa": lambda: record(aten._upsample_bilinear2d_aa.default, X, [4, 4], False),
    "_upsample_bicubic2d_aa": lambda: record(aten._upsample_bicubic2d_aa.default, X, [4, 4], False),
    "_upsample_lanczos2d_aa": lambda: record(aten._upsample_lanczos2d_aa.default, X, [4, 4], False),
    "grid_sampler_2d": lambda: record(aten.grid_sampler_2d.default, X, meta(2, 5, 5, 2), 0, 0, False),
    "grid_sampler_3d": lambda: record(aten.grid_sampler_3d.default, X5, meta(2, 5, 5, 5, 3), 0, 0, False),
    "grid_sampler_2d_backward": lambda: record(
        aten.grid_sampler_2d_backward.default, meta(2, 3, 5, 5), X, meta(2, 5, 5, 2), 0, 0, False, [True, True]
    ),
    "grid_sampler_3d_backward": lambda: record(
        aten.grid_sampler_3d_backward.default, meta(2, 3, 5, 5, 5), X5, meta(2, 5, 5, 5, 3), 0, 0, False, [True, True]
    ),
    "affine_grid_generator": lambda: record(aten.affine_grid_generator.default, meta(2, 2, 3), [2, 3, 5, 5], False),
    # sorting
    "_unique2": lambda: record(aten._unique2.default, torch.ones(4)),
    "unique_dim": lambda: record(aten.unique_dim.default, torch.ones(4, 2), 0),
    "unique_consecutive": lambda: record(aten.unique_consecutive.default, torch.ones(4)),
    "unique_dim_consecutive": lambda: record(aten.unique_dim_consecutive.default, torch.ones(4, 2), 0),
    "bincount": lambda: record(aten.bincount.default, torch.ones(4, dtype=torch.int64)),
    # losses
    "nll_loss_forward": lambda: record(aten.nll_loss_forward.default, M, numbers(4), None, 1, -100),
    "nll_loss_backward": lambda: record(
        aten.nll_loss_backward.default, meta(), M, numbers(4), None, 1, -100, meta()
    ),
    "nll_loss2d_forward": lambda: record(aten.nll_loss2d_forward.default, X, numbers(2, 8, 8), C, 1, -100),
    "nll_loss2d_backward": lambda: record(
        aten.nll_loss2d_backward.default, meta(), X, numbers(2, 8, 8), C, 1, -100, meta()
    ),
    "multi_margin_loss": lambda: record(aten.multi_margin_loss.default, M, numbers(4)),
    "multi_margin_loss_backward": lambda: record(
        aten.multi_margin_loss_backward.default, torch.ones(()), torch.ones(2, 3), torch.tensor([0, 1]), 1, 1
    ),
    "_ctc_loss": lambda: record(
        aten._ctc_loss.default, torch.zeros(6, 1, 4), torch.ones(1, 2, dtype=torch.int64), [6], [2]
    ),
    "_ctc_loss_backward": lambda: record(
        aten._ctc_loss_backward.default,
        torch.ones(1), torch.zeros(6, 1, 4), torch.ones(1, 2, dtype=torch.int64), [6], [2], torch.ones(1),
        torch.zeros(1, 6, 5), 0,
    ),
    # optimizers
    "_fused_sgd_": lambda: record(
        aten._fused_sgd_.default, *LISTS, momentum=0.9, dampening=0.0, nesterov=False, is_first_step=False, **STEP
    ),
    "_fused_adagrad_": lambda: record(
        aten._fused_adagrad_.default, *LISTS, [torch.ones(())], lr_decay=0.0, eps=1e-8, **STEP
    ),
    "_amp_foreach_non_finite_check_and_unscale_": lambda: record(
        aten._amp_foreach_non_finite_check_and_unscale_.default, [meta(3)], meta(1), meta(1)
    ),
    # linear algebra
    "linalg_cross": lambda: record(aten.linalg_cross.default, meta(2, 3), meta(2, 3)),
    "linalg_lu_solve": lambda: record(
        aten.linalg_lu_solve.default, M, meta(4, dtype=torch.int32), meta(4, 2)
    ),
    "_trilinear": lambda: record(
        aten._trilinear.default, meta(2, 8), meta(3, 8, 4), meta(2, 4), [1, 3], [0], [1, 2], [2, 3]
    ),
    "_cdist_forward": lambda: record(aten._cdist_forward.default, meta(5, 3), meta(6, 3), 2.0, None),
    "_fft_c2c": lambda: record(aten._fft_c2c.default, waves(8), [0], 0, True),
    "_fft_c2r": lambda: record(aten._fft_c2r.default, waves(5), [0], 2, 8),
}  # fmt: skip

_UPSAMPLED = {"1d": ([16], [2, 3, 8]), "2d": ([16, 16], [2, 3, 8, 8]), "3d": ([16] * 3, [2, 3, 8, 8, 8])}


def _upsample_backward(name: str, *flags: bool) -> Callable[[], Op]:
    sizes, shape = next(value for key, value in _UPSAMPLED.items() if key in name)
    return lambda: record(getattr(aten, name).default, meta(2, 3, *sizes), sizes, shape, *flags)


for _name in ("nearest1d", "nearest2d", "nearest3d"):
    CALLS[f"upsample_{_name}_backward"] = _upsample_backward(f"upsample_{_name}_backward")
    _exact = f"_upsample_{_name.replace('nearest', 'nearest_exact')}_backward"
    CALLS[_exact] = _upsample_backward(_exact)
for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
              "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"):  # fmt: skip
    CALLS[f"{_name}_backward"] = _upsample_backward(f"{_name}_backward", False)

PRETENDED: dict[str, Callable[[], Op]] = {
    name: (lambda name=name, result=result, args=args: record(Pretended(getattr(aten, name).default, result), *args))  # type: ignore[misc]
    for name, result, args in [
        ("record_stream", None, (X, "stream")),
        ("cudnn_batch_norm", (X, C, C, meta(9)), (X, *STATISTICS, True, 0.1, 1e-5)),
        ("miopen_batch_norm", (X, C, C), (X, *STATISTICS, False, 0.1, 1e-5)),
        ("cudnn_batch_norm_backward", (X, C, C), (X, X, C, C, C, C, C, 1e-5, meta(9))),
        ("miopen_batch_norm_backward", (X, C, C), (X, X, C, C, C, C, C, 1e-5)),
        ("batch_norm_stats", (C, C), (X, 1e-5)),
        ("batch_norm_elemt", X, (X, C, C, C, C, 1e-5)),
        ("batch_norm_gather_stats", (C, C), (X, meta(2, 3), meta(2, 3), C, C, 0.1, 1e-5, 4)),
        ("batch_norm_gather_stats_with_counts", (C, C), (X, meta(2, 3), meta(2, 3), C, C, 0.1, 1e-5, meta(2))),
        ("batch_norm_backward_reduce", (C, C, C, C), (X, X, C, C, C, True, True, True)),
        ("batch_norm_backward_elemt", X, (X, X, C, C, C, C, C, meta(2))),
        ("cudnn_grid_sampler", meta(2, 3, 5, 5), (X, meta(2, 5, 5, 2))),
        ("cudnn_grid_sampler_backward", (X, meta(2, 5, 5, 2)), (X, meta(2, 5, 5, 2), meta(2, 3, 5, 5))),
        ("cudnn_affine_grid_generator", meta(2, 5, 5, 2), (meta(2, 2, 3), 2, 3, 5, 5)),
        ("mkldnn_max_pool2d", meta(2, 3, 4, 4), (X, [2, 2])),
        ("mkldnn_max_pool3d", meta(2, 3, 4, 4, 4), (X5, [2, 2, 2])),
        ("mkldnn_adaptive_avg_pool2d", meta(2, 3, 3, 3), (X, [3, 3])),
        ("mkldnn_adaptive_avg_pool2d_backward", X, (meta(2, 3, 3, 3), X)),
        ("fractional_max_pool3d_backward", X5,
         (meta(2, 3, 4, 4, 4), X5, [2] * 3, [4] * 3, numbers(2, 3, 4, 4, 4))),
        ("_cudnn_ctc_loss", (meta(1), meta(6, 1, 4)), (meta(6, 1, 4), numbers(2), [6], [2], 0, True, False)),
    ]
}  # fmt: skip


def call(name: str) -> Op:
    """A row for `aten::name`."""
    return (CALLS.get(name) or PRETENDED.get(name) or (lambda: call_by_schema(name)))()
