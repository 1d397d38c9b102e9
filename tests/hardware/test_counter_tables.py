"""Metric tables of every chip against CUPTI's own, passes on GH100, and the sums made of counts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import CannotMeasure
from rooflight.hardware.counter_tables import (
    CHIPS_BY_CAPABILITY,
    EMPTY_RANGE_BYTES,
    Counter,
    Level,
    byte_counters,
    chip_of,
    cuda_core_counters,
    flop_count_sp,
    idle_quantities,
    scout_metrics,
    tensor_counters,
    tensor_counters_in_use,
    to_quantities,
)
from rooflight.ledger import Value
from rooflight.measurement.cupti import cupti
from rooflight.metrics import CUDA_FLOPS, QUANTITIES, executed_is_known
from rooflight.profiles.log import LoggedLaunch, MetricReading, ProfilerLog
from rooflight.profiles.log_quantities import missing
from tests.fixtures.cupti_tables import NO_TABLES, needs_tables

# Every chip that CUPTI of CUDA 12.6 to 13.1 has range-profiler tables for; 13.0 has no GB112 and GB20C.
CHIPS = (
    "GV100 TU102 TU104 TU106 TU116 TU117 GA100 GA102 GA103 GA104 GA106 GA107 GA10B GH100 AD102 AD103 AD104 AD106 AD107 "
    "GB100 GB102 GB110 GB112 GB10B GB202 GB203 GB205 GB206 GB207 GB20B GB20C"
).split()
LEVELS: tuple[Level, ...] = ("dram", "l2", "l1")


def sass(*ops: str) -> list[str]:
    return [f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ops]


def tensor(*sources: str) -> list[str]:
    return [f"sm__ops_path_tensor_src_{source}.sum" for source in sources]


def metrics(counters: tuple[Counter, ...]) -> list[str]:
    return [counter.metric for counter in counters]


# The tables.


@pytest.fixture(params=[chip for chip in CHIPS if NO_TABLES is not None or chip in cupti.supported_chips()])
def host(request: pytest.FixtureRequest) -> Iterator[cupti.Host]:
    if NO_TABLES is not None:
        pytest.skip(NO_TABLES)
    with cupti.Host(request.param) as made:
        yield made


def test_every_name_is_in_the_chips_table(host: cupti.Host) -> None:
    chip = host.chip
    asked = [
        *metrics(cuda_core_counters(chip)),
        *metrics(tensor_counters(chip)),
        *metrics(byte_counters(LEVELS, chip=chip)),
        *scout_metrics(chip),
    ]
    assert [name for name in asked if not host.is_known(name)] == []


def test_no_tensor_family_of_the_chip_is_forgotten(host: cupti.Host) -> None:
    """Left out are only parts of families: the sparse and the dense half, and the `_realtime` doubles."""
    families = re.compile(r"sm__ops_path_tensor_src_(?!.*(_sparsity_|_realtime))")
    table = {f"{name}.sum" for name in host.base_metrics() if families.match(name)}
    assert set(metrics(tensor_counters(host.chip))) == table


def test_chips_without_dram_counters_have_none(host: cupti.Host) -> None:
    has = any(name.startswith("dram__bytes") for name in host.base_metrics())
    assert bool(byte_counters(["dram"], chip=host.chip)) == has


def test_a_scout_and_the_cuda_cores_take_one_pass_each(host: cupti.Host) -> None:
    assert host.passes(scout_metrics(host.chip)) == 1
    assert host.passes(metrics(cuda_core_counters(host.chip))) == 1


@needs_tables
def test_every_chip_of_the_library_has_a_table() -> None:
    """Jetson Xavier (GV11B) and what is older than Volta have no range profiler."""
    known = {chip for chip in cupti.supported_chips() if chip[:2] not in ("GM", "GP") and not chip.startswith("T1")}
    assert known - {"GV11B", "T210"} <= set(CHIPS)


def test_quantities_are_those_of_the_ledger() -> None:
    for chip in CHIPS:
        counters = (*cuda_core_counters(chip), *tensor_counters(chip), *byte_counters(LEVELS, chip=chip))
        assert {counter.quantity for counter in counters} <= set(QUANTITIES)
        assert len(set(metrics(counters))) == len(counters), f"{chip} asks for a counter twice"


def test_an_unknown_chip_is_named_and_case_does_not_matter() -> None:
    assert tensor_counters("gh100") == tensor_counters("GH100")
    with pytest.raises(CannotMeasure, match=r'chip XY999.*counters="none"'):
        tensor_counters("XY999")


# Compute capabilities.


@needs_tables
@pytest.mark.parametrize("capability", CHIPS_BY_CAPABILITY)
def test_the_chip_of_a_capability_has_the_counters_asked_for(capability: str) -> None:
    chip = chip_of(capability)
    with cupti.Host(chip) as host:
        asked = metrics((*byte_counters(LEVELS, chip=chip), *tensor_counters(chip), *cuda_core_counters(chip)))
        assert [name for name in asked if not host.is_known(name)] == []


def test_every_kind_of_chip_has_a_capability() -> None:
    """All but TU116 and TU117, whose 7.5 is also that of Turing with tensor cores."""

    def counted(chip: str) -> tuple[Counter, ...]:
        return (*byte_counters(LEVELS, chip=chip), *tensor_counters(chip), *cuda_core_counters(chip))

    reached = {counted(chip) for chip in CHIPS_BY_CAPABILITY.values()}
    assert {chip for chip in CHIPS if counted(chip) not in reached} == {"TU116", "TU117"}


@needs_tables
def test_xavier_has_no_counters_and_is_told_by_name() -> None:
    with pytest.raises(CannotMeasure, match="NOT_SUPPORTED"):
        cupti.Host("GV11B")
    with pytest.raises(CannotMeasure, match=r'compute capability 7\.2 \(Jetson Xavier.*GV11B.*\): .*counters="none"'):
        chip_of("7.2")


@pytest.mark.parametrize(("capability", "note"), [
    ("7.2", "capability 7.2 (Jetson Xavier, whose GV11B CUPTI does not count on): which tensor counters"),
    ("13.5", "capability 13.5: which tensor counters"), ("7.0", None), ("11.0", None), ("12.1", None), ("6.1", None), (None, None),
])  # fmt: skip
def test_an_imported_log_says_that_the_counters_of_its_chip_are_not_known(
    capability: str | None, note: str | None
) -> None:
    launch = LoggedLaunch(name="k", metrics={name: MetricReading(1, "") for name in tensor("fp16_dst_fp32")})
    notes = missing(ProfilerLog(tool="ncu", about="", launches=(launch,), time_origin="", capability=capability))
    assert [note in line for line in map(str, notes) if "no table of counters" in line] == (
        [True] if note is not None else []
    )


# Passes on GH100, the same in CUPTI of CUDA 12.6, 12.8, 12.9, 13.0 and 13.1. Counters of the CUDA cores are counted by
# instrumented code and never share a pass with those of the hardware; bytes ride along with anything.
DRAM = metrics(byte_counters(["dram"]))
BYTES = metrics(byte_counters(LEVELS))
CUDA = metrics(cuda_core_counters("GH100"))
SCOUT = list(scout_metrics("GH100"))
FAMILIES = {"tf32": "tf32_dst_fp32", "bf16": "bf16_dst_fp32", **{p: p for p in ("fp16", "fp8", "fp64", "int8", "int1")}}
PASSES = {
    "dram": (DRAM, 1),
    "dram + l2 + l1": (BYTES, 1),
    "dram + fp32": (DRAM + sass("fadd", "fmul", "ffma"), 2),
    "dram + cuda": (DRAM + CUDA, 2),
    "dram + l2 + l1 + cuda": (BYTES + CUDA, 2),
    "scout + dram + l2 + l1": (SCOUT + BYTES, 1),
    "scout + dram + cuda": (SCOUT + DRAM + CUDA, 2),
    "all families": (tensor(*FAMILIES.values()), 7),
    "dram + cuda + all families": (DRAM + CUDA + tensor(*FAMILIES.values()), 8),
}
FAMILY_PASSES = {"tf32": 1, "bf16": 1, "fp16": 2, "fp8": 1, "fp64": 1, "int8": 2, "int1": 1}
PAIR_PASSES = {
    ("tf32", "bf16"): 2, ("tf32", "fp16"): 3, ("tf32", "fp8"): 1, ("tf32", "fp64"): 2, ("tf32", "int8"): 3,
    ("bf16", "fp16"): 3, ("bf16", "fp8"): 1, ("bf16", "fp64"): 2, ("bf16", "int8"): 3,
    ("fp16", "fp8"): 2, ("fp16", "fp64"): 2, ("fp16", "int8"): 4,
    ("fp8", "fp64"): 1, ("fp8", "int8"): 2, ("fp64", "int8"): 2,
}  # fmt: skip


@needs_tables
@pytest.mark.parametrize("what", PASSES)
def test_passes_on_gh100(what: str) -> None:
    asked, passes = PASSES[what]
    with cupti.Host("GH100") as host:
        assert host.passes(asked) == passes


@needs_tables
def test_passes_of_tensor_families_on_gh100() -> None:
    """With DRAM they cost no more than alone, with the CUDA cores one more."""
    with cupti.Host("GH100") as host:
        found = {}
        for family, source in FAMILIES.items():
            found[family] = host.passes(DRAM + tensor(source))
            assert host.passes(BYTES + CUDA + tensor(source)) == found[family] + 1
        assert found == FAMILY_PASSES
        pairs = itertools.combinations([family for family in FAMILIES if family != "int1"], 2)
        assert {pair: host.passes(DRAM + tensor(*(FAMILIES[p] for p in pair))) for pair in pairs} == PAIR_PASSES


# Sums.


def test_conv2_of_the_mnist_network_as_the_h200_counted_it() -> None:
    """Batch 64, the op with its bias kernel. Useful: 2*9*32*64*576*64 = 1,358,954,496 FLOP."""
    with_tf32 = dict(zip(tensor("tf32_dst_fp32"), [1_358_954_496.0], strict=True))
    found = to_quantities(with_tf32, tensor_counters("GH100")[:1], source="cupti")
    assert found == {
        "tensor_flops_tf32": Value(1_358_954_496, "cupti: sm__ops_path_tensor_src_tf32_dst_fp32"),
        "sm__ops_path_tensor_src_tf32_dst_fp32.sum": Value(1_358_954_496, "cupti"),
    }
    without = dict(zip(sass("fadd", "fmul", "ffma"), [0.0, 0.0, 681_836_544.0], strict=True))
    found = to_quantities(without, cuda_core_counters("GH100")[:3], source="cupti")
    assert found["cuda_flops_fp32"] == Value(1_363_673_088, "cupti: fadd + fmul + 2 x ffma")
    assert isinstance(found["cuda_flops_fp32"].value, int)
    assert flop_count_sp(without) == 1_363_673_088


def test_weights_of_the_cuda_cores() -> None:
    counts = dict.fromkeys(metrics(cuda_core_counters("GH100")), 10.0)
    found = to_quantities(counts, cuda_core_counters("GH100"), source="cupti")
    # Two values an instruction in half precision: 10 * (2 + 2 + 4).
    assert [found[f"cuda_flops_{p}"].value for p in ("fp32", "fp16", "fp64")] == [40, 80, 40]
    assert found["cuda_flops_fp16"].origin == "cupti: 2 x hadd + 2 x hmul + 4 x hfma"
    # Blackwell's data-centre chips also have instructions on two fp32 values: 10 * (1 + 1 + 2 + 2 + 2 + 4).
    counts = dict.fromkeys(metrics(cuda_core_counters("GB100")), 10.0)
    assert to_quantities(counts, cuda_core_counters("GB100"), source="cupti")["cuda_flops_fp32"].value == 120
    assert cuda_core_counters("GB202") == cuda_core_counters("GH100")


def test_parts_of_one_precision_are_added() -> None:
    counts = dict(zip(tensor("fp16_dst_fp32", "fp16_dst_fp16"), [512.0, 1024.0], strict=True))
    counters = tuple(c for c in tensor_counters("GA100") if c.quantity == "tensor_flops_fp16")
    assert to_quantities(counts, counters, source="cupti")["tensor_flops_fp16"].value == 1536
    # With one of them missing, the sum is unknown, but what was counted is kept.
    counts.popitem()
    assert set(to_quantities(counts, counters, source="cupti")) == set(tensor("fp16_dst_fp32"))


def test_bytes_that_an_empty_range_has_too_are_unknown() -> None:
    counts = {"dram__bytes_read.sum": EMPTY_RANGE_BYTES + 0.0, "dram__bytes_write.sum": EMPTY_RANGE_BYTES + 32.0}
    counts["lts__t_bytes.sum"] = 0.0
    found = to_quantities(counts, byte_counters(LEVELS), source="cupti")
    assert "dram_bytes_read" not in found
    assert found["dram_bytes_written"].value == 544
    assert found["l2_bytes"].value == 0
    assert "l1_bytes" not in found
    assert found["dram__bytes_read.sum"].value == 512


def test_other_metrics_keep_their_fractions() -> None:
    found = to_quantities({"sm__throughput.avg.pct_of_peak_sustained_elapsed": 12.5}, (), source="cupti")
    assert [value.value for value in found.values()] == [12.5]


@given(
    st.lists(
        st.tuples(*(st.integers(0, 2**40) for _ in range(9))),
        min_size=1,
        max_size=5,
    )
)
def test_quantities_of_ranges_add_up_to_those_of_their_sum(rows: list[tuple[int, ...]]) -> None:
    counters = cuda_core_counters("GH100")
    each = [to_quantities(dict(zip(CUDA, map(float, row), strict=True)), counters, source="x") for row in rows]
    totals = [float(sum(column)) for column in zip(*rows, strict=True)]
    whole = to_quantities(dict(zip(CUDA, totals, strict=True)), counters, source="x")
    for quantity in ("cuda_flops_fp32", "cuda_flops_fp16", "cuda_flops_fp64"):
        assert sum(found[quantity].value for found in each) == whole[quantity].value


def test_flop_count_sp_needs_all_three() -> None:
    assert flop_count_sp(dict(zip(sass("fadd", "fmul", "ffma"), [3.0, 4.0, 5.0], strict=True))) == 17
    assert flop_count_sp(dict(zip(sass("fadd", "fmul"), [3.0, 4.0], strict=True))) is None


# The scout.


def pipes(**counts: float) -> dict[str, float]:
    return {f"sm__inst_executed_pipe_tensor_op_{pipe}.sum": count for pipe, count in counts.items()}


def used(chip: str, scouted: dict[str, float]) -> list[str]:
    return list(dict.fromkeys(c.quantity.removeprefix("tensor_flops_") for c in tensor_counters_in_use(chip, scouted)))


@pytest.mark.parametrize(
    ("scouted", "precisions"),
    [
        (pipes(hmma=0, hmma_type_hfma2=0, imma=0, dmma=0), []),
        # HFMA2.MMA runs in the same pipe and is no matrix work.
        (pipes(hmma=640, hmma_type_hfma2=640, imma=0, dmma=0), []),
        (pipes(hmma=641, hmma_type_hfma2=640, imma=0, dmma=0), ["tf32", "bf16", "fp16", "fp8"]),
        (pipes(hmma=0, hmma_type_hfma2=0, imma=1, dmma=0), ["int8", "int1"]),
        (pipes(hmma=0, hmma_type_hfma2=0, imma=0, dmma=1), ["fp64"]),
        # Nothing was scouted: everything may be in use.
        ({}, ["tf32", "bf16", "fp16", "fp8", "fp64", "int8", "int1"]),
    ],
)
def test_the_scout_leaves_out_idle_pipes_on_hopper(scouted: dict[str, float], precisions: list[str]) -> None:
    assert used("GH100", scouted) == precisions


def test_a_familys_own_count_decides() -> None:
    scouted = pipes(hmma=10, hmma_type_hfma2=0, imma=0, dmma=0)
    scouted |= dict(zip(tensor("tf32_dst_fp32", "bf16_dst_fp32", "fp16", "fp8"), [0.0, 4096.0, 0.0, 0.0], strict=True))
    assert used("GH100", scouted) == ["bf16"]


def test_what_the_scout_found_idle_is_proven_zero() -> None:
    in_use = tensor_counters_in_use("GH100", pipes(hmma=0, hmma_type_hfma2=0, imma=0, dmma=1))
    idle = idle_quantities("GH100", in_use, source="cupti")
    assert set(idle) == {f"tensor_flops_{p}" for p in ("tf32", "bf16", "fp16", "fp8", "int8", "int1")}
    assert {value.value for value in idle.values()} == {0}


@pytest.mark.parametrize("chip", ["TU116", "TU117"])
def test_without_tensor_cores_all_is_known_while_no_matrix_instruction_ran(chip: str) -> None:
    """Such instructions run there too, and nothing counts what they do: then the sum would be that of a part."""
    assert tensor_counters(chip) == ()
    idle = idle_quantities(chip, (), source="cupti", scouted=pipes(hmma=0, imma=0))
    assert set(idle) == {f"tensor_flops_{p}" for p in ("fp16", "int8", "int4", "int1")}
    assert {value.value for value in idle.values()} == {0}
    assert executed_is_known({*idle, *CUDA_FLOPS}, half=True)
    for scouted in (pipes(hmma=1, imma=0), pipes(hmma=0, imma=1), pipes(hmma=0), {}, None):
        found = idle_quantities(chip, (), source="cupti", scouted=scouted)
        assert found == {} and not executed_is_known({*found, *CUDA_FLOPS}, half=True)


@pytest.mark.parametrize("chip", CHIPS)
def test_every_family_is_found_by_a_pipe_of_the_scout(chip: str) -> None:
    assert tensor_counters_in_use(chip, dict.fromkeys(scout_metrics(chip), 0.0)) == ()
    busy = {name: 0.0 if "hfma2" in name else 1.0 for name in scout_metrics(chip)}
    assert tensor_counters_in_use(chip, busy) == tensor_counters(chip)
