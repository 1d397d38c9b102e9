"""Is the trace without a GPU the step that CUDA runs? Compares op for op: name, module, phase, output shapes, dtypes.

usage: op_sequences.py OUT.json    (needs a CUDA GPU)

Every case is traced twice with the same code: on meta tensors, and really run on the GPU. The result is kept in
tests/data/h200_op_sequences.json.gz: the GPU's sequence of op names for every case, which tests hold the trace to.
"""

import gzip
import json
import sys
import traceback
from difflib import SequenceMatcher
from pathlib import Path

import torch

from rooflight.models import build
from rooflight.trace import TraceOptions, trace

CASES = []
for name, extra in [
    ("mnist-cnn", {}), ("mnist-cnn-5x5", {}), ("alexnet", {}), ("vgg11", {}), ("googlenet", {}), ("resnet18", {}), ("resnet50", {}),
    ("vit-b-16", {}), ("transformer", dict(seq=64)), ("word-lm", {}), ("distilbert", dict(seq=64)), ("distilbert-mlm", dict(seq=64)),
    ("gpt2", dict(seq=128)), ("llama3-8b", dict(seq=64, overrides={"num_hidden_layers": "2"})),
    ("mixtral-8x7b", dict(seq=64, overrides={"num_hidden_layers": "1"})),
]:  # fmt: skip
    for step in ("infer", "train"):
        CASES += [(name, dict(extra, batch=4, step=step, dtype=dtype), {}) for dtype in ("fp32", "bf16")]
for name in ("gpt2", "llama3-8b"):
    extra = {} if name == "gpt2" else dict(overrides={"num_hidden_layers": "2"})
    CASES += [(name, dict(extra, batch=2, step="decode", past=128, dtype=dtype), {}) for dtype in ("fp32", "bf16")]
for name in ("resnet18", "gpt2", "transformer", "distilbert", "mnist-cnn"):
    extra = {} if name in ("resnet18", "mnist-cnn") else dict(seq=64)
    CASES.append((name, dict(extra, batch=2, step="train"), dict(autocast="bf16")))
    CASES.append((name, dict(extra, batch=2, step="infer"), dict(autocast="bf16")))
for optimizer in ("sgd", "momentum", "adam", "adamw"):
    for foreach in (True, False):
        CASES.append(("mnist-cnn", dict(batch=2, step="train"), dict(optimizer=optimizer, foreach=foreach)))
for name in ("torchvision:resnet18", "torchvision:vgg11", "torchvision:googlenet", "torchvision:mobilenet_v3_small", "torchvision:convnext_tiny",
             "torchvision:swin_t", "timm:vit_tiny_patch16_224", "hf:bert", "hf:gpt2", "hf:distilbert"):  # fmt: skip
    CASES += [(name, dict(batch=2, step=step), {}) for step in ("infer", "train")]
SMALL = (
    "lstm lstm_projected gru rnn attention_odd attention_bool_mask attention_float_mask attention_grouped convolutions "
    "convolutions_channels_last checkpointed multi_head"
)
SMALL_MODELS = Path(__file__).parents[2] / "tests" / "fixtures" / "small_models.py"
for name in SMALL.split():
    for step in ("infer", "train"):
        for dtype in ("fp32", "bf16"):
            CASES.append((f"small_models:{name}", dict(batch=2, step=step, dtype=dtype), {}))

# Rows without a kernel of their own: aliases of the parameter buffer, Python scalars becoming tensors, one value read
# back by the host. A trace without data cannot do the last, and does the others in its own words.
IGNORED = ("aten::set_", "aten::lift_fresh", "aten::_local_scalar_dense", "aten::scalar_tensor")


def spec_of(name: str) -> str:
    family, _, rest = name.partition(":")
    return f"{SMALL_MODELS}:{rest}" if family == "small_models" else name


def rows(ledger, *, shapes: bool):
    found = []
    for op in ledger.ops:
        if op.name.startswith(IGNORED):
            continue
        row = (op.phase[0], op.module, op.name)
        found.append((*row, tuple((t.shape, t.dtype) for t in op.outputs if t.numel)) if shapes else row)
    return found


def main() -> None:
    import warnings

    warnings.simplefilter("ignore")
    results, equal = [], 0
    for name, arguments, options in CASES:
        label = f"{name} {arguments} {options}"
        try:
            dry = trace(build(spec_of(name), **arguments), TraceOptions(**options))
            wet = trace(build(spec_of(name), device="cuda", **arguments), TraceOptions(on="cuda", **options))
            a, b = rows(dry, shapes=True), rows(wet, shapes=True)
            same = a == b
            equal += same
            results.append(
                dict(
                    model=name,
                    arguments=arguments,
                    options=options,
                    ops=[f"{o[0]} {o[1]} {o[2]}" for o in rows(wet, shapes=False)],
                )
            )
            print("ok  " if same else "DIFF", label, len(a), len(b), flush=True)
            if not same:
                shown = 0
                for tag, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
                    if tag != "equal" and shown < 4:
                        shown += 1
                        print(
                            "    meta",
                            [x[1:] for x in a[i:j]][:5],
                            "\n    cuda",
                            [x[1:] for x in b[k:m]][:5],
                            flush=True,
                        )
        except Exception as error:
            print("FAIL", label, repr(error)[:300], flush=True)
            if "-v" in sys.argv:
                traceback.print_exc()
        torch.cuda.empty_cache()
    about = dict(
        gpu=torch.cuda.get_device_name(),
        torch=torch.__version__,
        made_by="benchmarks/h200/op_sequences.py",
        cases=results,
    )
    with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as out:
        out.write(json.dumps(about, separators=(",", ":")).encode())
    print(f"{equal} of {len(CASES)} equal")


if __name__ == "__main__":
    main()
