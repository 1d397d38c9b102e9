"""What is asked of Slurm for every cell, checked before anything is submitted."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from rooflight.errors import BadInput

MOST_PARALLEL = 8
TIME = "60"
WARNED_S = 30
"""So long before a task is stopped it is told, or up to a minute longer."""
_SHORTEST = 2
"""Minutes: in less, that would be before it has begun."""
_OURS = {
    "array": "every cell is a task",
    "job-name": "jobs are found again by it",
    "output": "logs are kept in the study's folder",
    "error": "logs are kept in the study's folder",
    "open-mode": "a requeued task goes on with its log",
    "requeue": "cells are always requeued",
    "no-requeue": "cells are always requeued",
    "signal": "it is how a task learns that its time is over",
    "nodes": "a cell runs on one node",
    "ntasks": "a cell is one task",
    "ntasks-per-node": "a cell is one task",
    "wrap": "what runs is rooflight's own",
}
"""What `--slurm` may not change, and why."""
NAMED = ("partition", "gres", "time", "account", "qos", "constraint", "nodelist")
UNSAID: dict[str, Any] = {**dict.fromkeys((*NAMED, "max_parallel", "python")), "slurm": (), "setup": ()}
"""A command line without any of them."""
_OF_SBATCH = (
    "account acctg-freq batch begin bell burst-buffer bb bbf bc bcast chdir cluster-constraint clusters comment "
    "constraint container container-id contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task "
    "deadline delay-boot dependency distribution exclude exclusive export export-file extra extra-node-info "
    "get-user-env gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint hold "
    "ignore-pbs input kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu "
    "mincpus network nice no-kill nodefile nodelist ntasks-per-core ntasks-per-gpu ntasks-per-socket overcommit "
    "oversubscribe parsable partition power prefer priority profile propagate qos quiet reboot reservation "
    "resv-ports segment sockets-per-node spread-job stepmgr switches test-only thread-spec threads-per-core time "
    "time-min tmp tres-bind tres-per-task uid use-min-nodes verbose wait wait-all-nodes wckey"
).split()
"""A cluster may add others: only what looks like a slip of one of these is refused."""
_SLIP = 0.85
_GPU_COUNTS = ("gpus", "gpus-per-node", "gpus-per-task")
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `--launcher slurm`; what is `None` is left to the cluster."""

    partition: str | None = None
    gres: str | None = None
    time: str = TIME
    """For one cell, as Slurm writes it."""
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodelist: str | None = None
    max_parallel: int = MOST_PARALLEL
    more: dict[str, str | bool] = {}
    """Any other option of sbatch, without its dashes; `True`: it has no value."""
    setup: tuple[str, ...] = ()
    """Shell commands before Python is started, such as `module load cuda`."""
    python: str | None = None
    """The command that starts Python on a node; `None`: this Python."""

    def __post_init__(self) -> None:
        if self.max_parallel < 1:
            raise BadInput("out-of-range", f"--max-parallel must be at least 1, got {self.max_parallel}")
        texts = {f"--{name}": getattr(self, name) for name in NAMED}
        texts |= {f"--slurm {name}": value for name, value in self.more.items()}
        texts |= {"--setup": "".join(self.setup), "--python": self.python}
        for name, text in texts.items():
            if isinstance(text, str) and any(ord(letter) < 32 for letter in text):
                raise BadInput("bad-setting", f"{name}: {text!r} is more than one line")
            if text == "" and name != "--setup":
                raise BadInput("missing-value", f"{name} has no value")
        minutes(self.time)

    def arguments(self) -> list[str]:
        """The same options on a command line."""
        line: list[str] = []
        for name in NAMED:
            value = getattr(self, name)
            line += [f"--{name}", value] if value not in (None, TIME if name == "time" else None) else []
        line += ["--max-parallel", str(self.max_parallel)] if self.max_parallel != MOST_PARALLEL else []
        for name, value in self.more.items():
            line += ["--slurm", name if value is True else f"{name}={value}"]
        for command in self.setup:
            line += ["--setup", command]
        line += ["--python", self.python] if self.python is not None else []
        return line

    def command(self, folder: object) -> str:
        """How to come back to a study."""
        return shlex.join(["rooflight", "study", str(folder), "--launcher", "slurm", *self.arguments()])


def meant(name: str) -> str | None:
    """The option that a misspelt one looks like; `None`: it is one, or it may be one of the cluster's own."""
    known = [*NAMED, *_OF_SBATCH, *_OURS, "max-parallel", "setup", "python"]
    near = difflib.get_close_matches(name, known, n=1, cutoff=_SLIP)
    return near[0] if near and name not in known else None


def asked(options: Mapping[str, Any]) -> SlurmOptions:
    """What the command line asks for; `--slurm KEY=VALUE` as a list of texts. What is absent is not asked for."""
    options = {**UNSAID, **options}
    more: dict[str, str | bool] = {}
    for text in options["slurm"]:
        key, equals, value = text.partition("=")
        name = key.strip().lstrip("-").replace("_", "-")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise BadInput(
                "bad-setting", f"--slurm wants an option of sbatch such as mem=32G or exclusive, got {text!r}"
            )
        if name in _OURS:
            raise BadInput("slurm-option-reserved", f"--slurm {name} is not yours to set: {_OURS[name]}")
        if name in NAMED:
            raise BadInput("slurm-option-reserved", f"--slurm {name}: give it as --{name}")
        if (near := meant(name)) is not None:
            raise BadInput("unknown-slurm-option", f"--slurm {name}: sbatch has no such option: did you mean {near}?")
        more[name] = value if equals else True
    named = {name: options[name] for name in (*NAMED, "python") if options[name] is not None}
    if options["max_parallel"] is not None:
        named["max_parallel"] = options["max_parallel"]
    return SlurmOptions(**named, setup=tuple(options["setup"]), more=more)


def with_gpus(options: SlurmOptions, gpus: int) -> SlurmOptions:
    """The same, with at least so many GPUs wherever GPUs are asked for; more are left as they were written."""
    if gpus == 1:
        return options
    gres = options.gres and ",".join(
        _at_least(part, gpus) if re.match(r"gpu(?![a-z])", part) else part for part in options.gres.split(",")
    )
    more = {name: _at_least(str(value), gpus) if name in _GPU_COUNTS else value for name, value in options.more.items()}
    return replace(options, gres=gres, more=more)


def _at_least(text: str, gpus: int) -> str:
    """`gpu`, `gpu:2`, `gpu:v100:1`, `v100:1` or `1`, some with sockets behind, `gpu:1(S:0)`."""
    parsed = re.fullmatch(r"(.*?)(?:(?:^|:)(\d+))?(\(.*\))?", text)
    if parsed is None:
        return text
    name, count, sockets = parsed.groups()
    return f"{name}{':' if name else ''}{max(int(count or 1), gpus)}{sockets or ''}"


def minutes(time: str) -> int:
    """Of a time as Slurm writes it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; begun ones count."""
    parsed = _TIME.fullmatch(time)
    if parsed is None:
        raise BadInput(
            "not-a-duration",
            f"--time wants minutes, hours:minutes:seconds or days-hours, as 90, 1:30:00 or 1-12, got {time!r}",
        )
    days, *rest = parsed.groups()
    parts = [int(part) for part in rest if part is not None]
    of_hours = days is not None or len(parts) == 3
    seconds = sum(part * unit for part, unit in zip(parts, (3600, 60, 1) if of_hours else (60, 1), strict=False))
    needed = -(-(int(days or 0) * 86_400 + seconds) // 60)
    if needed < _SHORTEST:
        raise BadInput("out-of-range", f"--time {time} is too short: a cell needs at least {_SHORTEST} minutes")
    return needed
