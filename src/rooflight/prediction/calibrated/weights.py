"""How much each coordinate of a task counts, by group of families; 1 where nothing is said.

Chosen by what kernels are sensitive to: whether rows begin at multiples of 16 bytes, which way a matrix lies, whether a
convolution has groups. Weights that predict left-out points of a calibration best were tried, and predicted networks
worse: points are spread evenly over all sizes, layers are not.
"""

WEIGHTS: dict[str, dict[str, float]] = {
    "gemm": {"bias": 0.7, "rows_aligned": 2, "n_aligned": 2, "batched": 2, "vector": 2, "whole": 0.3},
    "conv": {"m": 0.7, "groups": 0.7, "window": 0.6, "stride": 1.5, "side": 0.4, "depthwise": 8, "grouped": 4,
             "colours": 4, "c_aligned": 0.3, "k_aligned": 0.3, "whole": 0.3, "oblong": 0.5, "c_whole": 1.5,
             "k_whole": 1.5, "channels_last": 8, "pixels_whole": 1.5, "out_pixels_whole": 1.5},
    "attention": {"length_q": 1.2, "length_kv": 1.2, "head_dim": 1.5, "bias": 1.5, "shared": 0.5, "aligned": 0.2},
    "batch-norm": {"channels_last": 2},
    "max-pool-forward": {"channels_last": 2},
    "max-pool-backward": {"channels_last": 2},
    "avg-pool-forward": {"channels_last": 2},
    "avg-pool-backward": {"channels_last": 2},
    "reduce": {"innermost": 3, "aligned": 0.7, "to_one": 2},
    **{family: {"density": 1.5} for family in ("plain", "cast", "math", "broadcast", "dropout", "strided")},
    **{family: {"density": 1.5, "tensors": 0.7} for family in ("foreach", "fused-sgd", "fused-adam")},
    "cat": {"density": 1.5, "tensors": 0.7, "run": 0.7, "contiguous": 8},
}  # fmt: skip
