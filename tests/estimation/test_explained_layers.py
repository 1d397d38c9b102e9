"""`--explain` finds what people name: functions, path endings, ops, and layers inside a fused op."""

from __future__ import annotations

import pytest
from torch import nn

import rooflight
from rooflight.errors import BadInput
from rooflight.estimation.costs import work_of
from rooflight.ops.expressions import evaluate
from rooflight.ops.fused_layers import fused_parts
from rooflight.reporting.sections.derivation import derivation_of, derivation_text
from rooflight.summary.layer_lookup import find_layer


@pytest.fixture(scope="module")
def mnist():
    return rooflight.estimate("mnist-cnn", batch=1)


@pytest.fixture(scope="module")
def resnet():
    return rooflight.estimate("resnet18", batch=1, input_shape="3x32x32")


@pytest.fixture(scope="module")
def encoder():
    return rooflight.estimate("transformer", batch=2, seq=16)


def test_functions_by_any_of_their_names(mnist):
    for text in ("max_pool2d", "max_pool2d()", "F.max_pool2d", "aten::max_pool2d_with_indices"):
        assert find_layer(mnist, text).name == "max_pool2d()"
    assert find_layer(mnist, "_log_softmax").name == find_layer(mnist, "log_softmax").name == "log_softmax()"
    text = derivation_text(derivation_of(mnist, "relu"))
    assert "a function that mnist-cnn calls" in text and "called 3 times" in text
    # 32x26x26 + 64x24x24 + 128 values, 4 bytes each, read and written.
    assert f"sum: 0 MACs = 0 FLOPs, {58624:,} other, {58624 * 8:,} B" in text


def test_path_endings():
    ledger = rooflight.estimate("distilbert", batch=1, seq=16, overrides={"n_layers": "3"})
    found = find_layer(ledger, "ffn.lin1")
    assert found.name == "transformer.layer.0.ffn.lin1"
    assert found.alike == ("transformer.layer.1.ffn.lin1", "transformer.layer.2.ffn.lin1")
    assert find_layer(ledger, "transformer.layer.[0-2].ffn.lin1").name == "transformer.layer.0.ffn.lin1"
    text = derivation_text(derivation_of(ledger, "ffn.lin1"))
    assert "3 layers that cost the same" in text and f"{16 * 768 * 3072:,}" in text
    assert find_layer(ledger, "word_embeddings").name == "embeddings.word_embeddings"  # the only one
    assert find_layer(ledger, "distilbert").name == ""


def test_endings_that_differ_are_listed(resnet):
    with pytest.raises(BadInput, match=r"'add' is 8 layers, not all alike: layer1.0.add\(\), layer1.1.add\(\)"):
        find_layer(resnet, "add")
    assert find_layer(resnet, "layer2.0.add").name == "layer2.0.add()"
    assert find_layer(resnet, "conv1").name == "conv1"  # the path itself, not layer1.0.conv1
    assert find_layer(resnet, "max_pool2d").name == "maxpool"  # the module that runs this op
    with pytest.raises(BadInput, match=r"did you mean layer1\.0"):
        find_layer(resnet, "layer1.0.bar")


def test_layers_inside_a_fused_op_add_up_to_it(encoder):
    ops = [op for op in encoder.ops if fused_parts(op)]
    assert {op.packet.partition("::")[2] for op in ops} == {
        "_transformer_encoder_layer_fwd",
        "_native_multi_head_attention",
    }
    for op in ops:
        work, parts = work_of(op), [part.work for part in fused_parts(op)]
        for name in ("macs", "other"):
            total = evaluate(getattr(work, name), work.where)
            assert sum(evaluate(getattr(part, name), part.where) for part in parts) == total
        # Every parameter of the op is that of one layer.
        named = [name for part in fused_parts(op) for name in part.parameters]
        weights = [name for name in op.args if "weight" in name or "bias" in name]
        assert sorted(named) == sorted(name for name in weights if op.has(name) and op.tensors(name))


def test_the_row_of_all_functions_is_answered_with_them():
    ledger = rooflight.estimate("gpt2", overrides={"n_layer": "1"}, seq=8)
    with pytest.raises(BadInput, match=r"'<functional>' stands for \d+ functions: .*\(\).*name one of them"):
        find_layer(ledger, "<functional>")


def test_a_linear_inside_a_fused_op(encoder):
    text = derivation_text(derivation_of(encoder, "encoder.layers.0.linear1"))
    # 2 x 16 rows, 512 features in, 2048 out.
    assert f"= {2 * 16 * 512 * 2048:,}\n" in text
    assert "it runs inside aten::_transformer_encoder_layer_fwd" in text
    assert f"{4 * (512 * 2048 + 2048):,} B" in text
    # Its inputs and outputs are not among these bytes: what they give a layer norm is no intensity.
    norm = derivation_text(derivation_of(encoder, "encoder.layers.0.norm1"))
    assert f"= {4 * 2 * 512:,} B" in norm and "no compulsory byte" in norm.replace("\n", " ")
    assert "FLOP/B" not in text + norm
    whole = derivation_text(derivation_of(encoder, "t.encoder.layers.3.self_attn"))
    # q, k, v and the output: 4 x 512 x 512 a row; scores and values: 2 x 16 x 512 a row.
    assert f"sum: {2 * 16 * (4 * 512 * 512 + 2 * 16 * 512):,} MACs" in whole
    with pytest.raises(BadInput, match="runs nothing in this step"):
        derivation_of(encoder, "t.encoder.layers.0.dropout1")


def test_a_module_that_is_called_twice_and_one_alone():
    import torch

    shared = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    ledger = rooflight.estimate(nn.Sequential(shared, shared), torch.zeros(1, 4))
    assert find_layer(ledger, "relu").name == "0.1"
    assert "2 times" in derivation_text(derivation_of(ledger, "0.0"))
