"""A table's own rows, as they look for each other: which are of one run, and which add up to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rooflight.analysis.claims.claim import Amount, Answer, CannotTell, Claim
from rooflight.analysis.claims.ledger_query import ANY_BATCH, find_device
from rooflight.analysis.claims.model_parts import same_model

COUNTED = ("executed_flops", "cuda_flops")
TIMES = ("wall_time", "time", "gpu_busy", "kernel_time")
_RUN = (*COUNTED, *TIMES, "dram_bytes", "gpu_memory_bytes", "performance", "traffic", "peak_allocated_bytes",
        "peak_reserved_bytes", "tensor_flops", "workspace_bytes")  # fmt: skip
"""Of a run on a device: another device's does not stand for it."""
_OF_DEVICES = ("peak", "bandwidth", "ridge")
_TOTAL = frozenset({"", "total", "model", "sum", "all"})
_FORWARD = ("forward", "inference")


@dataclass(frozen=True)
class Ingredient:
    """A row that another one follows from, and from where to where its value may lie."""

    claim: Claim
    amount: Amount

    @property
    def value(self) -> Fraction:
        return self.amount.value

    @property
    def ends(self) -> tuple[Fraction, Fraction]:
        """The least and the most that its digits stand for."""
        low, high = self.amount.low, self.amount.high
        return (self.value if low is None else low), (self.value if high is None else high)

    def __str__(self) -> str:
        return f"{self.claim.value} (row {self.claim.row})"


def is_total(claim: Claim) -> bool:
    return claim.layer.lower().strip() in _TOTAL or same_model(claim.layer, claim.model)


def _card(text: str) -> str:
    """One name for all spellings of a device."""
    try:
        count, device = find_device(text)
    except CannotTell:
        return " ".join(text.lower().split())
    return f"{count}x {device.name}"


@dataclass(frozen=True)
class ClaimTable:
    """The rows of a table."""

    claims: Sequence[Claim]
    model: str
    """What a row without one is of ..."""
    batch: int | None
    """... and its batch."""

    def find_all(self, names: Iterable[str], like: Claim, *, any_step: bool = False) -> list[Ingredient]:
        """The rows of these quantities that are of the same thing: for each name, in this order, the best."""
        return list(self._found(tuple(names), like, any_step))

    def _found(self, names: tuple[str, ...], like: Claim, any_step: bool) -> Iterator[Ingredient]:
        for name in names:
            fitting = [
                (score, -claim.row, Ingredient(claim, claim.amount))
                for claim in self.claims
                if claim.row != like.row and claim.name == name and claim.amount is not None
                if (score := self._fits(claim, like, name, any_step=any_step)) is not None
            ]
            if fitting:
                yield max(fitting, key=lambda fit: fit[:2])[2]  # the first of the best

    def find(self, names: Iterable[str], like: Claim) -> Ingredient | None:
        """The row of one of these quantities that is of the same thing; the first name that has one."""
        return next(iter(self.find_all(names, like)), None)

    def _fits(
        self, row: Claim, like: Claim, name: str, *, layer: bool = True, batch: bool = True, any_step: bool = False
    ) -> int | None:
        """How well a row is of the same thing; `None` where it is of another. What a row leaves open fits anything."""
        same = row.layer.lower().strip() == like.layer.lower().strip() or (is_total(row) and is_total(like))
        if layer and not same:
            return None
        models = [claim.model or self.model for claim in (row, like)]
        if all(models) and not same_model(*models) and name not in _OF_DEVICES:
            return None
        ours, theirs = (_card(claim.device) if claim.device else "" for claim in (row, like))
        if (ours and theirs and ours != theirs) or (name in _RUN and bool(ours) != bool(theirs)):
            return None
        pairs = [(row.precision, like.precision)]
        if not any_step and name not in (*_OF_DEVICES, *ANY_BATCH):
            steps = ("inference" if claim.step in _FORWARD else claim.step or "" for claim in (row, like))
            pairs.append((next(steps), next(steps)))
        if batch and name not in (*_OF_DEVICES, *ANY_BATCH):
            pairs.append((self.batch_of(row), self.batch_of(like)))
        if any(given and asked and given != asked for given, asked in pairs):
            return None
        return sum(bool(given and asked) for given, asked in (*pairs, (row.model, like.model), (ours, theirs)))

    def batch_of(self, claim: Claim) -> str:
        """That a row is of, said or not; empty where nothing tells."""
        return "1" if claim.per_sample else str(claim.batch or self.batch or "")

    def peaks(self, like: Claim) -> list[Ingredient]:
        """The rows of a peak that may be the one a row was computed with."""
        card = _card(like.device) if like.device else ""
        return [
            Ingredient(claim, claim.amount)
            for claim in self.claims
            if claim.name == "peak" and claim.amount is not None and claim.amount.value
            if not card or not claim.device or _card(claim.device) == card
            if not like.precision or claim.precision in ("", like.precision)
        ]

    def layers_of(self, total: Claim) -> list[Claim]:
        """Rows of single layers that a total is the sum of."""
        return [
            claim
            for claim in self.claims
            if claim.row != total.row
            and claim.name == total.name
            and claim.step == total.step
            and isinstance(claim.stated, Amount)
            and not is_total(claim)
            and self._fits(claim, total, total.name, layer=False, batch=False) is not None
        ]

    def sum_of_rows(self, total: Claim) -> Answer | None:
        """Of a total: its rows added up, each at the total's batch, between the sums of what their digits stand for."""
        rows = self.layers_of(total) if is_total(total) and total.name in SUMMED else []
        parts = [
            (Ingredient(claim, claim.amount), batches_between(claim, total))
            for claim in rows
            if claim.amount is not None
        ]
        if len(rows) < 2:
            return None
        value = sum((row.value * batches for row, batches in parts), Fraction(0))
        low, high = (sum((row.ends[side] * batches for row, batches in parts), Fraction(0)) for side in (0, 1))
        times = {batches_between(claim, total) for claim in rows}
        factor = f"{times.pop()} × " if len(times) == 1 and times != {1} else ""
        how = f"{factor}the sum of {len(rows)} rows"
        return Answer(value, how, "the table", low, high, rows=tuple(claim.row for claim in rows))


SUMMED = ("flops", "macs", "ops", "params", "trainable_params", "param_bytes", "bytes", "output_bytes", "other_flops",
          "dram_bytes", "executed_flops", "cuda_flops", "tensor_flops", "kernel_time")  # fmt: skip
_PER_BATCH = ("flops", "macs", "ops", "output_bytes")


def batches_between(row: Claim, total: Claim) -> Fraction:
    """By what a row is multiplied to be at the batch of the total."""
    below, above = (1 if claim.per_sample else claim.batch for claim in (row, total))
    if row.name not in _PER_BATCH or below is None or above is None:
        return Fraction(1)
    return Fraction(above, below)


WORKSPACE_SIGN = {"op_allocated_bytes": 1, "self_growth_bytes": -1}
"""Quantities that are the output and the workspace of an op, together or one less the other."""
