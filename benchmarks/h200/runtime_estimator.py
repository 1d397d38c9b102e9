"""torch's own RuntimeEstimator on the steps of tests/data/h200_open.jsonl: what predictions are compared with.

usage: runtime_estimator.py OUT.json [SECONDS [BENCHMARK_SECONDS]]    (needs a CUDA GPU, torchvision and transformers)

It has two modes. `operator-level-cost-model` is a roofline with 75% of a peak, under fake tensors. As shipped in torch
2.11 it does not know an H200 by name, asks Triton for the clock and the cores instead (whose fp32 peak is half of the
datasheet's), counts multiply-adds for FLOPs (which mends that), and refuses every op whose results have two dtypes. So
three figures are kept of each step, from one and the same run:

- `as_shipped`: its own total, or the error it stops with;
- `name_mended`: the H200 entered in its table of datasheets with the figures it has for the H100, as its text asks for.
  Its peaks there are in TFLOP/s where the estimator expects PFLOP/s, so computing takes a thousandth of the time;
- `mended`: FLOPs as FLOPs over 75% of the H200's dense peaks (fp32 67, bf16 989 TFLOP/s), ops of two dtypes taken too.

`operator-level-benchmark` runs every op on real tensors of the same shapes and takes the mean of three: no prediction
for a device that is elsewhere, but the best that the tool can do. It is stopped after its own time.

Steps that fail stay in the file with their error. What is in the file already is not done again: delete it for a fresh
start, and run the command once more where a step ended the process.
"""

import contextlib
import gc
import io
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed._tools.runtime_estimator as shipped
from torch import nn
from torch._inductor.analysis import device_info
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils import _runtime_estimation as model_of_time
from torch.utils.flop_counter import flop_registry

DEVICE = "cuda"
BATCHES = {"infer": (1, 16, 64), "train": (8, 32)}
PEAKS = {torch.float32: 67e12, torch.bfloat16: 989e12, torch.float16: 989e12}
"""Dense, of NVIDIA's H200 datasheet; fp32 on CUDA cores, as the estimator takes it for convolutions too."""
SHARE_OF_PEAK = 0.75


class MnistNet(nn.Module):
    """The PyTorch MNIST example."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = self.dropout1(F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2))
        return self.fc2(self.dropout2(F.relu(self.fc1(torch.flatten(x, 1)))))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.both = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)

    def forward(self, x):
        return self.both(x, x)


class Logits(nn.Module):
    """A model of transformers, from tokens to one tensor."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        more = {"use_cache": False} if self.model.config.model_type == "gpt2" else {}
        return self.model(tokens, **more).logits


def models():
    """By the name in the rows: how it is built, and its inputs for a batch."""
    import torchvision.models as vision
    import transformers as hf

    def image(make, side=224, channels=3):
        return make, lambda batch: torch.randn(batch, channels, side, side, device=DEVICE)

    def tokens(make, vocabulary, length):
        return lambda: Logits(make()), lambda batch: torch.randint(0, vocabulary, (batch, length), device=DEVICE)

    def gpt2():
        return hf.GPT2LMHeadModel(hf.GPT2Config())

    return {
        "mnist_cnn": image(MnistNet, 28, 1),
        "alexnet": image(vision.alexnet),
        "googlenet": image(lambda: vision.googlenet(aux_logits=False, init_weights=False)),
        "vgg11": image(vision.vgg11),
        "vgg16": image(vision.vgg16),
        "vgg19": image(vision.vgg19),
        "resnet18": image(vision.resnet18),
        "resnet50": image(vision.resnet50),
        "gpt2_s128": tokens(gpt2, 50257, 128),
        "gpt2_s1024": tokens(gpt2, 50257, 1024),
        "distilbert_s128": tokens(lambda: hf.DistilBertForMaskedLM(hf.DistilBertConfig()), 30522, 128),
        "transformer_s128": (Translator, lambda batch: torch.randn(batch, 128, 512, device=DEVICE)),
    }


def stepper(name, model, mode):
    """The step that the rows timed, as a function of the inputs."""
    if mode == "infer":

        def infer(x):
            with torch.no_grad():
                model(x)

        return infer
    transformer = any(part in name for part in ("gpt2", "bert", "transformer"))
    optimizer = (torch.optim.AdamW(model.parameters(), lr=1e-4) if transformer
                 else torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))  # fmt: skip

    def train(x):
        optimizer.zero_grad(set_to_none=True)
        model(x).float().square().mean().backward()
        optimizer.step()

    return train


class Variants:
    """Stands in for the two functions that the cost model is made of, and sums the mended figures beside its own."""

    def __init__(self):
        self.seconds = {"name_mended": 0.0, "mended": 0.0}
        self.error = None
        self._transfer_ns = 0.0

    def get_transfer_time(self, given, results):
        self._transfer_ns = model_of_time.get_transfer_time(given, results)
        return self._transfer_ns

    def get_compute_time(self, packet, args, kwargs, out, dtypes):
        flops = flop_registry[packet](*args, **kwargs, out_val=out) if packet in flop_registry else 0
        tensors = [one for one in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(one, torch.Tensor)]
        dtype = next((one.dtype for one in tensors if one.dtype in PEAKS), torch.float32)
        named = device_info.lookup_device_info("NVIDIA H100").tops[dtype] * 1e15
        compute_ns = {"name_mended": 1e9 * flops / 2 / (SHARE_OF_PEAK * named),
                      "mended": 1e9 * flops / (SHARE_OF_PEAK * PEAKS[dtype])}  # fmt: skip
        for variant, value in compute_ns.items():
            self.seconds[variant] += 1e-9 * max(self._transfer_ns, value)
        try:
            return model_of_time.get_compute_time(packet, args, kwargs, out, dtypes)
        except Exception as error:  # it would end the run; the mended figures go on
            self.error = self.error or f"{type(error).__name__}: {error}"[:300]
            return 0.0


@contextlib.contextmanager
def estimating(mode):
    """RuntimeEstimator in one of its modes; what it prints is left out."""
    estimator, variants = shipped.RuntimeEstimator(), Variants()
    before = shipped.get_transfer_time, shipped.get_compute_time
    shipped.get_transfer_time, shipped.get_compute_time = variants.get_transfer_time, variants.get_compute_time
    try:
        with contextlib.redirect_stdout(io.StringIO()), estimator(estimate_mode_type=mode):
            yield estimator, variants
    finally:
        shipped.get_transfer_time, shipped.get_compute_time = before


def on_meta(make, dtype):
    """The model without data. Not made under the fake mode: a copy of a layer would end up in another such mode, and
    fake parameters cannot be converted."""
    with torch.device("meta"):
        model = make()
    return model.bfloat16() if dtype == "bf16" else model


def make_fake(model):
    """Fake tensors of the device in place of parameters and buffers."""
    made = {}
    for module in model.modules():
        for kind in (module._parameters, module._buffers):
            for name, tensor in kind.items():
                if tensor is not None:
                    new = made.get(id(tensor))
                    if new is None:
                        new = torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE)
                        new = made[id(tensor)] = nn.Parameter(new) if kind is module._parameters else new
                    kind[name] = new


def estimated(name, make, inputs, batch, dtype, mode, how):
    """One step by one mode of the estimator: a row of the results."""
    row = {"model": name, "batch": batch, "dtype": dtype, "mode": mode, "estimator": how}
    begun = time.perf_counter()
    try:
        model = on_meta(make, dtype)
        with FakeTensorMode():
            make_fake(model)
            x = inputs(batch)
            x = x.bfloat16() if dtype == "bf16" and x.is_floating_point() else x
            model.train(mode == "train")
            step = stepper(name, model, mode)
            if mode == "train":
                step(x)  # the first step makes the optimizer's state; the rows are of later ones
            with estimating(how) as (estimator, variants):
                step(x)
        row["as_shipped_s"] = None if variants.error else estimator.total_runtime * 1e-3
        if variants.error:
            row["error"] = variants.error
        if how == "operator-level-cost-model":
            row |= {f"{variant}_s": seconds for variant, seconds in variants.seconds.items()}
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"[:300]
    row["took_s"] = round(time.perf_counter() - begun, 3)
    return row


def header():
    found = {"torch": str(torch.__version__), "device": torch.cuda.get_device_name()}
    try:
        found["peaks_it_takes"] = {str(dtype): model_of_time.get_device_tflops(dtype) for dtype in PEAKS}
        found["bandwidth_it_takes"] = model_of_time.get_gpu_dram_gbps()
    except Exception as error:
        found["peaks_error"] = f"{type(error).__name__}: {error}"[:300]
    return found


def cases():
    for mode, batches in BATCHES.items():
        for name, (make, inputs) in models().items():
            for dtype in ("fp32", "bf16"):
                for batch in batches:
                    yield name, make, inputs, batch, dtype, mode


class Results:
    """The file, written before and after every step: a step that ends the process is known by it, and a second run
    goes on behind it."""

    def __init__(self, path):
        self.path = path
        self.found = json.loads(path.read_text()) if path.exists() else {"header": header(), "rows": []}
        self.done = {self._key(row) for row in self.found["rows"]}

    @staticmethod
    def _key(row):
        return tuple(row[name] for name in ("model", "batch", "dtype", "mode", "estimator"))

    def has(self, name, batch, dtype, mode, how):
        return (name, batch, dtype, mode, how) in self.done

    def begin(self, name, batch, dtype, mode, how):
        self.found["rows"].append({"model": name, "batch": batch, "dtype": dtype, "mode": mode, "estimator": how,
                                   "error": "the process ended"})  # fmt: skip
        self.write()

    def end(self, row):
        self.found["rows"][-1] = row
        self.write()

    def write(self):
        self.path.write_text(json.dumps(self.found, indent=1))


def main():
    torch.zeros(1, device=DEVICE)
    results = Results(Path(sys.argv[1]))
    limits = {"operator-level-cost-model": float(sys.argv[2]) if len(sys.argv) > 2 else 60.0,
              "operator-level-benchmark": float(sys.argv[3]) if len(sys.argv) > 3 else 120.0}  # fmt: skip
    stopped = results.found["header"]["stopped"] = {}
    for how, seconds in limits.items():
        until = time.monotonic() + seconds
        for name, make, inputs, batch, dtype, mode in cases():
            if results.has(name, batch, dtype, mode, how):
                continue
            if time.monotonic() > until:
                stopped[how] = f"after {seconds:g} s, at {name} {mode} {dtype} batch {batch}"
                break
            results.begin(name, batch, dtype, mode, how)
            row = estimated(name, make, inputs, batch, dtype, mode, how)
            results.end(row)
            print(how, name, mode, dtype, batch, row.get("as_shipped_s"), row.get("error", ""), flush=True)
            if how == "operator-level-benchmark":
                gc.collect()
                torch.cuda.empty_cache()
    results.write()


if __name__ == "__main__":
    main()
