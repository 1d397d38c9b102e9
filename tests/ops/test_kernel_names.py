"""Tiles in the names of kernels; the names are those of real logs (H200, H100, A100, B200, V100)."""

from __future__ import annotations

import csv
import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.ops.kernel_names import role_of, short_name, tile
from rooflight.ops.matrix_product import MatrixProduct
from rooflight.ops.tile_padding import executed_tiles
from tests.fixtures.paths import DATA

MULTISTAGE = "_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock22ImplicitGemmMultistageINS_4gemm9GemmShapeILi64ELi128ELi16EEENS4_52Conv2dWgradOutputGradientTileAccessIteratorOptimizedINS_11MatrixShapeILi64ELi16EEENS_10tfloat32_tE"

TILES = {
    "sm90_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas": (
        64,
        64,
        8,
    ),
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas": (
        128,
        128,
        64,
    ),
    "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn": (
        64,
        128,
        32,
    ),
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel__5x_cudnn": (
        128,
        128,
        16,
    ),
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT": (128, 256, 64),
    "nvjet_hsh_192x192_64x3_2x1_v_bz_coopB_NTN": (192, 192, 64),
    "nvjet_sm100_tst_64x32_64x16_2x1_2cta_h_bz_TNT": (64, 32, 64),
    "nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_splitK_TNT": (64, 16, 64),
    "nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN": (64, 64, 128),
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(T1::Params)": (
        256,
        128,
        32,
    ),
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x128_32x3_nn_align4>(T1::Params)": (64, 128, 32),
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(cutlass_80_simt_sgemm_128x64_8x5_nn_align1::Params)": (
        128,
        64,
        8,
    ),
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(T1::Params)": (
        16,
        16,
        128,
    ),
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_256x64_16x4_nhwc_unity_stride_align4>(T1::Params)": (
        256,
        64,
        16,
    ),
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_ttn_align8_warpspecialized_pingpong_epi_tma": (
        128,
        128,
        64,
    ),
    "cutlass3x_sm90_tensorop_h64x128x16gemm_f16_f16_f16_void_f16_64x128x64": (64, 128, 64),
    MULTISTAGE: (64, 128, 16),
    "void cutlass::Kernel<cutlass::conv::kernel::ImplicitGemmConvolution<cutlass::conv::threadblock::ImplicitGemmMultistage<cutlass::gemm::GemmShape<64, 128, 16>, cutlass::conv::threadblock::X>>>": (
        64,
        128,
        16,
    ),
    "ampere_sgemm_128x64_tn": (128, 64),
    "volta_sgemm_32x128_nn": (32, 128),
    "ampere_fp16_s16816gemm_fp16_256x128_ldg8_f2f_stages_64x3_tn": (256, 128, 64),
    "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_nn": (64, 64, 64),
    "turing_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn": (128, 128),
    "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn": (128, 64),
    "ampere_scudnn_128x64_relu_medium_nn_v1": (128, 64),
}

NO_TILES = [
    "",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)",
    "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, 1, 1>(T2, T2, cudnnTensorStruct)",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, 0>(cublasLt::cublasSplitKParams<T6>)",
    # Sizes that are no tile of the output.
    "ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_128x128x64_4x1x1_kernel0_0",
    "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, cublasGemvTensorStridedBatched<float const> >",
    "void cask_plugin__5x_cudnn::xmma__5x_cudnn::init_device_workspace_kernel<xmma__5x_cudnn::implicit_gemm::fprop::X>",
    "Memcpy DtoD (Device -> Device)",
]


@pytest.mark.parametrize(("name", "expected"), TILES.items(), ids=[name[:40] for name in TILES])
def test_the_tile_is_read_from_the_name(name: str, expected: tuple[int, ...]) -> None:
    assert tile(name) == expected


@pytest.mark.parametrize("name", NO_TILES)
def test_a_name_without_a_tile_tells_none(name: str) -> None:
    assert tile(name) is None


def test_every_matrix_kernel_of_a_training_step_has_a_tile() -> None:
    path = DATA / "timeline" / "resnet18_plain.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "kernel"]
    with_tile = [name for name in names if tile(name)]
    # 20 convolutions forward; backward one kernel for the weights each and one for the inputs of all but the first
    # (some of them in two launches); the linear layer forward and twice backward.
    assert len(with_tile) >= 20 + 20 + 19 + 3
    matrix = ("_tilesize", "ImplicitGemm", "cutlass_80", "cutlass_tensorop", "dgrad_engine")
    # Some name the tile of the kernel before them: they set up its workspace or add up its parts.
    beside = ("init_device", "execute_split_k_kernel")
    assert set(with_tile) == {
        name for name in names if any(word in name for word in matrix) and not any(word in name for word in beside)
    }


SIZE = st.integers(1, 512)


@given(SIZE, SIZE, SIZE, SIZE)
def test_sizes_come_back_as_they_were_written(m: int, n: int, k: int, stages: int) -> None:
    assert tile(f"sm90_xmma_gemm_f32f32_tn_n_tilesize{m}x{n}x{k}_stage{stages}_execute") == (m, n, k)
    assert tile(f"nvjet_tst_{m}x{n}_{k}x{stages}_1x2_h_bz_NNT") == (m, n, k)
    assert tile(f"cutlass_80_simt_sgemm_{m}x{n}_{k}x{stages}_nn_align1") == (m, n, k)
    assert tile(f"ampere_sgemm_{m}x{n}_tn") == (m, n)


@given(st.text(alphabet="abcgemst_<>:x, 0123456789", max_size=80))
def test_any_name_gives_sizes_or_none(name: str) -> None:
    for text in (name, f"ampere_sgemm_{name}", f"nvjet_{name}", f"cutlass_80_simt_{name}"):
        found = tile(text)
        assert found is None or (len(found) in (2, 3) and all(size > 0 for size in found))


# --- names of all chips, from public traces and logs, labelled by hand


def read(name: str) -> dict[str, str]:
    role = role_of(name)
    if role is None:
        return {"role": "", "tile": "", "unit": "", "precision": ""}
    sizes = tile(name)
    products = role.role in ("matrix", "attention")
    return {
        "role": role.role,
        "tile": "x".join(map(str, sizes)) if sizes else "",
        "unit": (role.unit or "") if products else "",
        "precision": role.precision or "",
    }


PUBLIC = list(csv.DictReader((DATA / "kernel_names.csv").read_text("utf-8").splitlines()))


def test_the_table_of_public_names_is_long_and_of_many_chips() -> None:
    assert len({row["name"] for row in PUBLIC}) >= 200
    chips = " ".join(row["chip"] for row in PUBLIC)
    assert all(chip in chips for chip in ("Maxwell", "V100", "Turing", "A100", "RTX 4090", "H100", "B200"))
    assert all(row["source"] for row in PUBLIC)


@pytest.mark.parametrize("row", PUBLIC, ids=[row["name"][:50] for row in PUBLIC])
def test_public_names_are_read_as_they_were_labelled(row: dict[str, str]) -> None:
    assert read(row["name"]) == {key: row[key] for key in ("role", "tile", "unit", "precision")}


@pytest.mark.parametrize(("name", "generated", "fused"), [
    ("triton_poi_fused_add_native_batch_norm_relu_3", "pointwise", ("add", "native_batch_norm", "relu")),
    ("triton_poi_fused_add_max_pool2d_with_indices_max_pool2d_with_indices_backward_65", "pointwise",
     ("add", "max_pool2d_with_indices", "max_pool2d_with_indices_backward")),
    ("triton_per_fused__native_batch_norm_legit_functional_copy__42", "persistent reduction",
     ("_native_batch_norm_legit_functional", "copy_")),
    ("triton_red_fused_add_arange_embedding_native_layer_norm_unsqueeze_0", "reduction",
     ("add", "arange", "embedding", "native_layer_norm", "unsqueeze")),
    ("triton_tem_fused__to_copy_addmm_gelu_t_view_9", "template", ("_to_copy", "addmm", "gelu", "t", "view")),
    ("triton_for_fused_0", "foreach", ()),
    ("triton_poi_fused_moe_forward_0", "pointwise", None),  # an op of vLLM's own
])  # fmt: skip
def test_inductor_names_tell_the_ops_they_fuse(name: str, generated: str, fused: tuple[str, ...] | None) -> None:
    role = role_of(name)
    assert role is not None
    assert (role.generated, role.fused, role.family) == (generated, fused, "triton")


def test_a_grid_shows_the_tiles_of_kernels_that_nobody_counted() -> None:
    # 1,000 x 512 results over 256: 4 x 16 tiles of 128 x 64 (the library computes the transposed product).
    sgemm = role_of("ampere_sgemm_128x64_tn")
    assert sgemm is not None
    tiled = executed_tiles(sgemm, (4, 16, 1), MatrixProduct("product", 1000, 512, 256))
    assert tiled is not None
    assert (tiled.flops, tiled.parts) == (2 * 4 * 128 * 16 * 64 * 256, 1)
    # The depth in three parts cannot be in whole steps of 64; in two it is.
    assert executed_tiles(sgemm, (4, 16, 3), MatrixProduct("product", 1000, 512, 256)) is None
    halves = executed_tiles(sgemm, (4, 16, 2), MatrixProduct("product", 1000, 512, 256))
    assert halves is not None
    assert (halves.flops, halves.parts) == (tiled.flops, 2)
    # The name does not tell the step of the depth, and 100 may be filled up: nothing is said. Nor where blocks are
    # fewer than tiles.
    assert executed_tiles(sgemm, (4, 16, 1), MatrixProduct("product", 1000, 512, 100)) is None
    assert executed_tiles(sgemm, (4, 15, 1), MatrixProduct("product", 1000, 512, 256)) is None


# --- names of anyone's making ---

NINES = "9" * 5000
HOSTILE = [
    f"nvjet_tst_{NINES}x1_1x1_h",
    f"nvjet_sm{NINES}_tst_1x1_1x1_h",
    f"sm{NINES}_xmma_gemm_f32f32_tilesize1x1x{NINES}_g{NINES}_",
    f"fmha_cutlassF_f32_aligned_64x64_rf_sm{NINES}",
    f"cutlass_80_simt_sgemm_{NINES}x64_8x5_nn_align1",
    f"CollectiveMma<cutlass::gemm::MainloopX<3>, cute::tuple<cute::C<{NINES}>, cute::C<1>, cute::C<1> >",
    f"Volta_hmma_implicit_gemm_fprop_fp32_nhwc_{NINES}x128x64x1",
    "convolve_sgemm<float, 1, 99999999999, 5, 5, 3>",
    "sgemm_largek_lds64<true, false, 99999999999, 5, 3, 3>",
    "cutlass_simt_" + "gemm_1x1_1x1_" * 500,  # cubic, where each of three parts may have any length
    f"sm90_xmma_gemm_tilesize1x{NINES}",
    "volta_" * 10_000,
    "::[lambda" * 10_000,
    "triton_poi_fused_" + "a_" * 100_000,
]
PIECES = sorted({
    "9", NINES, "x", "_", "1x1", "gemm", "align8", "::", "<", ">", "(", ")", ", ", "float", "int=", "sm90", "_g0_", "\u0665",
    "0x0", "nvjet_tst_", "_xmma_", "cutlass_80_", "tensorop_", "tilesize", "threadblock::", "GemmShape<", "volta_", "fused_",
    "triton_tem_", "add", "mul", "relu", "convolve_sgemm<", "fmha_cutlassB_f32_", "cudnn_generated_", "sdpa_", "[lambda",
})  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=[name[:30] for name in HOSTILE])
def test_a_name_without_end_tells_no_tile(name: str) -> None:
    """Neither a number of 5,000 digits nor 2 to a power of eleven: no kernel has a tile of that size."""
    role = role_of(name)
    assert role is None or role.tile is None or max(role.tile) < 10**6
    assert 0 < len(short_name(name, 40)) <= 40


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_whatever_a_name_is_made_of_it_is_read(name: str) -> None:
    role = role_of(name)
    if role is not None:
        assert min(role.cluster) >= 1 and role.groups >= 1
        assert all(0 < size < 10**6 for size in role.tile or role.sides or ())
    assert len(short_name(name, 40)) <= 40


def test_a_cluster_of_none_is_none() -> None:
    name = "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x0x1_0_ttn_align8"
    role, other = role_of(name), role_of("nvjet_tst_128x256_64x4_0x2_h_bz_NNT")
    assert role is not None and role.cluster == (1, 1)
    assert other is not None and other.cluster == (1, 1)
