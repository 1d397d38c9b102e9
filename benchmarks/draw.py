"""Draw steps at random that stand nowhere in this repository: what `h200/drawn_steps.py` then measures.

usage: draw.py PLAN.json [--seed N] [--count N]     (needs timm, torchvision and transformers; half an hour)

A candidate is a model of timm, torchvision or transformers (a third each) whose name occurs in no source, test, page or
result of this repository, but for the lists of what traces at all; with a batch of 1 to 64, inference or training, bf16 or
fp32, and for text a sequence of 32 to 1,024 tokens. A candidate leaves the plan only if rooflight cannot trace it, or
if it is too large for a minute on one GPU; never for its prediction, which is not made here. Every second candidate is
sealed: only `sealed.py` reads its row.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import random
import re
import signal
from importlib.metadata import version
from pathlib import Path
from typing import Any

from coverage import hf_specs, timm_specs, torchvision_specs

ROOT = Path(__file__).parents[1]
SEED = 38
CANDIDATES = 200
MOST_PARAMETERS = 4e9
MOST_FLOPS = {"bf16": 60e12, "fp32": 15e12}
SEQUENCES = (32, 64, 128, 256, 512, 1024)
LARGEST_BATCH = 64
TRACE_LIMIT_S = 90
_TRACED_ONLY = ("coverage",)
"""Pages and results whose names begin so list models that were traced, not timed."""


def names_in_the_repository() -> set[str]:
    """Every word of the sources, tests, pages and results, and the models of published tables."""
    words: set[str] = set()
    for folder in ("src", "tests", "benchmarks", "docs", "examples", "studies"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix not in (".py", ".toml", ".md", ".json", ".jsonl", ".csv", ".ipynb", ".gz"):
                continue
            if file.name.startswith(_TRACED_ONLY) or file.name.startswith("draw_"):
                continue
            data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            words.update(re.findall(r"[A-Za-z0-9_]+", data.decode(errors="ignore")))
    return words


def universe() -> dict[str, list[str]]:
    """Models by zoo that the repository never names."""
    words = names_in_the_repository()
    zoos = {"timm": timm_specs(True), "torchvision": torchvision_specs(True), "hf": hf_specs(False)}
    return {
        zoo: [
            spec for spec in specs
            if (name := spec.partition(":")[2].partition(".")[0]) not in words
            and name.replace("-", "_") not in words
            and not name.startswith("quantized_")  # the network in floats, which has another name too
        ]
        for zoo, specs in zoos.items()
    }  # fmt: skip


def drawn(rng: random.Random, models: dict[str, list[str]]) -> dict[str, Any]:
    """One candidate; its model is taken out of `models`."""
    zoo = rng.choice(sorted(zoo for zoo, names in models.items() if names))
    return {
        "model": models[zoo].pop(rng.randrange(len(models[zoo]))),
        "step": rng.choice(("infer", "train")),
        "dtype": rng.choice(("bf16", "fp32")),
        "batch": round(LARGEST_BATCH ** rng.random()),
        "seq": rng.choice(SEQUENCES) if zoo == "hf" else None,
    }


def traced(candidate: dict[str, Any]) -> dict[str, Any] | str:
    """The candidate, without the sequence where its model takes none; or why it leaves the plan."""
    import rooflight
    from rooflight.errors import RooflightError
    from rooflight.ledger import total
    from rooflight.summary import params

    for seq in dict.fromkeys((candidate["seq"], None)):
        options = {**candidate, "seq": seq}
        try:
            ledger = rooflight.estimate(**options)
        except RooflightError as error:
            failure = f"not traced: {str(error)[:150]}"
            continue
        parameters, flops = params(ledger), total(ledger.ops).flops
        if parameters > MOST_PARAMETERS or flops > MOST_FLOPS[candidate["dtype"]]:
            return f"too large: {parameters:.2g} parameters, {flops:.2g} FLOPs"
        return options
    return failure


def _traced_in_time(candidate: dict[str, Any]) -> dict[str, Any] | str:
    signal.alarm(TRACE_LIMIT_S)  # ends the process
    try:
        return traced(candidate)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:150]
    finally:
        signal.alarm(0)


def _child(candidate: dict[str, Any], pipe: Any) -> None:
    pipe.send(_traced_in_time(candidate))


def outcome(candidate: dict[str, Any]) -> dict[str, Any] | str:
    """`traced` in a process of its own, which may take `TRACE_LIMIT_S`."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(candidate, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return f"not traced in {TRACE_LIMIT_S} s"
    finally:
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=CANDIDATES)
    arguments = parser.parse_args()
    rng, models = random.Random(arguments.seed), universe()
    head = {
        "seed": arguments.seed,
        "models": {zoo: len(names) for zoo, names in models.items()},
        "versions": {name: version(name) for name in ("timm", "torchvision", "transformers", "torch")},
    }
    print(head, flush=True)
    candidates: list[dict[str, Any]] = []
    left: dict[str, str] = {}
    while len(candidates) < arguments.count and any(models.values()):
        candidate = drawn(rng, models)
        result = outcome(candidate)
        if isinstance(result, str):
            left[candidate["model"]] = result
        else:
            candidates.append({**result, "sealed": len(candidates) % 2 == 1})
        print(len(candidates), len(left), flush=True)
        arguments.plan.write_text(json.dumps({**head, "candidates": candidates, "left": left}, indent=1) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
