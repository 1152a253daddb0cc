"""What a data set has beside samples and labels: weights in the loss of local steps, and names of inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo import FedsmooError, simulate
from fedsmoo.data.check import check, from_arrays
from fedsmoo.data.dataset import Dataset

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((24, 5)), np.arange(24) % 3
WEIGHTS = RNG.uniform(0, 4, 24)


def data(weights: Any = None, **more: Any) -> Dataset:
    return from_arrays(X, Y, X[:6], Y[:6], weights=weights, **more)


def trained(data: Dataset, engine: str, **settings: Any) -> Tensor:
    """Softmax regression; by default of two clients with 16 and 8 samples, in batches of 6, some of them padded."""
    plain = {"rounds": 2, "local_epochs": 1, "batch_size": 6, "client_indices": [range(16), range(16, 24)], "lr": 0.1}
    more: dict[str, Any] = {"weight_decay": 0.0, "clip": None, "dtype": "float64", "device": "cpu", "cohort": 2}
    return simulate("softmax", data, "fedavg", engine=engine, **{**plain, **more, **settings}).server.w


@pytest.mark.parametrize("engine", ["serial", "vmap", "batched"])
def test_a_step_descends_the_mean_of_weighted_losses(engine: str) -> None:
    """One step of one client on all its samples, against PyTorch's cross-entropy with the weights written out."""
    one = {"rounds": 1, "batch_size": 24, "client_indices": [range(24)], "cohort": 1}
    w, start = trained(data(WEIGHTS), engine, **one), trained(data(), engine, **{**one, "lr": 1e-300})
    weight, bias = (p.clone().requires_grad_() for p in (start[:15].view(3, 5), start[15:]))
    each = F.cross_entropy(F.linear(torch.from_numpy(X), weight, bias), torch.from_numpy(Y), reduction="none")
    (each * torch.from_numpy(WEIGHTS / WEIGHTS.mean())).mean().backward()
    expected = start - 0.1 * torch.cat([weight.grad.flatten(), bias.grad])
    assert float((w - expected).abs().max()) < 1e-14
    assert float((w - start).norm()) > 1e-2


def test_engines_agree_on_padded_batches_and_equal_weights_change_nothing() -> None:
    found = [trained(data(WEIGHTS), engine) for engine in ("serial", "vmap", "batched")]
    for other in found[1:]:
        assert float((other - found[0]).abs().max()) < 1e-12
    plain = trained(data(), "serial")
    assert torch.equal(trained(data([7.0] * 24), "serial"), plain)
    assert float((found[0] - plain).norm()) > 1e-3


def test_weights_are_told_by_float32_as_those_of_runs_that_kept_no_more() -> None:
    now = data(WEIGHTS)
    then = replace(now, weights=now.weights.float())
    assert (now.fingerprint, now.content_hash) == (then.fingerprint, then.content_hash)
    single = {"dtype": "float32"}
    assert torch.equal(trained(now, "serial", **single), trained(then, "serial", **single))
    assert not torch.equal(trained(now, "serial"), trained(then, "serial"))


def test_weights_and_names_are_part_of_what_a_data_set_is() -> None:
    plain, weighted = data(), data(WEIGHTS)
    assert plain.fingerprint.content != weighted.fingerprint.content
    assert plain.fingerprint.test == weighted.fingerprint.test
    assert data(2 * WEIGHTS).fingerprint == weighted.fingerprint == weighted.to("cpu").fingerprint
    pair = np.stack([X, X + 1], 1)
    named = [from_arrays(pair, Y, pair, Y, inputs=names) for names in (("a", "b"), ("b", "a"), None)]
    assert len({d.fingerprint.content for d in named}) == len({d.content_hash for d in named}) == 3


PAIR = torch.zeros(4, 2, 3)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"weights": [1.0, 2.0]}, r"weights are torch.float64 \[2\], but must be one float for each of the 4 training"),
    ({"weights": [1.0, -1.0, 1.0, 1.0]}, "weights: sample 1 has the weight -1, but it must be 0 or above"),
    ({"weights": [1.0, 1.0, float("nan"), 1.0]}, "weights: sample 2 has the weight nan"),
    ({"weights": [0.0] * 4}, "weights have the mean 0, but must have 1: some samples must count"),
    ({"weights": "abc"}, "cannot be read as an array of numbers|a single number"),
    ({"inputs": ("a",)}, r"inputs is \('a',\), but the samples have the shape \[2, 3\]: stack 1 inputs"),
    ({"inputs": ("a", "a")}, "but must be names, each once"),
    ({"inputs": ("a", 3)}, "but must be names, each once"),
    ({"inputs": ()}, "but must be names, each once"),
]


@pytest.mark.parametrize(("given", "words"), WRONG, ids=lambda v: str(v)[:40])
def test_what_is_wrong_is_said_in_one_line(given: dict[str, Any], words: str) -> None:
    with pytest.raises(FedsmooError, match=words) as caught:
        from_arrays(PAIR, [0, 1, 0, 1], PAIR, [0, 1, 0, 1], **given)
    assert "\n" not in str(caught.value)


def test_weights_of_a_dataset_of_one_s_own_have_the_mean_one() -> None:
    with pytest.raises(
        FedsmooError, match="weights have the mean 2, but must have 1: divide by it, or use from_arrays"
    ):
        check(replace(data(), weights=torch.full((24,), 2.0)))


@pytest.mark.parametrize("name", ["natural", "natural_test"])
@pytest.mark.parametrize("wrong", ["mask", "bytes", "floats", "list", "array", "matrix"])
def test_clients_are_numbers_of_samples(name: str, wrong: str) -> None:
    """A mask was read as samples 0 and 1 over and over."""
    plain, mine = data(), (torch.arange(3), torch.arange(3, 6))
    forms: dict[str, Any] = {
        "mask": torch.arange(24) < 6,
        "bytes": torch.arange(6).byte(),
        "floats": torch.arange(6.0),
        "list": [0, 1],
        "array": np.arange(6),
        "matrix": torch.zeros(2, 3, dtype=torch.int64),
    }
    sound = replace(plain, natural=mine, natural_test=mine)
    assert check(sound) is sound
    for i in range(2):
        lists = [forms[wrong] if i == j else mine[j] for j in range(2)]
        words = rf"{name}\[{i}\] is .*, but must be the numbers of client {i}'s samples, an int64"
        with pytest.raises(FedsmooError, match=words):
            check(replace(sound, **{name: tuple(lists)}))


def test_the_mean_of_images_is_of_values_up_to_one() -> None:
    """Values of 0 to 255, as some libraries have them, made every pixel nearly the same number."""
    images = RNG.integers(0, 256, (6, 4, 4, 3)).astype(np.uint8)
    assert from_arrays(images, Y[:6], mean=[1.0] * 3, std=[1.0] * 3).mean == (1.0, 1.0, 1.0)
    with pytest.raises(
        FedsmooError, match=r"mean \(127\.0, 127\.0, 127\.0\) is not of values in 0\.\.1: divide it by 255"
    ):
        from_arrays(images, Y[:6], mean=[127.0] * 3, std=[60.0] * 3)
