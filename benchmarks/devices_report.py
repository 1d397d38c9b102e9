"""Writes docs/devices.md from the files in src/rooflight/hardware/specs.

usage: devices_report.py [-o PAGE]

Every number comes from those files; the sentences around the numbers are ours.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from rooflight.hardware.device import Device, figures
from rooflight.hardware.devices import known
from rooflight.reporting.sections.device_tables import CONVENTIONS, devices_table
from rooflight.reporting.table import Column, Table
from rooflight.reporting.writers.markdown import table_markdown

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "devices.md"

WEAK = "assumed, or from general knowledge"
KINDS = {
    "by analogy": ("as fp16", "as fp64", "as the ", "of the L40"),
    "a vendor's documentation, or a driver": (
        "rocm.docs.amd.com", "gpuopen.com", "reported by the driver", "that the driver gives it", "deviceQuery",
        "docs.nvidia.com", "closed/NVIDIA/systems", "closed/AMD/systems",
    ),
    "a vendor's figure, as quoted elsewhere": ("as quoted",),
    "a page or paper that is not the vendor's": ("third party", "third parties", "arXiv"),
    "a vendor's datasheet": ("datasheet",),
}  # fmt: skip
"""What a source is worth, by words in it; the first that fits counts, and what is computed is told apart before."""

EXAMPLE = """\
name = "mygpu"
title = "NVIDIA MyGPU 24 GB"
kind = "gpu"
vendor = "NVIDIA"
capability = 89                     # lets rooflight check peaks against SMs and clock
memory_bytes = { value = 25_769_803_776, source = "NVIDIA's datasheet, page 2", date = "2026-11-15" }
bandwidth_bytes_per_s = { value = 864e9, source = "NVIDIA's datasheet, page 2", date = "2026-11-15" }
sms = { value = 142, source = "NVIDIA's datasheet, page 1", date = "2026-11-15" }
gpus_per_node = { value = 4, source = "the manual of the server", date = "2026-11-16" }  # with --gpus; 8 where left out
clock_hz = { value = 2520e6, source = "nvidia-smi -q -d CLOCK", date = "2026-11-15" }
l2_bytes = { value = 96e6, source = "NVIDIA's datasheet, page 2", date = "2026-11-15" }

[core_flops_per_s]
fp32 = { value = 91.6e12, source = "NVIDIA's datasheet, page 2", date = "2026-11-15" }

[tensor_flops_per_s]
tf32 = { value = 183e12, source = "NVIDIA's datasheet, page 2, without sparsity", date = "2026-11-15" }
bf16 = { value = 362e12, source = "NVIDIA's datasheet, page 2, without sparsity", date = "2026-11-15" }

[links_bytes_per_s]
pcie = { value = 31.5e9, source = "PCI Express 4.0 x16, one direction", date = "2026-11-15" }
"""


def page(devices: tuple[Device, ...]) -> str:
    parts = [*head(devices), *sources(devices), *own(), *names(devices), *remarks(devices)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def head(devices: tuple[Device, ...]) -> list[str]:
    return [
        "<!-- Made by `python benchmarks/devices_report.py`. Do not edit: run it again. -->\n# Devices",
        f"rooflight knows {len(devices)} devices. `rooflight list devices` shows this table, `rooflight list devices h200` "
        "every value of one with its source and the day it was read, `--json` the same for programs. The files are in "
        "[src/rooflight/hardware/specs](../src/rooflight/hardware/specs).",
        table_markdown(devices_table(devices)),
        CONVENTIONS[0].upper() + CONVENTIONS[1:] + ". A peak belongs to a clock, and vendors do not always take the same "
        "one for all of them; the notes below say where. Vendors write GB for memory and mean 2^30 bytes: 141 GB are "
        "151,397,597,184 bytes, of which the driver keeps some. NVLink and PCI Express are links, not the memory's roof; "
        "they are counted in one direction.",
    ]  # fmt: skip


def kind_of(source: str) -> str:
    """What a value rests on."""
    if "general knowledge" in source or source.startswith("assumed"):
        return WEAK
    if source.startswith("computed"):
        return "computed from other values"
    for kind, words in KINDS.items():
        if any(word in source for word in words):
            return kind
    raise SystemExit(f"{source!r} says in no words that KINDS knows what it rests on")


def sources(devices: tuple[Device, ...]) -> list[str]:
    every = [(device, key, figure) for device in devices for key, figure in figures(device)]
    counts = Counter(kind_of(figure.source) for _, _, figure in every)
    rows = tuple((kind, count) for kind, count in counts.most_common())
    weak = [f"`{device.name}` {key}" for device, key, figure in every if kind_of(figure.source) == WEAK]
    return [
        "## Where the numbers come from",
        f"{len(every)} values, each with a source in its file. Datasheets as such were not at hand: where a page quotes "
        "one, the source names both, and does not claim that the datasheet was read.",
        table_markdown(Table("", (Column("source", right=False), Column("values")), rows)),
        "What is computed shows its arithmetic: SMs x lanes x 2 x clock for peaks, lanes x rate for links. By analogy: "
        "the same chip on another board, or one precision by another. No good source was found for: " + ", ".join(weak) + ".",
    ]  # fmt: skip


def own() -> list[str]:
    return [
        "## A device of your own",
        "Wherever a device is asked for, a file ending in `.toml` will do: `--on mygpu.toml`, "
        "`rooflight list devices mygpu.toml`. It needs what this one has, except `capability`, `l2_bytes` and the "
        "last two tables. Without `l2_bytes` a cache of 4 MB is assumed, and a note says so: a device with a larger one "
        "then comes out too slow where tensors would have stayed in it.",
        f"```toml\n{EXAMPLE}```",
        "The file is checked before it is used: a missing value, source or date, a key that does not exist, a bandwidth "
        "in GB/s, a clock in MHz, a peak in TFLOP/s or with sparsity, a base clock above the boost clock. Each is one "
        "line that says what to write instead.",
        "A few numbers do too, in place of a file: ``--on 'name=mygpu,memory=24GB,bandwidth=864GB/s,fp32=91.6T,fp16=183T,"
        "sms=142,clock=2.52GHz,cache=96MB,power=300W,capability=89'``. Memory, bandwidth and the fp32 peak are needed (or "
        "`sms`, `clock` and `capability`, from which that follows); `tf32`, `bf16`, `fp8`, `int8`, `fp64`, `vendor`, "
        "`nvlink` and `pcie` (in one direction) may be given. Every number has its unit. GB and MB of memory and cache are "
        "powers of 1,024, as data sheets mean them; peaks are dense, and of boards for games those with fp32 accumulation. "
        "What is not given is computed or assumed, and a note of every prediction says what. Parts with `=` that follow one "
        "another are one device: a name may stand before or after them (`--on 'a100,memory=...,bandwidth=...'`), and a `;` "
        "stands between two descriptions.",
    ]  # fmt: skip


def names(devices: tuple[Device, ...]) -> list[str]:
    columns = (Column("device", right=False), Column("also", right=False), Column("reported as", right=False))
    rows = [(device.name, ", ".join(device.aliases), ", ".join(device.recognised_as)) for device in devices]
    return [
        "## Names",
        "Names may be typed as people write them: `rtx4090`, `RTX 4090 24GB`, `4090`, `A100-40GB`, `a100 80gb`, `2080ti`, "
        "`rtx4070tisuper`, `Tesla V100` and `NVIDIA GeForce RTX 3090` are found; case, hyphens, the vendor's words and the "
        "order of the words do not matter. A board with another size of memory, a laptop's GPU and another maker's are not "
        "taken for it. A device in the machine is recognised by the whole name that the driver or torch reports. A processor counts "
        "as known only if the machine has all its cores; else its peaks are computed from /proc/cpuinfo, and its memory "
        "bandwidth is left to `rooflight calibrate`.",
        table_markdown(Table("", columns, tuple(rows))),
    ]  # fmt: skip


def remarks(devices: tuple[Device, ...]) -> list[str]:
    lines = [f"- `{device.name}`: {'; '.join(device.notes)}." for device in devices if device.notes]
    return ["## Notes", "\n".join(lines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    parser.parse_args().output.write_text(page(known()))


if __name__ == "__main__":
    main()
