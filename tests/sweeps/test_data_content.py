"""Other content under the name of a published data set never counts as that data set."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsmoo import compare, run, sweep
from fedsmoo.cli import main
from fedsmoo.core import FedsmooError
from fedsmoo.data.catalog import OFFICIAL
from fedsmoo.data.sources import load
from fedsmoo.pages.gather import gather
from fedsmoo.runs.config import FIELDS, Config
from fedsmoo.runs.origin.contents import hash_user_files
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.storage.reader import read_run, state
from fedsmoo.sweeps.grid import run_name
from fedsmoo.sweeps.index import query
from fedsmoo.sweeps.queue import Worker, work
from fedsmoo.sweeps.results import collect, export, from_folder, from_json
from fedsmoo.sweeps.sweep import open_sweep


def noise(path: Path, seed: int, order: np.ndarray | None = None) -> Path:
    g = np.random.default_rng(seed)
    x = g.integers(0, 256, (200, 32, 32, 3), dtype=np.uint8)
    y = np.arange(200) % 10
    order = np.arange(150) if order is None else order
    np.savez(path, x_train=x[:150][order], y_train=y[:150][order], x_test=x[150:], y_test=y[150:])
    return path


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        algorithm="fedavg", model="softmax", dataset="cifar10", data=str(noise(tmp_path / "cifar10.npz", 0)),
        rounds=2, clients=4, cohort=2, local_steps=1, batch_size=5, device="cpu", engine="serial", augment=False,
    )  # fmt: skip


def content(config: Config) -> str:
    return load(config.dataset, config.data).fingerprint.short


def test_noise_in_an_npz_called_cifar10_is_not_cifar10(config: Config, tmp_path: Path) -> None:
    planned = identity(config)  # before anybody read the file
    Run.begin(config, tmp_path / "run").go()
    result = from_folder(tmp_path / "run")
    assert result.identity == identity(config, {"data_content": content(config)}) != planned
    assert result.facts["data"]["kind"] == "other"
    [row] = query(tmp_path)
    assert row["identity"] == result.identity
    assert row["data_used"] == f"cifar10 (other content {content(config)[:8]})"
    [file] = export([tmp_path / "run"], tmp_path / "results")
    assert file.stem == run_name(config, {"data_content": content(config)})
    assert from_json(file).identity == result.identity
    assert planned not in collect([tmp_path], tmp_path / "results")


def test_official_content_keeps_the_identity_of_before(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = identity(config)
    monkeypatch.setitem(OFFICIAL, "cifar10", load("cifar10", config.data).fingerprint.content)
    Run.begin(config, tmp_path / "run").go()
    result = from_folder(tmp_path / "run")
    assert result.identity == planned == "2482c77da3c6a293"
    assert (result.facts["data"]["kind"], "contents" in result.facts) == ("official", False)


def test_a_sweep_keeps_contents_apart_and_makes_each_once(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Config] = []
    worker = Worker(begun=lambda c, folder, n: begun.append(c))
    first = work([config], tmp_path / "runs", worker)
    assert work([config], tmp_path / "runs", worker).finished == first.finished
    assert len(begun) == 1
    assert first.finished == [tmp_path / "runs" / run_name(config, {"data_content": content(config)})]
    other = config.replace(data=str(noise(tmp_path / "other.npz", 1)))
    second = work([config, other], tmp_path / "runs", worker)
    assert begun == [config, other]
    assert len(set(second.finished)) == 2
    monkeypatch.setitem(OFFICIAL, "cifar10", load("cifar10", other.data).fingerprint.content)
    third = work([other], tmp_path / "runs", worker)  # as official data it is another run than as other content
    assert third.finished == [tmp_path / "runs" / run_name(other)]
    assert len(begun) == 3


def test_two_places_in_one_sweep_are_two_runs_if_their_content_is(config: Config, tmp_path: Path) -> None:
    noise(tmp_path / "same.npz", 0)
    noise(tmp_path / "other.npz", 1)
    values = {k: v for k, v in config.to_dict().items() if v not in (FIELDS[k].default, {}) and k != "data"}
    sweep = open_sweep({**values, "data": [str(tmp_path / f"{n}.npz") for n in ("cifar10", "same", "other")]})
    assert len(sweep.folders(tmp_path)) == 2


def test_a_finished_folder_of_other_content_is_not_taken_for_the_official_cell(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    official = tmp_path / "runs" / run_name(config)
    Run.begin(config, official).go()
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path / "empty"))
    plan, said = config.replace(data=None), []  # as on a machine with the official files, or none
    report = work([plan], tmp_path / "runs", Worker(failed=lambda c, p, why: said.append(why)))
    assert report.finished == []
    assert list(report.failed) == [official]
    assert f"(data_content was {content(config)}, is the official one): move it away" in said[0]
    assert state(official) == "finished"  # and nothing was written there


def test_a_run_is_not_resumed_on_other_data(config: Config, tmp_path: Path) -> None:
    for name in ("cut", "unsaved"):
        every = 1 if name == "cut" else 0
        run = Run.begin(config, tmp_path / name)
        if name == "cut":
            run.go(stop=lambda: True, save_every=every)
    noise(Path(str(config.data)), 0, np.arange(150)[::-1])
    for name in ("cut", "unsaved"):
        with pytest.raises(FedsmooError, match=f"is not what .*{name} was started with: the order of the samples"):
            reopen(tmp_path / name)
    noise(Path(str(config.data)), 1)
    for name in ("cut", "unsaved"):
        with pytest.raises(FedsmooError, match=f"is not what .*{name} was started with: the content"):
            reopen(tmp_path / name)
    noise(Path(str(config.data)), 0)
    for name in ("cut", "unsaved"):
        reopen(tmp_path / name).go()
    assert from_folder(tmp_path / "cut").agrees(from_folder(tmp_path / "unsaved"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda v: v["data"].update(train="0" * 64),
        lambda v: v["data"].update(train="zz"),
        lambda v: v["data"].pop("order"),
        lambda v: v["data"].update(kind="official"),
        lambda v: v["data"].update(kind="mine"),
        lambda v: v.update(data="x"),
        lambda v: v.pop("contents"),
        lambda v: v["contents"].update(data_content="0" * 16),
    ],
)
def test_a_damaged_fingerprint_is_refused_wherever_it_is_read(config: Config, tmp_path: Path, damage) -> None:
    Run.begin(config, tmp_path / "run").go()
    [file] = export([tmp_path / "run"], tmp_path / "results")
    notes = tmp_path / "run" / "started.json"
    for path, read in ((file, lambda: from_json(file)), (notes, lambda: from_folder(notes.parent))):
        value = json.loads(path.read_text())
        damage(value)
        path.write_text(json.dumps(value))
        with pytest.raises(FedsmooError, match="is damaged: the fingerprint of its data"):
            read()


def test_results_of_before_without_a_fingerprint_keep_their_identity(config: Config, tmp_path: Path) -> None:
    Run.begin(config, tmp_path / "run").go()
    [file] = export([tmp_path / "run"], tmp_path / "results")
    value = json.loads(file.read_text())
    file.write_text(json.dumps({k: v for k, v in value.items() if k not in ("data", "contents")}))
    assert from_json(file).identity == identity(config)


def test_a_table_names_other_content_and_never_mixes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    noise(tmp_path / "noise.npz", 0)
    name = load("cifar10", "noise.npz").fingerprint.short[:8]
    words = ["table", "accuracy", "--model", "softmax", "--device", "cpu", "--rounds", "2", "--clients", "4",
             "--cohort", "2", "--precision", "fp32", "--local-epochs", "1", "--engine", "serial",
             "--augment", "false", "--methods", "FedAvg",
             "--columns", "10%-of-100 cifar10.dirichlet-0.1"]  # fmt: skip

    def shown(*more: str) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        assert not ended.value.code
        said = capsys.readouterr()
        *lines, step = said.err.splitlines(keepends=True)
        assert step.startswith("next: fedsmoo table accuracy ")
        return said.out, "".join(lines)

    on_noise, _ = shown("--data", "noise.npz")
    assert f"cifar10 (other content {name})" in on_noise
    assert shown("--data", "noise.npz", "--no-run")[0] == on_noise
    assert shown("--no-run")[0] == on_noise  # nothing else was measured
    noise(tmp_path / "official.npz", 1)
    monkeypatch.setitem(OFFICIAL, "cifar10", load("cifar10", "official.npz").fingerprint.content)
    official, said = shown("--data", "official.npz")
    assert "other content" not in official
    assert f"1 run on cifar10 (other content {name}) not shown here" in said
    assert shown("--no-run") == (official, said.splitlines(keepends=True)[-1])
    assert shown("--data", "noise.npz", "--no-run")[0] == on_noise


@pytest.fixture
def own(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of a run on what a function returns that reads ``x.npy``; with an argument ``seed`` it adds that."""
    seeded, code = request.param, tmp_path / "mine.py"
    code.write_text(
        "from pathlib import Path\nimport numpy as np\n\n"
        f"def data({'seed' if seeded else ''}):\n"
        f"    x = np.load(Path(__file__).with_name('x.npy')){' + seed' if seeded else ''}\n"
        "    return x[:40], np.arange(40) % 2, x[40:], np.arange(20) % 2\n"
    )
    write(tmp_path, 0)
    few = {"clients": 4, "cohort": 2, "rounds": 1, "local_steps": 1, "engine": "serial", "device": "cpu"}
    return {"model": "softmax", "dataset": f"{code}:data", **few}


def write(folder: Path, seed: int) -> None:
    np.save(folder / "x.npy", np.random.default_rng(seed).random((60, 3), np.float32))


both = pytest.mark.parametrize("own", [False, True], ids=["plain", "seeded"], indirect=True)


@both
def test_what_ones_own_function_returns_is_part_of_what_a_run_is(own: dict[str, Any], tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "again", "other")]
    for folder in folders:
        write(tmp_path, 7 * (folder.name == "other"))
        run(own, out=folder)
    ids = [from_folder(folder).identity for folder in folders]
    assert ids[0] == ids[1] != ids[2]
    assert [read_run(folder).identity for folder in folders] == ids
    assert len(export(folders, tmp_path / "results")) == 2
    assert {from_json(file).identity for file in (tmp_path / "results").glob("*.json")} == set(ids)
    edit(folders[2] / "started.json", lambda v: v["contents"].update(samples_content="0" * 16))
    with pytest.raises(FedsmooError, match="is damaged: the fingerprint of its data"):
        from_folder(folders[2])


@both
def test_a_comparison_goes_on_with_the_samples_that_it_began_with_only(own: dict[str, Any], tmp_path: Path) -> None:
    """With noise that clients see, which is another one for every seed."""
    for seeds in ([0], [0, 1]):
        found = compare(["fedavg"], seeds=seeds, out=tmp_path / "runs", partition="noise-0.1", **own)
        assert "cannot be compared" not in found.text
    write(tmp_path, 7)
    with pytest.raises(FedsmooError, match=r"what .*mine\.py:data reads was edited since .*fedavg-seed0 was begun"):
        compare(["fedavg"], seeds=[0, 1, 2], out=tmp_path / "runs", partition="noise-0.1", **own)
    assert not (tmp_path / "runs" / "fedavg-seed2").exists()
    folders = [tmp_path / "runs" / f"fedavg-seed{seed}" for seed in range(2)]
    assert len({each["group"] for each in gather(folders)["runs"]}) == 1


@both
def test_a_sweep_begins_again_on_other_samples(own: dict[str, Any], tmp_path: Path) -> None:
    table = {**own, "algorithm": "fedavg", "seed": [0, 1]}
    first = sweep(table, out=tmp_path / "runs").finished
    assert sweep(table, out=tmp_path / "runs").finished == first
    write(tmp_path, 7)
    second = sweep(table, out=tmp_path / "runs").finished
    assert len({*first, *second}) == 4
    write(tmp_path, 0)
    assert sweep(table, out=tmp_path / "runs").finished == first


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@both
def test_runs_of_before_that_did_not_note_samples_apart_go_on(own: dict[str, Any], tmp_path: Path) -> None:
    """Their notes have the fingerprint of the data, which their name and identity do not know."""
    table = {**own, "algorithm": "fedavg", "seed": [0, 1]}
    before = []
    for path in sweep(table, out=tmp_path / "runs").finished:
        edit(path / "started.json", lambda v: v["contents"].pop("samples_content"))
        config = read_run(path).config
        assert read_run(path).identity == identity(config, hash_user_files(config))
        before.append(path.rename(path.with_name(run_name(config, hash_user_files(config)))))
    assert sweep(table, out=tmp_path / "runs").finished == before
    write(tmp_path, 7)
    assert not {*sweep(table, out=tmp_path / "runs").finished} & {*before}


@pytest.mark.parametrize("own", [False], indirect=True)
def test_folders_of_before_with_samples_of_two_kinds_are_told_apart(own: dict[str, Any], tmp_path: Path) -> None:
    folders = [tmp_path / "runs" / f"fedavg-seed{seed}" for seed in range(3)]
    for seed, folder in enumerate(folders):
        write(tmp_path, 0 if seed < 2 else 7)
        run(own, algorithm="fedavg", seed=seed, out=folder)
        edit(folder / "started.json", lambda v: v["contents"].pop("samples_content"))
    said = compare(["fedavg"], seeds=[0, 1, 2], out=tmp_path / "runs", **own).text
    assert "changed between FedAvg of seed 0 and FedAvg of seed 2" in said
    assert len({each["group"] for each in gather(folders)["runs"]}) == 2


@both
def test_a_function_that_draws_from_no_seed_is_said(own: dict[str, Any], tmp_path: Path) -> None:
    """What was read before the runs says nothing of what each of them will read."""
    code, said = Path(str(own["dataset"]).removesuffix(":data")), list[str]()
    drawn = "    x = x + np.random.default_rng().random(x.shape, 'f')\n    return"
    code.write_text(code.read_text().replace("    return", drawn))
    found = compare(["fedavg", "fedprox"], out=tmp_path / "runs", note=said.append, **own)
    assert "between FedAvg of seed 0 and FedProx of seed 0" in found.text
    assert [line.split(":")[0] for line in said] == ["fedavg-seed0", "fedprox-seed0"]
    assert all(
        line.endswith("mine.py:data reads was edited since this comparison began, or it draws without a seed")
        for line in said
    )
