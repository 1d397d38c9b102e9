"""rooflight beside other tools on the same models, in one run: time, memory, and error against known counts.

    python benchmarks/estimate.py            everything, printed
    python benchmarks/estimate.py --write    the same, and docs/benchmarks.md written anew, but for "Peak memory"
    python benchmarks/estimate.py --quick    ResNet-50 once: does the script still work
    python benchmarks/estimate.py --save FILE, --load FILE    keep what was measured; show it again, measuring nothing

It runs in an environment that has the other tools (`make bench` makes one); a tool that is missing is listed as such.
Every measurement is a fresh process; the tools take turns, several rounds of them, and the best time of each counts.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from peers.cases import BACKWARD, CASES, FORWARD, GROWTH, STEP
from peers.sections import BENCHMARKS, memory_section
from peers.tables import SLOW_S, Job, Results, Run, document
from peers.tools import FORWARD_PEERS, TOOLS

HERE = Path(__file__).parent
TIMEOUT_S = 600
TOO_BIG_FOR_REAL_WEIGHTS = {"llama-forward"}


def plan(*, quick: bool) -> list[list[Job]]:
    """The jobs, in groups whose members take turns."""
    groups = []
    for case in FORWARD:
        kinds = ("meta",) if case.key in TOO_BIG_FOR_REAL_WEIGHTS else ("meta", "cpu")
        peers = [Job(tool, case.key, kind) for tool in FORWARD_PEERS for kind in kinds]
        groups.append([Job("rooflight", case.key, "meta"), *peers])
    groups += [[Job(tool, case.key, "meta") for tool in ("rooflight", "flop-counter-mode")] for case in BACKWARD]
    for case in STEP:
        peers = [Job("mem-tracker", case.key, kind) for kind in ("meta", "fake")]
        if case.peak_bytes is not None:  # only where there is a peak to be right about
            peers.append(Job("mem-tracker-cuda", case.key, "meta"))
        groups.append([Job("rooflight", case.key, "meta"), *peers])
    groups.append([Job("rooflight", case.key, "meta") for case in GROWTH])
    if quick:
        return [group for group in groups if CASES[group[0].case].model == "resnet50"]
    return groups


def measure(groups: Sequence[Sequence[Job]], *, rounds: int) -> Results:
    """The best of some rounds for every job; a job that failed or was slow is not asked again."""
    results: Results = {}
    for group in groups:
        for number in range(rounds):
            for job in group:
                best = results.get(job)
                if best is not None and (best.failed or best.time_s > SLOW_S):
                    continue
                run = measure_once(job)
                print(f"round {number + 1}: {job.tool} {job.case} {job.tensors}: {run.in_words()}", file=sys.stderr)
                results[job] = run if best is None else best.better(run)
    return results


def measure_once(job: Job) -> Run:
    package = TOOLS[job.tool].package
    if installed(package) is None:
        return Run(failed=f"{package} is not installed")
    command = [sys.executable, "-m", "peers.worker", job.tool, job.case, job.tensors]
    try:
        child = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Run(failed=f"not done after {TIMEOUT_S} s")
    if not child.stdout.strip():
        return Run(failed=f"the process ended without an answer (status {child.returncode})")
    return Run(**json.loads(child.stdout.splitlines()[-1]))


SPEED = {
    "resnet50-backward": "flop-counter-mode", "gpt2-backward": "flop-counter-mode", "llama-forward": "flop-counter-mode",
    "llama-step": "mem-tracker",
}  # fmt: skip
"""The tool that rooflight takes turns with, by case."""


def speed_figures() -> dict[str, float]:
    """Return rooflight's time over that of torch's own tool, both on meta tensors and in this run."""
    pairs = [[Job("rooflight", case, "meta"), Job(peer, case, "meta")] for case, peer in SPEED.items()]
    results = measure(pairs, rounds=3)
    failed = [f"{job.tool} on {job.case}: {run.failed}" for job, run in results.items() if run.failed]
    if failed:
        raise RuntimeError("; ".join(failed))
    return {f"{own.case}_beside_{peer.tool}": results[own].time_s / results[peer].time_s for own, peer in pairs}


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def conditions(rounds: int) -> str:
    packages = dict.fromkeys(tool.package for tool in TOOLS.values())
    versions = ", ".join(f"{package} {installed(package) or '(not installed)'}" for package in packages)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = (
        f"; load average before the run, from other work, {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    )
    python = ".".join(map(str, sys.version_info[:3]))
    return f"Python {python}, {versions}; {cores} CPU cores, no GPU{load}; rounds: {rounds}."


def saved(stated: str, results: Results) -> str:
    rows = [{"job": job, "run": dataclasses.asdict(run)} for job, run in results.items()]
    return json.dumps({"conditions": stated, "results": rows}, indent=1)


def loaded(path: Path) -> tuple[str, Results]:
    kept = json.loads(path.read_text(encoding="utf-8"))
    return kept["conditions"], {Job(*row["job"]): Run(**row["run"]) for row in kept["results"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--quick", action="store_true", help="ResNet-50 only, one round")
    parser.add_argument("--rounds", type=int, default=3, help="how often the tools take turns (default 3)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the measurements as JSON")
    parser.add_argument("--load", type=Path, metavar="FILE", help="show kept measurements instead of making new ones")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--quick measures too little for docs/benchmarks.md; leave --write out")
    if options.load:
        stated, results = loaded(options.load)
    else:
        rounds = 1 if options.quick else options.rounds
        stated = conditions(rounds)
        results = measure(plan(quick=options.quick), rounds=rounds)
    if options.save:
        options.save.write_text(saved(stated, results), encoding="utf-8")
    known = BENCHMARKS.read_text(encoding="utf-8") if BENCHMARKS.exists() else ""
    page = document(results, stated, memory_section(known))
    print(page)
    if options.write:
        BENCHMARKS.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
