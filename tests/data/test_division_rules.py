"""Partitions by shares, shards and sizes, and those that change inputs: against literal loops and closed forms."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from typer.testing import CliRunner

import fedsmoo
from fedsmoo import ClassWise, Config, FedsmooError, Noise, Quantity, Rotation, Shards, Sizes, simulate, stream
from fedsmoo.cli import app
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.division.inputs import rotate
from fedsmoo.data.division.partition import PARTITIONS, from_rule, parse, to_rule
from fedsmoo.data.division.splitfile import read_split
from fedsmoo.data.sources import load
from fedsmoo.pages.figures.rules import draw_rules
from fedsmoo.runs.build import assemble
from fedsmoo.runs.division import make_clients
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.settings.merge import make_config
from fedsmoo.sweeps.grid import run_name
from fedsmoo.sweeps.pack import packable

LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 600))
TINY = {"cohort": 2, "rounds": 2, "local_steps": 2, "batch_size": 8, "progress": False}


def literal(labels: np.ndarray, clients: int, seed: int, rule: ClassWise) -> list[list[int]]:
    """NIID-Bench's rule as its paper and code describe it, sample by sample, with the same random numbers."""
    rng = stream(seed, "partition")
    order = rng.permutation(len(labels))
    classes = range(labels.max() + 1)
    while True:
        held: list[list[int]] = [[] for _ in range(clients)]
        drawn = [rng.dirichlet([rule.alpha] * clients) for _ in classes]
        for k in classes:
            mine = [int(i) for i in order if labels[i] == k]
            enough = [rule.balance and len(h) >= len(labels) / clients for h in held]
            share = [0.0 if full else p for p, full in zip(drawn[k], enough, strict=True)]
            upto, start, last = 0.0, 0, max(j for j in range(clients) if share[j] > 0)
            for j in range(clients):
                upto += share[j] / np.sum(share)
                end = len(mine) if j >= last else int(upto * len(mine))
                held[j] += mine[start:end]
                start = end
        if min(map(len, held)) >= rule.least:
            return [sorted(h) for h in held]


@pytest.mark.parametrize("rule", [ClassWise(0.5), ClassWise(0.1, least=40), ClassWise(0.3, balance=False, least=1)])
def test_classwise_is_the_literal_loop(rule):
    for seed in range(3):
        split = rule.split(LABELS, 10, 12, seed)
        assert [i.tolist() for i in split] == literal(LABELS, 12, seed, rule)
        assert np.array_equal(np.sort(np.concatenate(split)), np.arange(len(LABELS)))  # every sample once
        assert min(map(len, split)) >= rule.least


def test_classwise_shares_have_the_variance_of_the_dirichlet():
    """Var p = (1/m)(1 - 1/m) / (m alpha + 1); 200 seeds of 10 classes and 4 clients, whose shares are tied in fours."""
    shares = []
    for seed in range(200):
        split = ClassWise(1.0, least=1, balance=False).split(LABELS, 10, 4, seed)
        shares.append([np.bincount(LABELS[i], minlength=10) / 600 for i in split])
    truth = (1 / 4) * (3 / 4) / (4 * 1.0 + 1)
    assert np.mean(shares) == pytest.approx(1 / 4, abs=1e-9)
    assert np.var(shares) == pytest.approx(truth, rel=0.06)


def test_balance_stops_who_has_enough():
    split = ClassWise(0.1).split(LABELS, 10, 12, 0)
    for mine in split:
        counts = np.bincount(LABELS[mine], minlength=10)
        last = np.flatnonzero(counts)[-1]
        assert counts[:last].sum() < len(LABELS) / 12


def test_quantity_cuts_a_shuffle_and_leaves_labels_alike():
    rule = Quantity(1.0)
    split = rule.split(LABELS, 10, 8, 3)
    rng = stream(3, "partition")
    order = rng.permutation(len(LABELS))
    while True:
        ends = (np.cumsum(rng.dirichlet(np.ones(8))) * len(LABELS)).astype(int)[:-1]
        truth = np.split(order, ends)
        if min(map(len, truth)) >= 10:
            break
    assert all(np.array_equal(np.sort(a), b) for a, b in zip(truth, split, strict=True))
    assert max(map(len, split)) > 3 * min(map(len, split))
    table = [np.bincount(LABELS[i], minlength=10) for i in Quantity(5.0).split(LABELS, 10, 8, 3)]
    assert stats.chi2_contingency(table).pvalue > 0.001


def test_shards_as_in_mcmahan_et_al():
    """6,000 samples, 50 clients with 2 shards of 60 each: ten shards of each class, so at most 2 classes a client."""
    split = Shards(2).split(LABELS, 10, 50, 0)
    assert {len(i) for i in split} == {120}
    assert np.array_equal(np.sort(np.concatenate(split)), np.arange(len(LABELS)))
    for mine in split:
        counts = np.bincount(LABELS[mine], minlength=10)
        assert sorted(counts[counts > 0]) in ([60, 60], [120])
    both = sum(np.unique(LABELS[i]).size == 1 for s in range(40) for i in Shards(2).split(LABELS, 10, 50, s)) / 2000
    assert both == pytest.approx(9 / 99, abs=4 * np.sqrt(0.09 * 0.91 / 2000))  # the second of the same ten
    uneven = Shards(3).split(LABELS[:1000], 10, 7, 0)  # 21 shards of 47 or 48
    assert sum(map(len, uneven)) == 1000
    assert {len(i) for i in uneven} <= {141, 142, 143, 144}


def test_sizes_are_those_given_and_labels_iid():
    rule = Sizes([1500, 700, 800])
    split = rule.split(LABELS, 10, 3, 5)
    assert [len(i) for i in split] == [1500, 700, 800]
    assert np.unique(np.concatenate(split)).size == 3000
    assert stats.chi2_contingency([np.bincount(LABELS[i], minlength=10) for i in split]).pvalue > 0.001
    assert rule == Sizes(np.array([1500, 700, 800])) == parse("sizes-1500,700,800") == from_rule(to_rule(rule))


@pytest.mark.parametrize("kind", PARTITIONS)
def test_names_and_rules_read_back(kind):
    rule = PARTITIONS[kind]()
    assert parse(rule.name) == rule == from_rule(to_rule(rule))
    assert isinstance(getattr(fedsmoo, type(rule).__name__), type)
    assert parse("classwise-0.123456789").name == "classwise-0.123456789"


def images(dtype: torch.dtype, count: int = 40, side: int = 16) -> Dataset:
    x = torch.randint(100, 156, (2 * count, side, side, 3), generator=torch.Generator().manual_seed(0)).to(dtype)
    x = x if dtype == torch.uint8 else x.movedim(-1, 1).contiguous()
    y = torch.arange(count) % 4
    return Dataset("squares", x[:count], y, x[count:], y, 4, mean=(0.5,) * 3, std=(0.2,) * 3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_noise_grows_from_client_to_client(dtype):
    data, rule = images(dtype), Noise(0.1)
    indices = rule.split(data.y_train.numpy(), 4, 5, 7)
    seen = rule.with_inputs(data, indices, 7)
    assert seen.x_train.dtype == dtype
    assert torch.equal(seen.x_test, data.x_test)
    assert torch.equal(seen.y_train, data.y_train)
    assert seen.fingerprint == data.fingerprint  # known by what it was made from
    unit = 255 if dtype == torch.uint8 else 1
    for client, mine in enumerate(indices):
        change = (seen.x_train[mine].double() - data.x_train[mine].double()) / unit
        std = 0.1 * client / 4
        # 8 images of 768 values: the relative error of a standard deviation is 1 / sqrt(2 n); rounding adds 1/12.
        rounding = (1 / 12) / 255**2 if dtype == torch.uint8 and client else 0
        assert float(change.std()) == pytest.approx(np.sqrt(std**2 + rounding), rel=0.05)
        assert abs(float(change.mean())) <= 5 * std / np.sqrt(change.numel()) + 1e-3 / unit
    again = rule.with_inputs(data, indices, 7)
    assert torch.equal(again.x_train, seen.x_train)
    assert not torch.equal(rule.with_inputs(data, indices, 8).x_train, seen.x_train)


def test_noise_of_images_stays_within_bytes():
    data = images(torch.uint8)
    seen = Noise(5.0).with_inputs(data, [np.arange(20), np.arange(20, 40)], 0)
    loud = seen.x_train[20:]
    assert ((loud == 0) | (loud == 255)).float().mean() > 0.8
    drawn = stream(0, "noise", 1).standard_normal((20, 16, 16, 3))
    assert np.array_equal(loud.numpy(), np.clip(data.x_train[20:].numpy() + 5 * 255 * drawn, 0, 255).round())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_right_angles_move_pixels(dtype):
    data, rule = images(dtype), Rotation(4)
    indices = rule.split(data.y_train.numpy(), 4, 6, 0)
    seen = rule.with_inputs(data, indices, 0)
    axes = (1, 2) if dtype == torch.uint8 else (2, 3)
    for client, mine in enumerate(indices):
        assert np.array_equal(seen.x_train[mine].numpy(), np.rot90(data.x_train[mine].numpy(), client % 4, axes))
    assert torch.equal(seen.x_test, data.x_test)


def test_other_angles_as_scipy_turns():
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x[:, :, :2] = x[:, :, -2:] = x[:, :, :, :2] = x[:, :, :, -2:] = 0  # where the two treat the border differently
    for degrees in (45, 72, 120, 315):
        truth = ndimage.rotate(x.numpy(), degrees, axes=(2, 3), reshape=False, order=1)
        inner = (slice(None), slice(None), slice(3, -3), slice(3, -3))
        assert np.allclose(rotate(x, degrees).numpy()[inner], truth[inner], atol=1e-9)
    as_bytes = (x * 255).round().to(torch.uint8).movedim(1, -1).contiguous()
    exact = rotate(as_bytes.movedim(-1, 1).double(), 45).round().movedim(1, -1)
    assert torch.equal(rotate(as_bytes, 45), exact.to(torch.uint8))


@pytest.mark.parametrize("partition", ["noise-0.5", "rotation-4"])
def test_every_engine_trains_on_what_clients_see(partition):
    losses = {}
    for engine in ("serial", "vmap", "batched"):
        found = simulate("mlp", "digits", "scaffold", partition=partition, clients=4, engine=engine, **TINY)
        losses[engine] = [r.test_loss for r in found.history]
    assert losses["vmap"] == pytest.approx(losses["serial"], rel=1e-5)
    assert losses["batched"] == pytest.approx(losses["serial"], rel=1e-5)
    plain = simulate("mlp", "digits", "scaffold", partition="iid", clients=4, **TINY)
    assert abs(plain.history[-1].test_loss - losses["serial"][-1]) > 1e-4
    # The same as arrays that were changed by hand, divided alike.
    data, rule = load("digits"), parse(partition)
    indices = rule.split(data.y_train.numpy(), 10, 4, 0)
    by_hand = dataclasses.replace(data, x_train=rule.with_inputs(data, indices, 0).x_train)
    truth = simulate("mlp", by_hand, "scaffold", client_indices=indices, engine="serial", **TINY)
    assert [r.test_loss for r in truth.history] == losses["serial"]


def test_objects_names_and_folders_are_the_same_run(tmp_path):
    run = {"clients": 4, **TINY}
    named = simulate("softmax", "digits", "fedavg", partition="noise-0.5", out=tmp_path / "run", **run)
    given = simulate("softmax", "digits", "fedavg", partition=Noise(0.5), **run)
    assert [r.test_loss for r in named.history] == [r.test_loss for r in given.history]
    assert identity(named.config) == identity(given.config)
    assert identity(named.config) != identity(named.config.replace(partition="noise-0.4"))
    loaded = fedsmoo.load(tmp_path / "run")
    longer = loaded.continue_(1)
    whole = simulate("softmax", "digits", "fedavg", partition="noise-0.5", **{**run, "rounds": 3})
    assert [r.test_loss for r in longer.history] == [r.test_loss for r in whole.history]
    option = simulate("softmax", "digits", "fedavg", partition="classwise-0.5", least=20, **run)
    assert (option.config.partition, option.config.partition_options) == ("classwise-0.5", {"least": 20})
    apart = option.config.replace(partition="classwise", partition_options={"alpha": 0.5, "least": 20})
    assert identity(option.config) == identity(apart)
    assert make_config(apart) == option.config
    sizes = simulate("softmax", "digits", "fedavg", partition=Sizes([30, 20, 50]), **TINY)
    assert (sizes.config.partition, sizes.config.clients) == ("sizes-30,20,50", 3)
    assert run_name(sizes.config).startswith("fedavg-digits-sizes-30-20-50-2of3-softmax-seed0-")


def test_a_split_file_of_a_partition_that_changes_inputs_changes_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = CliRunner().invoke
    done = call(app, ["data", "split", "digits", "--partition", "noise-0.5", "--clients", "4", "--out", "s.json"])
    assert done.exit_code == 0, done.output
    assert read_split("s.json")["rule"] == {"name": "noise", "level": 0.5}
    by_file = simulate("softmax", "digits", "fedavg", split="s.json", **TINY)
    by_rule = simulate("softmax", "digits", "fedavg", partition="noise-0.5", clients=4, **TINY)
    assert [r.test_loss for r in by_file.history] == [r.test_loss for r in by_rule.history]
    assert call(app, ["data", "show", "s.json"]).exit_code == 0
    assert sorted(p.name for p in Path().glob("*.png")) == ["s-clients.png", "s-seen.png", "s-totals.png"]


def test_runs_whose_clients_see_differently_share_no_batch():
    configs = [Config(algorithm="fedavg", partition="noise-0.5", seed=s) for s in range(2)]
    assert not packable(configs)
    assert packable([c.replace(partition="shards-2") for c in configs])


LEAST = "partition classwise-0.5: 200 clients with at least 10 samples each need 2000, but there are 1438: use fewer"
WRONG: list[tuple[str, dict, str]] = [
    ("classwise-0", {}, "partition classwise: alpha is 0.0, but must be a number above 0, such as 0.5"),
    ("classwise-x", {}, "partition 'classwise-x': 'x' is not a value for alpha; write for example 'classwise-0.5'"),
    ("classwis-0.5", {}, "unknown partition 'classwis-0.5': did you mean 'classwise'?"),
    ("classwise-0.5", {"alpha": 0.1}, "alpha is 0.1, but the partition 'classwise-0.5' says 0.5: leave alpha out"),
    ("classwise-0.5", {"leest": 1}, "unknown option of partition classwise 'leest': did you mean 'least'?"),
    ("classwise-0.5", {"balance": "no"}, "partition classwise: balance is 'no', but must be True or False"),
    ("classwise-0.5", {"clients": 200}, LEAST),
    ("quantity-0.01", {"clients": 50}, "partition quantity-0.01: in 5000 draws some client always had fewer than 10"),
    ("shards-1.5", {}, "partition 'shards-1.5': '1.5' is not a value for k; write for example 'shards-2'"),
    ("shards-20", {}, "partition shards-20: 100 clients with at least 20 samples each need 2000"),
    ("sizes-30,20", {"clients": 5}, "clients is 5, but the partition 'sizes' has 2: leave clients out"),
    ("sizes-30,0", {}, "partition sizes: a client of 0 samples, but must be a whole number from 1"),
    ("sizes-900,900", {}, "partition sizes: 1800 samples asked for, but there are 1438 to train on"),
    ("noise-0.5", {"u": 0.3}, "u is 0.3, but the partition 'noise' has no u"),
    ("dirichlet", {"least": 1}, "partition 'dirichlet' has no options: leave out least"),
]


@pytest.mark.parametrize(("partition", "given", "message"), WRONG)
def test_wrong_partitions_are_refused_in_one_line(partition, given, message):
    settings = {n: v for n, v in given.items() if n in ("clients", "u")}
    settings |= {"partition_options": {n: v for n, v in given.items() if n not in settings}}
    with pytest.raises(FedsmooError) as e:
        assemble(
            make_config({"dataset": "digits", "model": "softmax", "cohort": 1, "partition": partition, **settings})
        )
    assert str(e.value).startswith(message)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("rule", "x", "message"),
    [
        (Noise(), torch.zeros(20, 5, dtype=torch.int64), "partition noise: the samples of 'mine' are text"),
        (Rotation(), torch.zeros(20, 5), "partition rotation-4: the samples of 'mine' are no images"),
        (Rotation(), torch.zeros(20, 4, 6, 1, dtype=torch.uint8), "are 4x6, but only square images turn by 90 degrees"),
    ],
)
def test_inputs_that_cannot_be_changed_are_refused(rule, x, message):
    y = torch.arange(20) % 2
    with pytest.raises(FedsmooError, match=message):
        rule.with_inputs(Dataset("mine", x, y, x, y, 2), [np.arange(10), np.arange(10, 20)], 0)


@pytest.mark.parametrize("kind", ["classwise", "quantity", "shards", "noise", "rotation"])
def test_a_partition_named_without_its_number_has_that_of_the_page(kind):
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    (name,) = re.findall(rf"^\| `({kind}-[\d.]+)` \|", page, re.M)
    assert parse(kind).name == name


def test_numbers_and_several_labels_are_divided_by_what_stands_for_their_class():
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    ranks = x.sum(1).argsort().argsort().numpy()
    numbers = Dataset("numbers", x, x.sum(1), x, x.sum(1), 0, target="numbers")
    config = make_config({"partition": "shards-1", "clients": 10})
    assert all(np.ptp(ranks[i]) == 39 for i in make_clients(config, numbers))  # a tenth of the samples each
    y = torch.eye(4)[torch.arange(400) % 4]
    several = Dataset("several", x, y, x, y, 4, target="labels")
    held = make_clients(config.replace(clients=4), several)
    assert sorted(int(y[i].argmax(1).unique()) for i in held) == [0, 1, 2, 3]


def test_the_picture_of_all_partitions(tmp_path):
    data = load("digits")
    path = draw_rules(data, tmp_path / "rules.svg")
    shown = path.read_text()
    for kind in PARTITIONS:
        assert f"<!-- {kind}" in shown
    kept = Path(__file__).parents[2] / "docs" / "figures" / "partitions.svg"
    assert shown == kept.read_text(), "fedsmoo data rules digits --clients 20 --out docs/figures/partitions.svg"
    with pytest.raises(FedsmooError, match="clients is 3, but the picture needs 4"):
        draw_rules(data, tmp_path / "few.svg", clients=3)


class Louder(Noise):
    """Noise of a user's own."""

    def seen(self, x: torch.Tensor, client: int, clients: int, seed: int) -> torch.Tensor:
        return super().seen(x, client, clients, seed) + 1


def test_a_partition_made_of_one_that_changes_samples_is_refused(tmp_path: Path) -> None:
    """Samples were divided by it, and clients trained on them as they are."""
    with pytest.raises(FedsmooError, match="partition changes what clients see of their samples, as only noise and"):
        simulate("softmax", "digits", "fedavg", clients=4, partition=Louder(0.5), **TINY)
    file = tmp_path / "mine.py"
    file.write_text("import fedsmoo\n\n\nclass Mine(fedsmoo.Rotation):\n    pass\n")
    with pytest.raises(FedsmooError, match=r"mine\.py:Mine' changes what clients see of their samples"):
        simulate("softmax", "digits", "fedavg", clients=4, partition=f"{file}:Mine", **TINY)
