"""Models of Hugging Face, built from small configurations: outputs, masks, tied weights, caches, grouped queries."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rooflight.ledger import total
from rooflight.models.optional_packages import declare_missing_operators
from tests.fixtures.tracing import flops, infer, names, only, rows, train

declare_missing_operators()
transformers = pytest.importorskip("transformers")

# Batch 2, 8 tokens, width 32, 4 heads of 8, 2 layers, 50 words.
TOKENS = torch.zeros(2, 8, dtype=torch.long)


def linear(inputs: int, outputs: int, tokens: int = 16) -> int:
    return 2 * tokens * inputs * outputs


def attention(queries: int = 8, keys: int = 8) -> int:
    """Scores and weighted values: 2 samples, 4 heads of 8."""
    return 2 * 2 * 4 * queries * keys * (8 + 8)


def gpt2() -> Any:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=50, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_hidden_layers=2, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=50,
        )
    )  # fmt: skip


def bert() -> Any:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            num_hidden_layers=2, hidden_size=32, intermediate_size=48, num_attention_heads=4, vocab_size=50
        )
    )


GPT2_LAYER = linear(32, 96) + attention() + linear(32, 32) + linear(32, 128) + linear(128, 32)


def test_a_causal_model_costs_its_products_and_attention() -> None:
    ledger = infer(gpt2(), TOKENS)
    assert total(ledger.ops).flops == 2 * GPT2_LAYER + linear(32, 50)
    assert not total(ledger.ops).uncounted
    assert [op.module for op in rows(ledger, "_scaled_dot_product_efficient_attention")] == [
        "transformer.h.0.attn", "transformer.h.1.attn",
    ]  # fmt: skip
    assert (ledger.header.batch, ledger.header.sequence) == (2, 8)
    assert ledger.header.outputs[0].shape == (2, 8, 50)


def test_training_takes_the_loss_of_the_logits_and_counts_tied_weights_once() -> None:
    model = gpt2()
    ledger = train(model, TOKENS)
    forward = 2 * GPT2_LAYER + linear(32, 50)
    assert flops(rows(ledger, phase="forward")) == forward
    # Every product has both gradients: the first one's input is an embedding, which learns.
    assert flops(rows(ledger, phase="backward")) == 2 * forward
    assert only(ledger, "nll_loss_forward").tensor("self").shape == (16, 50)
    head = next(module for module in ledger.modules if module.path == "lm_head")
    assert (head.params, head.tied) == (0, ("weight",))
    assert sum(module.params for module in ledger.modules) == sum(p.numel() for p in model.parameters())
    assert (ledger.header.loss, ledger.header.optimizer) == ("cross-entropy", "adamw")


def test_labels_make_the_model_take_its_own_loss() -> None:
    ledger = train(gpt2(), kwargs={"input_ids": TOKENS, "labels": TOKENS})
    # Inside the model, so filed under it; no second loss is taken.
    assert only(ledger, "nll_loss_forward").module == ""
    assert flops(rows(ledger, phase="backward")) == 2 * flops(rows(ledger, phase="forward"))


@pytest.mark.parametrize(
    ("dtype", "kernel"), [(torch.float32, None), (torch.bfloat16, "_scaled_dot_product_cudnn_attention")]
)
def test_grouped_queries_have_a_fused_kernel_only_in_half_precision(dtype: torch.dtype, kernel: str | None) -> None:
    ledger = infer(llama().to(dtype), TOKENS)
    if kernel:
        op = rows(ledger, kernel)[0]
        assert (op.tensor("query").shape, op.tensor("key").shape) == ((2, 4, 8, 8), (2, 2, 8, 8))
        assert "bmm" not in names(ledger, module="model.layers.0.self_attn")
    else:
        assert names(ledger, module="model.layers.0.self_attn").count("bmm") == 2
    # k and v have 2 heads, but each of the 4 query heads meets them: attention costs as much as with 4.
    layer = linear(32, 32) * 2 + linear(32, 16) * 2 + attention() + 3 * linear(32, 48)
    assert flops(op for op in rows(ledger) if "rotary" not in op.module) == 2 * layer + linear(32, 50)


@pytest.mark.parametrize("step", ["infer", "train"])
def test_a_mask_as_second_input_runs_as_on_cuda(step: str) -> None:
    trace = infer if step == "infer" else train
    ledger = trace(bert(), TOKENS, kwargs={"attention_mask": torch.ones_like(TOKENS)})
    layer = 4 * linear(32, 32) + attention() + 2 * linear(32, 48)
    assert flops(rows(ledger, phase="forward")) == 2 * layer + linear(32, 32) + linear(32, 50)
    assert {name for name, _ in ledger.header.inputs} == {"input 0", "attention_mask"}
    fused = rows(ledger, "_scaled_dot_product_efficient_attention")
    assert [op.module for op in fused] == [f"bert.encoder.layer.{i}.attention.self" for i in range(2)]
    assert "bernoulli_" not in names(ledger)
    assert ("native_dropout" in names(ledger)) is (step == "train")


@pytest.mark.parametrize("make", [gpt2, llama])
def test_decoding_attends_to_the_cache_and_leaves_it_as_it_was(make: Any) -> None:
    model = make()
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(TOKENS, past_key_values=cache, use_cache=True)
    keys = cache.layers[0].keys
    ledger = infer(model, TOKENS[:, :1], kwargs={"past_key_values": cache, "use_cache": True}, step="decode")
    assert ledger.header.step == "decode"
    assert cache.get_seq_length() == 8
    assert cache.layers[0].keys is keys
    # One query looks at 8 cached positions and itself.
    attended = [
        op for op in rows(ledger) if op.packet in ("aten::bmm", "aten::_scaled_dot_product_efficient_attention")
    ]
    layers = {"transformer.h.0.attn", "transformer.h.1.attn", "model.layers.0.self_attn", "model.layers.1.self_attn"}
    assert flops(op for op in attended if op.module in layers) == 2 * attention(1, 9)
    cached = [
        storage for storage in ledger.storages if storage.category == "input" and storage.name == "past_key_values"
    ]
    assert len(cached) == 4
    assert {storage.born for storage in cached} == {None}
    assert not any(storage.host for storage in cached)  # where the model was made is not where it will run
    # Each is let go when the longer one that takes its place is there, and that one is for the next step.
    assert all(storage.dies is not None and storage.dies < len(ledger.ops) for storage in cached)
    grown = [one for one in ledger.storages if one.category == "output" and one.name == "past_key_values"]
    assert len(grown) == 4 and {one.dies for one in grown} == {None}
    assert {one.nbytes * 8 for one in grown} == {one.nbytes * 9 for one in cached}
    heads = keys.shape[1]
    assert {storage.nbytes for storage in cached} == {2 * heads * 8 * 8 * 4}


def test_hidden_states_in_the_output_are_outputs() -> None:
    ledger = infer(bert(), TOKENS, kwargs={"output_hidden_states": True})
    assert ledger.header.outputs[0].shape == (2, 8, 50)
    assert [tensor.shape for tensor in ledger.header.outputs[1:]] == [(2, 8, 32)] * 3
