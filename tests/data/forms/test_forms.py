"""Data in every form that docs/data.md has in its table: the content, the clients and the numbers of four arrays."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import fedsmoo
from fedsmoo import FedsmooError, read_data, simulate
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.data.check import from_arrays
from fedsmoo.data.forms.flower import partitioner as partitioner_of
from fedsmoo.data.forms.flower import to_huggingface
from fedsmoo.data.sources import load
from fedsmoo.runs.storage.reader import read_run

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((60, 5)).astype(np.float32), np.arange(60) % 3
IMAGES = RNG.integers(0, 256, (60, 6, 6, 3), dtype=np.uint8)
CUT, CLIENTS = 40, (10, 14, 16)  # training samples, and how many of them each client has
ENDS = np.cumsum(CLIENTS)
NATURAL = [np.arange(end - n, end) for n, end in zip(CLIENTS, ENDS, strict=True)]
WHO = np.repeat(np.arange(3), CLIENTS)
TESTED = np.array([0] * 5 + [1] * 7 + [2] * 8)  # whose the test samples are


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path / "cache"))


class Pairs(Dataset):
    """Items that are made when they are asked for, as most data sets of PyTorch do."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], int(self.y[i])


class Named(Pairs):
    def __getitem__(self, i):
        return {"features": torch.from_numpy(self.x[i]), "label": torch.tensor(int(self.y[i])), "file": f"{i}.png"}


class Pictures(Pairs):
    """As torchvision's: ``.data`` and ``.targets``, and PIL images of them."""

    def __init__(self, data, targets):
        self.data, self.targets = data, targets
        super().__init__(data, targets)

    def __getitem__(self, i):
        from PIL import Image

        return Image.fromarray(self.data[i]), int(self.targets[i])


def halves(make: Callable[..., Any], x: np.ndarray = X) -> tuple[Any, Any]:
    return make(x[:CUT], Y[:CUT]), make(x[CUT:], Y[CUT:])


def tensors(x: np.ndarray, y: np.ndarray) -> TensorDataset:
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


def parts_of_one() -> tuple[Any, Any]:
    whole = Pairs(X, Y)
    return ConcatDataset([Subset(whole, range(15)), Subset(tensors(X, Y), range(15, CUT))]), Subset(
        whole, range(CUT, 60)
    )


FRAME = pd.DataFrame(X, columns=list("abcde")).assign(kind=Y)


def frames() -> tuple[Any, Any]:
    table = FRAME.assign(hospital=[f"h{i}" for i in [*WHO, *TESTED]])
    return table[:CUT], table[CUT:]


def clients_sets() -> dict[str, Any]:
    tests = np.split(np.arange(CUT, 60), np.flatnonzero(np.diff(TESTED)) + 1)
    makes = (tensors, Pairs, lambda x, y: (x, y))
    both = zip(makes, NATURAL, tests, strict=True)
    return {f"phone {k}": (make(X[i], Y[i]), make(X[t], Y[t])) for k, (make, i, t) in enumerate(both)}


def huggingface(x: np.ndarray, y: np.ndarray, **more: Any) -> Any:
    """A data set of HuggingFace's, with classes by name."""
    from datasets import ClassLabel, Features, List, Value
    from datasets import Dataset as Table

    kinds = {"features": List(Value("float32"), length=5), "label": ClassLabel(names=["ant", "bee", "cat"])}
    features = Features(kinds | {n: Value("int64") for n in more})
    return Table.from_dict({"features": x, "label": y, **more}, features=features)


def huggingface_images(x: np.ndarray, y: np.ndarray) -> Any:
    from datasets import Dataset as Table
    from datasets import Features, Image, Value
    from PIL import Image as Picture

    features = Features({"image": Image(), "label": Value("int64")})
    return Table.from_dict({"image": [Picture.fromarray(i) for i in x], "label": y}, features=features)


def huggingface_parts(make: Callable[..., Any], x: np.ndarray = X) -> Any:
    from datasets import DatasetDict

    return DatasetDict(zip(("train", "test"), halves(make, x), strict=True))


# What tokenised text holds: tokens, and which of them count.
LENGTHS = 3 + np.arange(60) % 5
TOKENS = [[1 + (7 * i + t) % 20 for t in range(n)] for i, n in enumerate(LENGTHS)]
PADDED = np.zeros((60, 2, 7), np.int64)
for row, tokens in zip(PADDED, TOKENS, strict=True):
    row[:, : len(tokens)] = tokens, [1] * len(tokens)


def huggingface_tokens() -> Any:
    from datasets import Dataset as Table

    table = Table.from_dict({"text": ["..."] * 60, "input_ids": TOKENS, "attention_mask": [[1] * n for n in LENGTHS],
                             "label": Y})  # fmt: skip
    return table.select(range(CUT)), table.select(range(CUT, 60))


def flower() -> Any:
    """A partitioner of Flower's, which numbers its clients in an order of its own, and a test part."""
    from flwr_datasets.partitioner import NaturalIdPartitioner

    partitioner = NaturalIdPartitioner(partition_by="who")
    partitioner.dataset = huggingface(X[:CUT], Y[:CUT], who=WHO)
    return partitioner, huggingface(X[CUT:], Y[CUT:], who=TESTED)


def leaf_folder(folder: Path) -> str:
    """Files as LEAF writes them: some users in each."""
    for part, who, start in (("train", WHO, 0), ("test", TESTED, CUT)):
        (folder / "leaf" / part).mkdir(parents=True, exist_ok=True)
        for number, users in enumerate(([2], [0, 1])):
            mine = {f"u{u}": start + np.flatnonzero(who == u) for u in users}
            data = {u: {"x": X[i].astype(float).tolist(), "y": Y[i].tolist()} for u, i in mine.items()}
            table = {"users": list(data), "num_samples": [len(i) for i in mine.values()], "user_data": data}
            (folder / "leaf" / part / f"all_data_{number}.json").write_text(json.dumps(table))
    return f"leaf:{folder / 'leaf'}"


def table_files(folder: Path) -> str:
    (folder / "tables").mkdir(exist_ok=True)
    train, test = frames()
    train.to_parquet(folder / "tables" / "train.parquet")
    test.to_parquet(folder / "tables" / "test.parquet")
    return f"table:{folder / 'tables'}"


@dataclasses.dataclass(frozen=True)
class Form:
    """Data in a form, how it is read, and what it holds as arrays."""

    make: Callable[[Any], Any]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    x: np.ndarray = dataclasses.field(default_factory=lambda: X, repr=False)
    natural: bool = False
    tested: bool = True  # clients have test samples of their own
    inputs: tuple[str, ...] | None = None


# By the names that the table of docs/data.md has for them.
FORMS = {
    "four arrays": Form(lambda _: (X[:CUT], Y[:CUT], X[CUT:], Y[CUT:])),
    "pairs of arrays": Form(lambda _: halves(lambda x, y: (x, y.tolist()))),
    "TensorDataset": Form(lambda _: halves(tensors)),
    "Dataset of pairs": Form(lambda _: halves(Pairs)),
    "Dataset of dicts": Form(lambda _: dict(zip(("train", "test"), halves(Named), strict=True))),
    "Subset, ConcatDataset": Form(lambda _: parts_of_one()),
    "PIL images": Form(lambda _: halves(Pictures, IMAGES), x=IMAGES),
    "DataFrame": Form(lambda _: frames(), {"y": "kind", "client": "hospital"}, natural=True),
    "HuggingFace features": Form(lambda _: huggingface_parts(huggingface)),
    "HuggingFace images": Form(lambda _: huggingface_parts(huggingface_images, IMAGES), x=IMAGES),
    "HuggingFace tokens": Form(lambda _: huggingface_tokens(), x=PADDED, inputs=("input_ids", "attention_mask")),
    "a set for each client": Form(lambda _: clients_sets(), natural=True),
    "Flower partitioner": Form(lambda _: flower(), natural=True, tested=False),
    "leaf:PATH": Form(leaf_folder, natural=True),
    "table:PATH": Form(table_files, {"y": "kind", "client": "hospital"}, natural=True),
}


def test_the_table_of_the_page_has_these_forms():
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
    rows = page.split("\n## Bring your data\n")[1].split("\n|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert [row.split("|")[1].strip() for row in rows] == list(FORMS)
    assert len(FORMS) >= 12


def arrays(form: Form) -> fedsmoo.Dataset:
    return from_arrays(form.x[:CUT], Y[:CUT], form.x[CUT:], Y[CUT:], inputs=form.inputs)


class Bag(nn.Module):
    """The mean of the embedded tokens that count, as a model of text takes its inputs."""

    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(21, 6), nn.Linear(6, 3)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None]
        return self.last((self.words(input_ids) * mask).sum(1) / mask.sum(1))


def module(data: fedsmoo.Dataset) -> nn.Module:
    torch.manual_seed(0)
    return (
        Bag()
        if data.inputs
        else nn.Sequential(nn.Flatten(), nn.Linear(data.x_train[0].numel(), 8), nn.Tanh(), nn.Linear(8, 3))
    )


def made(form: Form, folder: Path) -> fedsmoo.Dataset:
    value = form.make(folder)
    return load(value, options=form.options) if isinstance(value, str) else read_data(value, **form.options)


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


def test_columns_by_rule_and_by_name():
    from sklearn.datasets import load_iris

    iris = load_iris()  # a dict of many things
    assert torch.equal(read_data(iris).x_train, torch.from_numpy(iris.data))
    named = read_data({"a": X[:, 0], "b": X[:, 1], "out": Y}, y="out", x="b,a")
    assert torch.equal(named.x_train, torch.from_numpy(X[:, [1, 0]]))
    several = read_data(FRAME, x=["a"], y=["b", "c"])
    assert (several.target, several.classes) == ("numbers", 0)
    assert torch.equal(several.y_train, torch.from_numpy(X[:, 1:3]))
    labels = read_data(FRAME.assign(p=Y > 0, q=Y > 1), x="a", y="p,q", target="labels")
    assert labels.y_train.tolist() == [[float(k > 0), float(k > 1)] for k in Y]


class Fields(Pairs):
    def __getitem__(self, i):
        return {**{name: float(self.x[name].iloc[i]) for name in self.x.columns}, "label": int(self.y[i])}


def in_order(columns: str, rows: slice) -> pd.DataFrame:
    return pd.DataFrame(X, columns=list("abcde"))[rows][list(columns)]


@pytest.mark.parametrize("form", ["frame", "arrays", "dict", "items", "huggingface", "clients"])
def test_a_column_is_known_by_its_name_in_every_part(form, tmp_path):
    """The test part, or another client, has the columns of the first part in another order, and one more."""
    train, other = slice(0, CUT), slice(CUT, 60)
    a, b = in_order("abcde", train), in_order("edcba", other).assign(more=7.0)
    frames = a.assign(label=Y[train]), b.assign(label=Y[other])
    value: Any = frames
    if form == "arrays":
        value = (a, Y[train], b, Y[other])
    elif form == "dict":
        value = tuple({name: frame[name].to_numpy() for name in frame.columns} for frame in frames)
    elif form == "items":
        value = (Fields(a, Y[train]), Fields(b, Y[other]))
    elif form == "huggingface":
        value = tuple(pytest.importorskip("datasets").Dataset.from_pandas(frame) for frame in frames)
        value = tuple(part.remove_columns([n for n in part.column_names if n.startswith("__")]) for part in value)
    elif form == "clients":
        value = list(frames)
    data = read_data(value)
    found = data.x_train if form == "clients" else torch.cat([data.x_train, data.x_test])
    assert torch.equal(found.float(), torch.from_numpy(X))
    if form != "clients":
        with pytest.raises(FedsmooError, match=r"unknown column of data: .*'c'"):
            read_data((a, Y[train], b.drop(columns="c"), Y[other]))


@pytest.mark.parametrize("form", ["clients", "a test part", "test parts"])
def test_tables_behind_an_array_have_one_order(form):
    """They were compared with the first part alone, which has no columns: each kept its own order."""
    rows = [slice(k, k + 15) for k in range(0, 60, 15)]
    parts: list[Any] = [in_order(names, r) for names, r in zip(("abcde", "abcde", "edcba", "edcba"), rows, strict=True)]
    one, two, three, four = [(x, Y[r]) for x, r in zip([X[rows[0]], *parts[1:]], rows, strict=True)]
    value: Any = {
        "clients": [one, two, three, four],
        "a test part": ([one, two, three], four),
        "test parts": ([one, two], [three, four]),
    }[form]
    data = read_data(value)
    assert torch.equal(data.x_train.float(), torch.from_numpy(X[: len(data.x_train)]))
    if form != "clients":
        assert torch.equal(data.x_test.float(), torch.from_numpy(X[len(data.x_train) :]))


def test_an_array_among_tables_of_another_order_is_refused():
    """Nobody says which column is which in it."""
    tables = [(in_order(names, slice(0, 20)), Y[:20]) for names in ("abcde", "edcba")]
    with pytest.raises(FedsmooError, match="data: test part: client 0: x names a column, but two arrays have none"):
        read_data(([tables[0], tables[0]], [(X[:20], Y[:20]), tables[1]]))


def test_numbers_of_rows_in_a_file_are_said(tmp_path):
    in_order("abcde", slice(0, CUT)).assign(label=Y[:CUT]).to_csv(tmp_path / "mine.csv")
    with pytest.warns(FedsmooWarning, match=r"first column of mine.csv has no name and holds the numbers of the rows"):
        assert load(f"table:{tmp_path / 'mine.csv'}").x_train.shape == (CUT, 6)


@pytest.mark.parametrize("form", [pd.DataFrame, dict], ids=["table", "arrays"])
def test_a_feature_that_is_taken_for_the_whole_sample_is_said(form):
    columns = {"x": X[:, 0], "z": X[:, 1], "label": Y, "client": np.arange(len(Y)) % 3}
    said = "data: samples are the column 'x' alone, without 'z': name all columns to learn from, x="
    with pytest.warns(FedsmooWarning, match=said):
        assert read_data(form(columns)).x_train.shape == (len(Y), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_data(form(columns), x=["x", "z"]).x_train.shape == (len(Y), 2)
        assert read_data(form({n: v for n, v in columns.items() if n != "z"})).x_train.shape == (len(Y), 1)


def test_text_to_be_learnt_is_classes_by_name():
    names = np.array(["cat", "ant", "bee"])
    data = read_data(FRAME.assign(kind=names[Y]), y="kind", test=0.25)
    assert data.class_names == ("ant", "bee", "cat")
    both = sorted(zip(torch.cat([data.x_train, data.x_test])[:, 0].tolist(),
                      torch.cat([data.y_train, data.y_test]).tolist(), strict=True))  # fmt: skip
    assert both == sorted(zip(X[:, 0].tolist(), np.array([2, 0, 1])[Y].tolist(), strict=True))
    assert len(data.x_test) == 15


def test_a_share_to_test_on_is_the_same_every_time_and_of_each_client():
    first, again = (read_data(FRAME.assign(client=[*WHO, *TESTED]), y="kind", test=0.3) for _ in range(2))
    assert first.fingerprint == again.fingerprint
    whole = np.bincount([*WHO, *TESTED])
    tested = [round(0.3 * n) for n in whole]
    assert [len(i) for i in first.natural_test] == tested
    assert [len(i) for i in first.natural] == [n - k for n, k in zip(whole, tested, strict=True)]


def test_grey_images_among_colour_images_become_colour_images():
    from PIL import Image

    grey = [Image.fromarray(i[..., 0] if k > 30 else i) for k, i in enumerate(IMAGES)]
    for images in (grey, grey[::-1]):
        data = read_data(Pairs(images, Y))
        assert data.x_train.shape == (60, 6, 6, 3)
        pixels = data.x_train if images is grey else data.x_train.flip(0)
        assert torch.equal(pixels[40], torch.from_numpy(IMAGES[40][..., :1]).expand(6, 6, 3))
        assert torch.equal(pixels[3], torch.from_numpy(IMAGES[3]))


def test_huggingface_keeps_names_takes_any_format_and_pads_labels():
    from datasets import Dataset as Table

    named = huggingface(X, Y % 2)
    assert read_data(named).class_names == ("ant", "bee", "cat")  # though nobody is a cat
    for kind in ("torch", "numpy", "pandas"):
        assert read_data(named.with_format(kind)).fingerprint == read_data((X, Y % 2)).fingerprint
    scaled = named.with_transform(lambda rows: {"features": [2 * np.array(x) for x in rows["features"]],
                                                "label": rows["label"]})  # fmt: skip
    assert torch.equal(read_data(scaled).x_train, 2 * torch.from_numpy(np.array(named["features"])))
    tagged = Table.from_dict({"input_ids": [[5, 6, 7], [8]], "labels": [[0, 1, 1], [1]]})
    with pytest.warns(FedsmooWarning, match="padded to 3, the longest, with the pad id 9"):
        data = read_data(tagged, pad=9)
    assert data.x_train.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert data.y_train.tolist() == [[0, 1, 1], [1, -100, -100]]
    rng = np.random.default_rng()
    noisy = named.with_transform(lambda rows: {**rows, "features": [x + rng.normal(size=5) for x in rows["features"]]})
    with pytest.raises(FedsmooError, match="is another one each time it is read"):
        read_data(noisy)


def test_several_labels_beside_sequences_of_tokens_are_not_labels_of_positions():
    tagged = table(input_ids=[[5, 6, 7, 8], [9, 2], [3]], labels=[[0, 1], [1, 1], [0, 0]])
    for options, kind in (({"target": "labels"}, "labels"), ({"target": "numbers"}, "numbers")):
        with pytest.warns(FedsmooWarning, match="padded to 4"):
            data = read_data(tagged, **options)
        assert (data.target, data.y_train.tolist()) == (kind, [[0, 1], [1, 1], [0, 0]])


def test_columns_of_targets_are_known_by_their_names_and_another_order_of_rows_is_said():
    x, y = pd.DataFrame({"a": [1.0, 2.0, 3.0]}), pd.DataFrame({"p": [0.0, 1.0, 1.0], "q": [1.0, 0.0, 1.0]})
    data = read_data({"x_train": x, "y_train": y, "x_test": x, "y_test": y[["q", "p"]]}, target="labels")
    assert torch.equal(data.y_test, data.y_train)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_data((x, pd.Series([0, 1, 1])))
        read_data((x, pd.Series([0, 1, 1], index=[7, 8, 9])))  # rows of other names
    for value in ((x, pd.Series([0, 1, 1], index=[2, 1, 0])), (x, y.p > 0, x, (y.p > 0)[::-1])):
        with pytest.warns(
            FedsmooWarning, match=r"the same names \(index\) in another order, and go together by their place"
        ):
            read_data(value)


@pytest.mark.parametrize("declared", [True, False])
def test_bytes_in_columns_of_huggingface_are_images(declared):
    """Its package has them as int64, which are tokens."""
    from datasets import Array3D, Features, Value

    images = np.random.default_rng(2).integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
    features = Features({"x": Array3D((4, 5, 3), "uint8"), "label": Value("int64")}) if declared else None
    columns = {"x": images if declared else list(images), "label": Y[:6]}
    found = read_data(type(table(a=[1])).from_dict(columns, features=features))
    assert found.fingerprint == read_data((images, Y[:6])).fingerprint
    tokens = table(x=[np.array([1, 2], np.uint8)] * 6, label=Y[:6])
    assert read_data(tokens).x_train.dtype == torch.int64


def test_arrays_may_have_the_other_order_of_bytes():
    swapped = read_data((X.astype(">f4"), Y.astype(">i2")))
    assert swapped.fingerprint == read_data((X.astype("f4"), Y)).fingerprint


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


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class Triples(Pairs):
    def __getitem__(self, i):
        return self.x[i], int(self.y[i]), i


class Broken(Pairs):
    def __getitem__(self, i):
        return self.x[i], {"label": 3}[f"{i}"]


class Sizes(Pairs):
    def __getitem__(self, i):
        return np.zeros((6, 6 + i % 2, 3), np.uint8), 0


class Words(Pairs):
    def __getitem__(self, i):
        return "a text", 0


class Late(Named):
    def __getitem__(self, i):
        return super().__getitem__(i) if i < 20 else {"label": 0}


class Mixed(Pairs):
    """Lists of whole numbers, then of others; grey arrays, then coloured ones."""

    def __getitem__(self, i):
        if self.x.dtype == np.uint8:
            return np.zeros((4, 4, 1 if i < 3 else 3), np.uint8), 0
        return ([1, 2, 3] if i < 3 else [1.5, 2.7]), 0


def table(**columns: Any) -> Any:
    from datasets import Dataset as Table

    return Table.from_dict(columns)


def leaf_of(content: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / "leaf" / "train").mkdir(parents=True)
        (folder / "leaf" / "train" / "a.json").write_text(content)
        return f"leaf:{folder / 'leaf'}"

    return make


def csv_of(content: str | bytes) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / "a.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
        return f"table:{folder / 'a.csv'}"

    return make


def unassigned() -> Any:
    from flwr_datasets.partitioner import IidPartitioner

    return IidPartitioner(3)


TWO = pd.DataFrame({"p": [0.0, 1.0, 1.0], "q": [1.0, 0.0, 1.0]})
LEAF = '{"users": ["u"], "num_samples": [%s], "user_data": {"u": {"x": %s, "y": %s}}}'
# What is given, options, and what is said.
WRONG: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "iterable": (lambda _: Stream(), {}, "data: an iterable data set has no numbered items: give one with __len__"),
    "loader": (lambda _: DataLoader(Pairs(X, Y)), {}, "a DataLoader makes batches of its own: give its data set"),
    "triples": (lambda _: Triples(X, Y), {}, "item 0 is a tuple of 3, "),
    "three tensors": (
        lambda _: TensorDataset(*[torch.zeros(3, 2)] * 3),
        {},
        "of 3 tensors, but must be of two, (x, y)",
    ),
    "an error inside": (lambda _: Broken(X, Y), {}, "in __getitem__: KeyError"),
    "sizes": (lambda _: Sizes(X, Y), {}, "samples have different shapes, [6, 6, 3] and [6, 7, 3]: resize them first"),
    "words": (lambda _: Words(X, Y), {}, "a value is text, 'a text', but must be numbers or an image"),
    "floats as an image": (
        lambda _: Pairs([Image.fromarray(np.zeros((4, 4), np.float32))] * 3, Y),
        {},
        "data: item 0: an image has pixels of more than 8 bits (mode 'F')",
    ),
    "a field goes": (lambda _: Late(X, Y), {}, "item 20 has no 'features', which item 0 has"),
    "no names": (lambda _: Pairs(X, Y), {"y": "label"}, "y names a field, but its items have no names: leave it out"),
    "empty": (lambda _: Pairs(X[:0], Y[:0]), {}, "data: it is empty; at least one sample is needed"),
    "NaN": (lambda _: Pairs(np.where(X > 2, np.nan, X), Y), {}, "holds NaN or infinite values; remove or repair it"),
    "an option": (lambda _: Pairs(X, Y), {"z": 1}, "unknown option of data 'z'; known: "),
    "a test part by its name": (lambda _: {"x": X, "y": Y, "x_test": X, "y_test": Y}, {}, "'x_test' would be left out"),
    "a share": (lambda _: (X, Y), {"test": 2}, "test is 2, but must be a share between 0 and 1, such as 0.2"),
    "two test parts": (lambda _: ((X, Y), (X, Y)), {"test": 0.2}, "but there is a test part: leave one of them out"),
    "a pad": (lambda _: (X, Y), {"pad": -1}, "pad is -1, but must be the tokenizer's pad id, a whole number from 0"),
    "two with labels of their own": (lambda _: (Pairs(X, Y), Y, Pairs(X, Y), Y), {}, "data has 4 parts, but must be "),
    "lengths": (lambda _: (X, Y[:5]), {}, "data: 60 samples but 5 labels; each sample needs one"),
    "text of a table": (
        lambda _: table(text=["a", "b"], label=[0, 1]),
        {},
        "column 'text' holds text: tokenise it first",
    ),
    "text in a dict of lists": (
        lambda _: {"a": [1.0, 2.0], "town": ["A", "B"], "y": [0, 1]},
        {},
        "column 'town' holds text: leave it out; or name the columns to learn from, x=[...]",
    ),
    "text in a dict of arrays": (
        lambda _: {"a": X[:, 0], "town": np.array(["A"] * len(X)), "y": Y},
        {},
        "column 'town' holds text: leave it out",
    ),
    "no label": (
        lambda _: table(x=[1.0], who=[0]),
        {},
        "which column is to be learnt? Say it as y='NAME': there are x, ",
    ),
    "no such column": (lambda _: table(x=[1.0], label=[0]), {"y": "lable"}, "'lable': did you mean 'label'? Known: "),
    "which samples": (
        lambda _: table(a=[[1.0]], b=[[1.0]], y=[0]),
        {},
        "which column holds the samples? Say it as x='",
    ),
    "inputs differ": (lambda _: table(input_ids=[[1, 2]], attention_mask=[[1]], y=[0]), {}, "have different shapes"),
    "streamed": (lambda _: table(x=[1.0], y=[0]).to_iterable_dataset(), {}, "load it without streaming=True"),
    "labels of a hidden test": (lambda _: (table(x=X, y=Y), table(x=X, y=Y - 1)), {}, "labels run from -1 to 1"),
    "a category": (
        lambda _: FRAME.assign(town="A"),
        {"y": "kind"},
        "column 'town' holds text: make numbers of it, pandas",
    ),
    "dates": (
        lambda _: FRAME.assign(day=pd.Timestamp(0)),
        {"y": "kind"},
        "column 'day' holds neither numbers nor images",
    ),
    "missing": (
        lambda _: FRAME.assign(a=FRAME.a.where(FRAME.index > 0)),
        {"y": "kind"},
        "column 'a' has 1 missing value, the first of sample 0: fill them",
    ),
    "a word among numbers": (
        csv_of("a,b,y\n1,2,0\n3,n/k,1\n4,5,0\n"),
        {"y": "y"},
        "column 'b' holds text: 1 of 3 values are no numbers, the first is 'n/k' of sample 1: repair them; or name",
    ),
    "two columns of a csv": (csv_of("a,y,a\n1,0,2\n"), {"y": "y"}, "a.csv: two columns are called 'a': rename one"),
    "another sign": (csv_of("a;b;y\n1,5;2;0\n"), {"y": "y"}, "a.csv: between columns is ';', not a comma: save it"),
    "a tab": (csv_of("a\tb\ty\n1\t2\t0\n"), {"y": "y"}, "a.csv: between columns is a tab, not a comma"),
    "another encoding": (csv_of("ä,y\n1,0\n".encode("latin-1")), {"y": "y"}, "a.csv is no text in UTF-8: save it in"),
    "a series": (lambda _: FRAME.a, {}, "a Series is one column: give a DataFrame with the column to be learnt"),
    "twice": (lambda _: pd.concat([FRAME, FRAME.a], axis=1), {"y": "kind"}, "two columns are called 'a': rename one"),
    "both": (lambda _: FRAME, {"x": "a,kind", "y": "kind"}, "column 'kind' is both in x and what is learnt"),
    "a client of clients": (lambda _: [[(X, Y), (X, Y)]], {}, "data: client 0 is [(array("),
    "other shapes": (
        lambda _: [(X, Y), (X[:, :3], Y)],
        {},
        "client 1: values have the shape [3], those of data: client",
    ),
    "other targets": (
        lambda _: ((X[:3], TWO), (X[:3], TWO[["q", "p"]])),
        {"target": "labels"},
        "data: test part: y has the columns ['q', 'p'], but those of data: train part are ['p', 'q']",
    ),
    "other inputs": (lambda _: [(X, Y), (X.astype(int), Y)], {}, "client 1: torch.int64, but data: client 0 has torch"),
    "tests of others": (lambda _: ([(X, Y)], [(X, Y), (X, Y)]), {}, "test parts of 2 clients, but there are 1 clients"),
    "fewer clients than samples": (
        lambda _: {"x": X, "y": Y, "client": Y[:-1]},
        {},
        "data: 'client' has 59 rows, but 'y' has 60",
    ),
    "a sample without a client": (
        lambda _: table(a=[1.0, 2.0, 3.0], y=[0, 1, 0], client=["a", None, "b"]),
        {},
        "1 of 3 samples have no client, the first is sample 1: name one",
    ),
    "a client that is no number": (
        lambda _: {"x": X, "y": Y, "client": np.where(Y == 1, np.nan, Y)},
        {},
        "samples have no client, the first is sample ",
    ),
    "two clients for a sample": (
        lambda _: {"x": X, "y": Y, "client": np.zeros((60, 2))},
        {},
        "has the shape [60, 2], but each of the 60 samples needs one client",
    ),
    "a mask as a subset": (
        lambda _: Subset(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), (Y == 1).tolist()),
        {},
        "must number items: of a mask use np.flatnonzero(mask)",
    ),
    "a subset of other items": (
        lambda _: Subset(Pairs(X, Y), [0, 60]),
        {},
        "data: a Subset has the item 60, but its data set has items 0 to 59",
    ),
    "labels of words, not of tokens": (
        lambda _: table(input_ids=[[1, 2, 3], [4, 5]], labels=[[0, 1], [1, 1]]),
        {},
        "a sample of 3 tokens has 2 labels: give each token one (-100 where there is none)",
    ),
    "a mask of another length": (
        lambda _: table(input_ids=[[1, 2, 3], [4, 5]], attention_mask=[[1, 1, 1], [1]], y=[0, 1]),
        {},
        "inputs 'input_ids' and 'attention_mask' of a sample differ in length",
    ),
    "tokens and floats": (lambda _: Mixed(X[:6], Y), {}, "is among lists of whole numbers: make them alike"),
    "grey and coloured arrays": (
        lambda _: Mixed(X[:6].astype(np.uint8), Y),
        {},
        "some images are grey, others coloured: give all of them 3 channels",
    ),
    "text labels of items": (
        lambda _: table(x=[[1.0], [2.0]], y=["a", "b"]),
        {},
        "labels are text, 'a': number the classes in the data set itself",
    ),
    "text labels in four arrays": (
        lambda _: (X, np.array(list("ab") * 30), X, np.array(list("ba") * 30)),
        {},
        "y_train: cannot be read as an array of numbers, it holds text: number classes by np.unique(",
    ),
    "objects": (lambda _: (X, np.array([0, None] * 30)), {}, "it is one of objects, such as None"),
    "one number": (lambda _: (X, 3), {}, "but both must have a row for each sample"),
    "no data yet": (lambda _: unassigned(), {}, "the partitioner has no data yet: set partitioner.dataset first"),
    "no LEAF": (
        lambda folder: f"leaf:{folder}",
        {},
        "no folder train/ there; LEAF's have train/*.json and test/*.json",
    ),
    "broken JSON": (leaf_of('{"users": ['), {}, "a.json cannot be read: Expecting value"),
    "missing keys": (leaf_of('{"users": []}'), {}, "not a file of LEAF's: it needs users, num_samples and user_data"),
    "other lengths": (
        leaf_of(LEAF % (2, "[[1]]", "[0]")),
        {},
        "user 'u' has 1 samples and 1 labels, but num_samples says",
    ),
    "no glyph": (leaf_of(LEAF % (1, '["caf\u00e9"]', '["a"]')), {}, "the character 'é' is not among LEAF's 80"),
    "no kind": (
        leaf_of(LEAF % (1, '["1.jpg"]', "[1]")),
        {},
        "a sample is '1.jpg' with the label 1, but must be a list",
    ),
    "ragged": (
        leaf_of(LEAF % (2, "[[1], [1, 2]]", "[0, 1]")),
        {},
        "user 'u': samples cannot be read: setting an array",
    ),
    "no table": (lambda folder: f"table:{folder / 'a.csv'}", {"y": "a"}, "a.csv: no such file"),
    "no csv": (lambda folder: f"table:{folder / 'a.txt'}", {"y": "a"}, "must be a .csv or .parquet file, or a folder"),
    "a field without a name": (
        csv_of("a,b,y\n1,2,0,5\n3,4,1,7\n"),
        {"y": "y"},
        "a.csv: rows have more fields than the first line has names: name every column",
    ),
    "clients of one number": (
        csv_of("a,client,y\n1,01,0\n3,1,1\n4,2,0\n"),
        {},
        "column 'client' of a.csv: clients 01 and 1 are the same number: write each client in one way",
    ),
    "clients of one float": (  # a missing one turns the column into floats, which hold whole numbers up to 2^53
        csv_of("a,who,y\n1,9007199254740993,0\n3,9007199254740992,1\n4,,0\n"),
        {"client": "who"},
        "clients 9007199254740992 and 9007199254740993 are the same number",
    ),
    "a csv of names alone": (csv_of("a,b,y\n"), {"y": "y"}, "a.csv: it is empty; at least one sample is needed"),
    "a broken csv": (csv_of('a,b\n"1,2\n'), {"y": "a"}, "a.csv cannot be read: "),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_input_is_one_clear_line(name, tmp_path):
    make, options, said = WRONG[name]
    with pytest.raises(FedsmooError) as caught:
        made(Form(make, options), tmp_path)
    line = str(caught.value)
    assert said in line
    assert "\n" not in line
