"""What a module needs, counted against sums by hand; what groups kernels of a GPU fall in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.gpu import limits

B, IN, HIDDEN, OUT = 50, 192, 16, 10
LAYERS = IN * HIDDEN + HIDDEN * OUT


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, float]]:
    module = nn.Sequential(nn.Flatten(), nn.Linear(IN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))
    return limits.limits(module, torch.randn(B, 3, 8, 8), torch.zeros(B, dtype=torch.long), clients=2, steps=3)


def test_products_are_counted_forward_and_for_weights_and_for_all_inputs_but_the_first(
    counted: dict[str, dict[str, float]],
) -> None:
    flop = 2 * B * (2 * LAYERS + HIDDEN * OUT)
    assert counted[limits.PRODUCTS]["flop"] == 2 * 3 * flop


def test_pointwise_operators_are_one_pass_forward_and_one_backward(counted: dict[str, dict[str, float]]) -> None:
    """Forward: the hidden layer in and out, logits and labels in. Backward: what the loss kept, written and read, with
    one number for its weight; labels; the gradient of the logits out, that of the hidden layer in and out beside its
    kept values."""
    forward = 2 * B * HIDDEN + B * OUT + B
    backward = 2 * (B * OUT + 1) + B + B * OUT + 3 * B * HIDDEN
    assert counted[limits.POINTWISE]["bytes"] == pytest.approx(2 * 3 * 2 * (forward + backward), rel=1e-3)


def test_the_update_reads_the_gradient_twice_and_writes_the_weights_twice(counted: dict[str, dict[str, float]]) -> None:
    numbers = LAYERS + HIDDEN + OUT
    assert counted[limits.METHOD]["bytes"] == 2 * 3 * numbers * (2 + 2 + 4 + 4 + 2)
    assert counted[limits.METHOD]["ms"] == pytest.approx(1000 * counted[limits.METHOD]["bytes"] / 4.2e12)


def test_kernels_fall_in_groups_by_their_names() -> None:
    names = {
        "pixels_kernel": limits.PRODUCTS, "nvjet_sm90_tst_192x128_64x5": limits.PRODUCTS,
        "norm_backward_kernel": limits.NORMS, "triton_red_fused_add_native_layer_norm_3": limits.NORMS,
        "triton_poi_fused__scaled_dot_product_cudnn_attention__to_copy": limits.ATTENTION,
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop": limits.ATTENTION,
        "triton_red_fused_linalg_vector_norm_34": limits.METHOD, "cast_kernel": limits.MOVES,
        "triton_per_fused__log_softmax__to_copy": limits.POINTWISE, "triton_poi_fused_relu": limits.POINTWISE,
    }  # fmt: skip
    assert {n: limits.group_of(n, limits.KERNELS) for n in names} == names
    assert limits.measured({"cast_kernel": 1.5, "place_kernel": 0.5}) == {limits.MOVES: 2.0}
