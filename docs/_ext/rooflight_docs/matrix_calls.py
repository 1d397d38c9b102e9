"""A plain call of every operator of matrix work, as a ledger would hold it, for the page of formulas.

All other operators have one in the tests (`formula_calls`), made by really calling them; these cannot be called on
every machine, or not with arguments that follow from their schema.
"""

from __future__ import annotations

from rooflight.ledger import Arg, Op, Tensor


def _tensor(*shape: int) -> Tensor:
    return Tensor(0, shape, "fp32")


def _op(name: str, outputs: list[Tensor], args: dict[str, Arg]) -> Op:
    return Op(index=0, phase="forward", module="", call=0, name=name, ordinal=0, args=args, outputs=tuple(outputs))


_X, _W, _Y = _tensor(2, 3, 8, 8), _tensor(4, 3, 3, 3), _tensor(2, 4, 6, 6)
_Q, _K, _V = _tensor(2, 4, 6, 8), _tensor(2, 4, 7, 8), _tensor(2, 4, 7, 8)
_QKV: dict[str, Arg] = {"query": _Q, "key": _K, "value": _V, "is_causal": True}
_A, _B, _C = _tensor(3, 4), _tensor(4, 5), _tensor(3, 5)
_A3, _B3, _C3 = _tensor(2, 3, 4), _tensor(2, 4, 5), _tensor(2, 3, 5)
_VECTOR, _ROW = _tensor(4), _tensor(3)
_TOKENS = _tensor(2, 6, 8)

_MATRICES: dict[str, Arg] = {"self": _A, "mat2": _B}
_ADDED: dict[str, Arg] = {"self": _C, "mat1": _A, "mat2": _B}
_BATCHED: dict[str, Arg] = {"self": _C3, "batch1": _A3, "batch2": _B3}
_CONVOLVED: dict[str, Arg] = {"input": _X, "weight": _W, "groups": 1}
_BACK: dict[str, Arg] = {"grad_output": _Y, **_CONVOLVED, "output_mask": [True, True, True]}
_LSTM: dict[str, Arg] = {
    "input": _tensor(5, 2, 8), "weight": [_tensor(16, 8), _tensor(16, 4), _tensor(16), _tensor(16)], "mode": 2,
    "hidden_size": 4, "num_layers": 1,
}  # fmt: skip
_CALLS: dict[tuple[str, ...], tuple[list[Tensor], dict[str, Arg]]] = {
    ("convolution", "_convolution", "convolution_overrideable"): ([_Y], _CONVOLVED),
    ("cudnn_convolution",): ([_Y], {"self": _X, "weight": _W, "groups": 1}),
    ("convolution_backward",): ([_X, _W, _tensor(4)], _BACK),
    ("mm", "_int_mm", "_scaled_mm"): ([_C], _MATRICES),
    ("addmm", "addmm_", "_addmm_activation"): ([_C], _ADDED),
    ("bmm",): ([_C3], {"self": _A3, "mat2": _B3}),
    ("baddbmm", "baddbmm_", "addbmm", "addbmm_"): ([_C3], _BATCHED),
    ("mv",): ([_ROW], {"self": _A, "vec": _VECTOR}),
    ("addmv", "addmv_"): ([_ROW], {"self": _ROW, "mat": _A, "vec": _VECTOR}),
    ("dot", "vdot"): ([_tensor()], {"self": _VECTOR, "tensor": _VECTOR}),
    ("addr", "addr_"): ([_A], {"self": _A, "vec1": _ROW, "vec2": _VECTOR}),
    ("_grouped_mm",): ([_C], {"self": _A, "mat2": _tensor(2, 4, 5)}),
    ("linear",): ([_tensor(2, 6, 3)], {"input": _TOKENS, "weight": _tensor(3, 8)}),
    (
        "scaled_dot_product_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_fused_attention_overrideable",
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ): ([_Q], _QKV),
    ("_native_multi_head_attention",): ([_TOKENS], {"query": _TOKENS, "num_head": 2}),
    ("_transformer_encoder_layer_fwd",): (
        [_TOKENS], {"src": _TOKENS, "ffn_weight_1": _tensor(16, 8), "num_heads": 2, "use_gelu": True},
    ),
    ("_cudnn_rnn", "miopen_rnn", "_cudnn_rnn_backward", "miopen_rnn_backward"): ([_tensor(5, 2, 4)], _LSTM),
    ("mkldnn_rnn_layer",): ([_tensor(5, 2, 4)], {**_LSTM, "weight0": _tensor(16, 8), "weight1": _tensor(16, 4)}),
    ("_thnn_fused_lstm_cell",): ([_tensor(2, 4)], {"cx": _tensor(2, 4)}),
}  # fmt: skip

CALLS = {f"aten::{name}": _op(f"aten::{name}", *given) for names, given in _CALLS.items() for name in names}
"""By the name of the operator."""
