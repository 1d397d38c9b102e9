"""A ledger as rows of a table ask it: of which part, which step, which batch, and whether it can say so at all.

A row may be of another batch than the ledger. Matrix work and what a layer gets and gives are proportional to the
batch, parameters do not depend on it. What is neither is not scaled: it is traced anew, or left unanswered.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from msgspec import structs

from rooflight import summary
from rooflight.analysis.claims.claim import CannotTell, Claim, StepName
from rooflight.analysis.claims.model_parts import ModelPart, part_of, same_model
from rooflight.analysis.claims.retracing import at_batch
from rooflight.analysis.finding import Number
from rooflight.analysis.verdicts import Judge
from rooflight.errors import BadInput
from rooflight.hardware import devices
from rooflight.hardware.device import Device
from rooflight.ledger import DTYPE_BYTES, Ledger, Module, Op, Totals, Value, total
from rooflight.models import builtin_names
from rooflight.spec import FIELDS, StepSpec, Verb, inputs_of, is_live
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.sums import OpGroup, Sums

ANY_BATCH = ("params", "trainable_params", "param_bytes", "model_bytes", "layers", "gradient_bytes", "optimizer_bytes",
              "batch", "output_size", "input_features", "share")  # fmt: skip
"""What does not depend on the batch."""
_ANY_STEP = (*ANY_BATCH, "output_shape", "output_elements", "output_bytes", "input_bytes", "weight_output_bytes",
             "input_size", "forward_backward_bytes", "total_size")  # fmt: skip
_ANY_PRECISION = ("flops", "macs", "ops", "other_flops", "share", "params", "trainable_params", "output_shape",
                  "output_size", "output_elements", "input_features", "layers", "batch")  # fmt: skip


_OF_RUNS = ("wall_time", "gpu_busy", "kernel_time", "time", "throughput", "tokens_per_s", "performance", "traffic",
            "executed_flops", "dram_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "mfu", "hfu")  # fmt: skip
"""What only a measurement tells."""


class LedgerBook:
    """A ledger, indexed once."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._predicted: dict[str, Judge] = {}

    @cached_property
    def measured(self) -> Measured:
        return Measured(self.ledger)

    @cached_property
    def is_measured(self) -> bool:
        return is_measured(self.ledger)

    @cached_property
    def roofs(self) -> Judge:
        """The measured step under the roofs of its own device."""
        return Judge(self.ledger)

    def on(self, device: Device) -> Judge:
        """The step as it is predicted there."""
        if device.name not in self._predicted:
            plain = structs.replace(self.ledger, kernels=(), measurements=())
            self._predicted[device.name] = Judge(plain, on=device)
        return self._predicted[device.name]

    @cached_property
    def device(self) -> Device | None:
        """That it was measured on, where the database has it."""
        return devices.recognise_name(self.ledger.header.device)

    @cached_property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES.get(self.ledger.header.dtype or "", 4)

    def command(self, verb: Verb = "estimate", *, metrics: str | None = None, **changed: Any) -> str:
        """What makes the ledger that is missing: of this very step but for what is `changed`."""
        header = self.ledger.header
        spec = StepSpec.of(header)
        if "model" in changed:  # the settings of one model are nothing to another
            spec = StepSpec(
                model=header.model, batch=header.batch, step=spec.step, dtype=spec.dtype, autocast=spec.autocast
            )
        if changed.get("step", spec.step) != spec.step:
            others = [field for field in FIELDS.values() if field.step not in (None, changed["step"])]
            changed |= {field.name: field.default for field in others}
        target = header.target if verb == "estimate" and header.target != "cuda" else None
        if is_live(header) and "model" not in changed:
            changed.pop("batch", None)  # that of the inputs
            called, counted = inputs_of(header), None if metrics is None else [metrics]
            return structs.replace(spec, **changed).python_call(verb, inputs=called, target=target, metrics=counted)
        return structs.replace(spec, **changed).command(verb, target=target, metrics=metrics, output="run.json")


def whole(value: Number) -> Number:
    """A fraction that is a whole number, as one."""
    return int(value) if isinstance(value, Fraction) and value.denominator == 1 else value


@dataclass(frozen=True)
class ClaimScope:
    """What a row is about, and what the ledger has of it. `batch` is the row's own, or the ledger's."""

    book: LedgerBook
    name: str
    """Of the quantity."""
    part: ModelPart
    step: StepName | None
    batch: int | None
    metric: str = ""

    @property
    def ledger(self) -> Ledger:
        return self.book.ledger

    @property
    def scale(self) -> Fraction:
        """The row's batch by the ledger's."""
        traced = self.ledger.header.batch
        return Fraction(self.batch, traced) if self.batch is not None and traced is not None else Fraction(1)

    def scaled(self, value: Number) -> Number:
        """What is proportional to the batch, at the row's."""
        return whole(value * self.scale)

    def at(self, batch: int) -> ClaimScope:
        return replace(self, batch=batch)

    def of(self, name: str) -> ClaimScope:
        """The same for another quantity."""
        return replace(self, name=name)

    def whole(self) -> ClaimScope:
        return replace(self, part=part_of(self.ledger, ""))

    def traced_anew(self) -> ClaimScope:
        """The same at the row's batch; raises `CannotTell` where the model cannot be built again."""
        if self.scale == 1 or self.batch is None:
            return self
        ledger = at_batch(self.ledger, self.batch)
        if ledger is None:
            raise CannotTell(
                f"{self.name} is not proportional to the batch: the ledger is of {self.ledger.header.batch}, the row "
                f"of {self.batch}",
                self.book.command(batch=self.batch),
            )
        return replace(self, book=LedgerBook(ledger), part=part_of(ledger, self.part.name))

    # By formula: of its ops and modules.

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """Of the part, in the phases that the row is about."""
        phase = "forward" if self.step == "inference" else self.step
        return tuple(op for op in self.part.ops if phase in (None, "training", op.phase))

    @cached_property
    def matrix_ops(self) -> list[Op]:
        return [op for op in self.ops if op.cost is not None and op.cost.macs]

    @cached_property
    def totals(self) -> Totals:
        """Of its ops, at the ledger's batch."""
        return total(self.ops)

    @property
    def macs(self) -> Number:
        return self.scaled(self.totals.macs)

    @property
    def flops(self) -> Number:
        return 2 * self.macs

    @property
    def every_output(self) -> int:
        """Bytes of what all ops give, functional ones too; what is changed in place is no new output."""
        return summary.every_output_bytes(self.ledger)

    def of_modules(self, field: str) -> int:
        """A figure of the part's modules, added up."""
        return sum(getattr(module, field) for module in self.part.modules)

    @property
    def module(self) -> Module:
        """The one layer that the row is of, or the model; raises `CannotTell` where it gives nothing."""
        module = self.part.module
        if module is None and self.part.kind == "total":
            module = next((module for module in self.ledger.modules if not module.path), None)
        if module is None or not module.outputs:
            raise CannotTell(f"{self.part.name} is no single layer that gives something", "name one layer by its path")
        return module

    @property
    def output_bytes(self) -> Number:
        return self.scaled(self.module.output_bytes)

    @property
    def input_bytes(self) -> Number:
        return self.scaled(sum(map(math.prod, self.module.inputs[:1])) * self.book.dtype_bytes)

    # As it was measured.

    @property
    def is_step(self) -> bool:
        return self.part.kind == "total" and self.step in (None, "training", "inference")

    @property
    def sums(self) -> Sums:
        measured = self.book.measured
        if self.is_step:
            return measured.total
        wanted = frozenset(op.index for op in self.ops)
        inside = tuple(fact for fact in measured.facts if fact.ops and wanted.issuperset(fact.ops))
        return measured.sums(OpGroup(tuple(sorted(wanted)), inside))

    def measured(self, name: str) -> Value | None:
        """By its name in the ledger: of the range around the step where there is one, else the sum of the ops."""
        step = self.book.measured.step
        if self.is_step and name in step:
            return step[name]
        sums = self.sums
        value = getattr(sums, name, None) if (summed := sums.get(name)) is None else summed
        return None if value is None else Value(value, "sum over all ops" if self.is_step else "sum over its ops")


def scope_of(book: LedgerBook, claim: Claim, name: str, *, metric: str = "", per_sample: bool = False) -> ClaimScope:
    """What the row is about; raises `CannotTell` where this ledger is of something else."""
    header = book.ledger.header
    check_model(book, claim.model)
    part = part_of(book.ledger, claim.layer)
    batch = 1 if per_sample else claim.batch if claim.batch is not None else header.batch
    needs_training = name not in _ANY_STEP and claim.step in ("training", "backward", "optimizer")
    if needs_training and header.step not in ("train", None):
        raise CannotTell(f"the ledger is of an inference, the row of {claim.step}", book.command(step="train"))
    if claim.precision and name not in _ANY_PRECISION and header.dtype is not None:
        dtype = header.autocast or header.dtype
        if claim.precision not in (dtype, "tf32" if dtype == "fp32" else dtype):
            raise CannotTell(
                f"the ledger is in {dtype}, the row in {claim.precision}",
                book.command("measure" if name in _OF_RUNS else "estimate", dtype=claim.precision, autocast=None)
                if claim.precision in FIELDS["dtype"].choices
                else f"a ledger in {claim.precision}",
            )
    return ClaimScope(book, name, part, claim.step, batch, metric)


def check_model(book: LedgerBook, model: str) -> None:
    traced = book.ledger.header.model
    if model and not same_model(model, traced):
        name = model if ":" in model else next((name for name in builtin_names() if same_model(model, name)), "")
        needs = book.command(model=name) if name else f"a ledger of {model}"
        raise CannotTell(f"the ledger is of {traced}, the row of {model}", needs)


def device_of(claim: Claim) -> Device | None:
    return find_device(claim.device)[1] if claim.device else None


_VENDOR = re.compile(r"^(?:nvidia\s+|amd\s+|instinct\s+|tesla\s+|geforce\s+)+")
_MEANT = {"a100": "a100-sxm-40"}
"""A name that several cards have, and the one that tables mean by it: the A100 of most papers has 40 GB, 1,555 GB/s."""


def other_cards(text: str) -> tuple[Device, ...]:
    """Those besides the one of `find_device` that a name alone may mean: `A100` is any of them."""
    count, device = find_device(text)
    plain = text.lower().split()[-1] if count > 1 else _VENDOR.sub("", text.lower()).strip()
    if plain in devices.names():
        return ()
    alike = (other for other in devices.known() if other.name.startswith(f"{plain}-") and other is not device)
    return tuple(other for other in alike if not other.name.endswith("-board"))


_NUMBERS = {"single": 1, "one": 1, "double": 2, "two": 2, "dual": 2, "1x": 1, "2x": 2, "4x": 4, "8x": 8, "2": 2}


def find_device(text: str) -> tuple[int, Device]:
    """`2x K80` is two of them; raises `CannotTell` for a device that is not in the database."""
    words = text.lower().replace("-gpu", "").replace(" gpu", "").split()
    count = 1
    if len(words) > 1 and words[0] in _NUMBERS:
        count, words = _NUMBERS[words[0]], words[1:]
    elif len(words) > 1 and words[-1] in _NUMBERS:
        count, words = _NUMBERS[words[-1]], words[:-1]
    if any(mark in text for mark in ("/", "\\", ".toml")):
        raise CannotTell(f"{text!r} is no device: a table names one of `rooflight list devices`, and no files")
    try:
        name = " ".join(words)
        return count, devices.find(_MEANT.get(name.lower(), name))
    except BadInput as error:
        raise CannotTell(error.on_command_line) from None
