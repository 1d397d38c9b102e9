"""What follows from a table's own rows: a quotient of two of them, a sum of many, a time from work and a peak."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from rooflight.analysis.claims.claim import Amount, Answer, Claim
from rooflight.analysis.claims.ledger_query import ANY_BATCH
from rooflight.analysis.claims.model_parts import same_model
from rooflight.analysis.finding import Finding

COUNTED = ("executed_flops", "cuda_flops")
TIMES = ("wall_time", "gpu_busy", "kernel_time", "time")
CALCULATED = Fraction(1, 10**6)
"""Quotients of a table's own rows may differ by so much of themselves."""
_RUN = (*COUNTED, *TIMES, "dram_bytes", "gpu_memory_bytes", "performance", "traffic", "peak_allocated_bytes",
        "peak_reserved_bytes", "tensor_flops")  # fmt: skip
"""Of a run on a device: another device's does not stand for it."""
_OF_DEVICES = ("peak", "bandwidth", "ridge")
_TOTAL = frozenset({"", "total", "model", "sum", "all"})


@dataclass(frozen=True)
class Ingredient:
    """A row that another one follows from."""

    claim: Claim
    value: Fraction
    corrected: bool = False

    def __str__(self) -> str:
        if self.corrected:
            return f"{float(self.value):,.12g} (what row {self.claim.row} should say)"
        return f"{self.claim.value} (row {self.claim.row})"


def is_total(claim: Claim) -> bool:
    return claim.layer.lower().strip() in _TOTAL or same_model(claim.layer, claim.model)


@dataclass(frozen=True)
class ClaimTable:
    """The rows of a table, as they look for each other."""

    claims: Sequence[Claim]
    model: str
    """What a row without one is of ..."""
    batch: int | None
    """... and its batch."""
    right: Mapping[int, Fraction] = field(default_factory=dict)
    """Values that stand for what rows state."""

    def ingredient(self, claim: Claim) -> Ingredient | None:
        if claim.named is None or claim.amount is None:
            return None
        return Ingredient(claim, self.right.get(claim.row, claim.amount.value), claim.row in self.right)

    def find(self, names: Iterable[str], like: Claim) -> Ingredient | None:
        """The row of one of these quantities that is of the same thing; the first name that has one."""
        for name in names:
            fitting = [
                (score, -claim.row, claim)
                for claim in self.claims
                if claim.row != like.row and claim.name == name and claim.amount is not None
                if (score := self._fits(claim, like, name)) is not None
            ]
            if fitting:
                return self.ingredient(max(fitting, key=lambda fit: fit[:2])[2])  # the first of the best
        return None

    def _fits(self, row: Claim, like: Claim, name: str, *, layer: bool = True, batch: bool = True) -> int | None:
        """How well a row is of the same thing; `None` where it is of another. What a row leaves open fits anything."""
        same = row.layer.lower().strip() == like.layer.lower().strip() or (is_total(row) and is_total(like))
        if layer and not same:
            return None
        models = [claim.model or self.model for claim in (row, like)]
        if all(models) and not same_model(*models) and name not in _OF_DEVICES:
            return None
        ours, theirs = (" ".join(claim.device.lower().split()) for claim in (row, like))
        if (ours and theirs and ours != theirs) or (name in _RUN and bool(ours) != bool(theirs)):
            return None
        pairs = [(row.precision, like.precision)]
        if batch and name not in (*_OF_DEVICES, *ANY_BATCH):
            pairs.append((self._batch(row), self._batch(like)))
        if any(given and asked and given != asked for given, asked in pairs):
            return None
        return sum(bool(given and asked) for given, asked in (*pairs, (row.model, like.model), (ours, theirs)))

    def _batch(self, claim: Claim) -> str:
        """That a row is of, said or not; empty where nothing tells."""
        return "1" if claim.per_sample else str(claim.batch or self.batch or "")

    def follows(self, claim: Claim) -> Answer | None:
        """What the row's quantity is by the others; `None` where they do not tell."""
        derive = _DERIVED.get(claim.name)
        derived = None if derive is None else derive(self, claim)
        return derived if derived is not None else self.sum_of_rows(claim)

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
        """Of a total: its rows added up, each at the total's batch."""
        rows = self.layers_of(total) if is_total(total) and total.name in SUMMED else []
        if len(rows) < 2:
            return None
        parts = ((self.ingredient(claim), batches_between(claim, total)) for claim in rows)
        value = sum((row.value * batches for row, batches in parts if row is not None), Fraction(0))
        times = {batches_between(claim, total) for claim in rows}
        factor = f"{times.pop()} × " if len(times) == 1 and times != {1} else ""
        how = f"{factor}the sum of {len(rows)} rows"
        return Answer(value, how, "the table", rows=tuple(claim.row for claim in rows))


SUMMED = ("flops", "macs", "ops", "params", "trainable_params", "param_bytes", "bytes", "output_bytes", "other_flops",
          "dram_bytes", "executed_flops", "cuda_flops", "tensor_flops", "kernel_time")  # fmt: skip
_PER_BATCH = ("flops", "macs", "ops", "output_bytes")


def batches_between(row: Claim, total: Claim) -> Fraction:
    """By what a row is multiplied to be at the batch of the total."""
    below, above = (1 if claim.per_sample else claim.batch for claim in (row, total))
    if row.name not in _PER_BATCH or below is None or above is None:
        return Fraction(1)
    return Fraction(above, below)


Derivation = Callable[[ClaimTable, Claim], Answer | None]


def _quotient(above: tuple[str, ...], below: tuple[str, ...]) -> Derivation:
    def derived(table: ClaimTable, claim: Claim) -> Answer | None:
        over, under = table.find(above, claim), table.find(below, claim)
        if over is None or under is None or not under.value:
            return None
        return _near(over.value / under.value, f"{over} / {under}", (over, under))

    return derived


def _near(value: Fraction, how: str, used: tuple[Ingredient, ...]) -> Answer:
    """Whoever divided may have had more digits than the table shows, or a calculator with fewer."""
    slack = abs(value) * CALCULATED
    rows = tuple(row.claim.row for row in used)
    return Answer(value, how, "the table", value - slack, value + slack, rows=rows)


WORKSPACE_SIGN = {"op_allocated_bytes": 1, "self_growth_bytes": -1}
"""Quantities that are the output and the workspace of an op, together or one less the other."""


def _with_workspace(table: ClaimTable, claim: Claim) -> Answer | None:
    output, workspace = table.find(("output_bytes",), claim), table.find(("workspace_bytes",), claim)
    if output is None or workspace is None:
        return None
    rows, sign = (output.claim.row, workspace.claim.row), WORKSPACE_SIGN[claim.name]
    how = f"output (row {rows[0]}) {'+' if sign > 0 else '-'} workspace (row {rows[1]})"
    return Answer(output.value + sign * workspace.value, how, "the table", rows=rows)


def _throughput(table: ClaimTable, claim: Claim) -> Answer | None:
    time = table.find(TIMES, claim)
    batch = claim.batch or (time.claim.batch if time is not None else None)
    if time is None or batch is None or not time.value:
        return None
    return _near(batch / time.value, f"batch {batch} / {time}", (time,))


def _at_peak(table: ClaimTable, claim: Claim) -> Answer | None:
    """Time = FLOPs / peak, as if every unit were always busy."""
    work = table.find((*COUNTED, "flops", "macs"), claim)
    peaks = (
        row
        for row in table.claims
        if row.name == "peak"
        and (not claim.device or row.device.lower() == claim.device.lower())
        and (not claim.precision or row.precision in ("", claim.precision))
    )
    peak = next(filter(None, map(table.ingredient, peaks)), None)
    if work is None or peak is None or not peak.value:
        return None
    how = f"{work} / {peak}"
    if not work.claim.counts_macs:
        return _near(work.value / peak.value, how, (work, peak))
    right = _near(2 * work.value / peak.value, f"2 × {how}", (work, peak))
    text = f"multiply-adds (row {work.claim.row}) by a peak that counts a multiply-add as 2: half the time"
    return replace(right, mistaken=(Finding("macs-against-a-peak", text, work.value / peak.value),))


_DERIVED: dict[str, Derivation] = {
    "intensity": _quotient((*COUNTED, "flops"), ("dram_bytes", "bytes")),
    "performance": _quotient((*COUNTED, "flops"), TIMES),
    "traffic": _quotient(("dram_bytes",), TIMES),
    "throughput": _throughput,
    "time": _at_peak,
    **dict.fromkeys(WORKSPACE_SIGN, _with_workspace),
}
