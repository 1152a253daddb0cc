"""Data in every form that docs/data.md has in its table: the content, the clients and the numbers of four arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsmoo import read_data, simulate
from fedsmoo.data.forms.flower import partitioner as partitioner_of
from fedsmoo.data.forms.flower import to_huggingface
from fedsmoo.data.sources import load
from fedsmoo.runs.storage.reader import read_run

from .given import CUT, FORMS, NATURAL, TESTED, X, Y, arrays, huggingface, made, module


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path / "cache"))


def test_the_table_of_the_page_has_these_forms():
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
    rows = page.split("\n## Bring your data\n")[1].split("\n|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert [row.split("|")[1].strip() for row in rows] == list(FORMS)
    assert len(FORMS) >= 12


@pytest.mark.filterwarnings("ignore:.*sequences differ in length")
@pytest.mark.parametrize("name", FORMS)
def test_a_form_holds_what_the_arrays_hold_and_trains_to_the_same_numbers(name, tmp_path):
    form = FORMS[name]
    data, same = made(form, tmp_path), arrays(form)
    assert data.fingerprint == same.fingerprint
    assert (data.classes, data.inputs) == (same.classes, same.inputs)
    assert data.name == "custom" or name.endswith(":PATH")
    assert (data.mean, data.std) == (same.mean, same.std)
    if form.natural:
        assert [i.tolist() for i in data.natural] == [i.tolist() for i in NATURAL]
        assert not form.tested or [i.tolist() for i in data.natural_test] == [
            np.flatnonzero(k == TESTED).tolist() for k in range(3)
        ]
    for engine in ("serial", "vmap", "batched"):
        numbers = {"rounds": 2, "cohort": 2, "local_steps": 2, "batch_size": 8, "lr": 0.1, "engine": engine}
        options = form.options if engine == "serial" else {}  # by their names, or together
        together = {} if options else {"dataset_options": form.options}
        here = simulate(module(data), form.make(tmp_path), "fedavg", client_indices=NATURAL, **options, **together,
                        **numbers)  # fmt: skip
        there = simulate(module(same), same, "fedavg", client_indices=NATURAL, **numbers)
        assert torch.equal(here.server.w, there.server.w)
        assert [r.test_loss for r in here.history] == [r.test_loss for r in there.history]


def test_a_function_in_a_file_may_return_any_form_and_runs_of_one_content_are_one_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("xy.npz", x=X, y=Y)
    Path("mine.py").write_text(
        "import numpy as np, pandas as pd\n"
        "def rows(seed):\n"
        "    xy = np.load('xy.npz')\n"
        "    return pd.DataFrame(xy['x']).assign(label=xy['y'], client=xy['y'] % 2)\n"
    )
    data = load("mine.py:rows")
    assert torch.equal(data.x_train, torch.from_numpy(X))
    assert [i.tolist() for i in data.natural] == [np.flatnonzero(k == Y % 2).tolist() for k in range(2)]
    identities = set()
    for name in ("four arrays", "Dataset of dicts", "DataFrame", "HuggingFace features"):
        form, out = FORMS[name], tmp_path / name
        few = {"partition": "iid", "clients": 4, "cohort": 2, "rounds": 1, "local_steps": 1}
        simulate("softmax", form.make(tmp_path), "fedavg", out=out, **few, **form.options)
        identities.add(read_run(out).identity)
    assert len(identities) == 1


def test_flowers_federated_data_set_and_the_way_back(tmp_path, monkeypatch):
    from flwr_datasets.partitioner import IidPartitioner, NaturalIdPartitioner

    partitioner = IidPartitioner(num_partitions=4)
    partitioner.dataset = huggingface(X, Y)
    data = read_data(partitioner)
    assert [len(i) for i in data.natural] == [15] * 4
    assert data.y_train[data.natural[1]].tolist() == partitioner.load_partition(1)["label"][:]

    class Federated:  # of which a FederatedDataset is one: it would look for a hub
        partitioners = {"train": partitioner}

        def load_partition(self, number):
            return partitioner.load_partition(number)

        def load_split(self, name):
            return huggingface(X[:9], Y[:9])

    assert len(read_data(Federated()).x_test) == 9
    back = NaturalIdPartitioner(partition_by="client")
    back.dataset = to_huggingface(read_data((X, Y)), NATURAL)
    again = read_data((back, (X[CUT:], Y[CUT:])))
    assert [i.tolist() for i in again.natural] == [i.tolist() for i in NATURAL]
    assert again.fingerprint == read_data(((X[:CUT], Y[:CUT]), (X[CUT:], Y[CUT:]))).fingerprint
    ours = [np.array([3, 1, 4]), np.array([15, 9, 2, 6])]
    split = partitioner_of(ours)
    split.dataset = back.dataset
    assert split.num_partitions == 2
    assert split.is_dataset_assigned()
    assert [np.asarray(split.load_partition(k)["x"]).tolist() for k in range(2)] == [X[i].tolist() for i in ours]
