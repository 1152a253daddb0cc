"""What users bring comes through one door, ``file.py:Name``: it runs, resumes, counts, and fails in a line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsmoo import Config, FedsmooError, simulate
from fedsmoo.core.random.streams import stream
from fedsmoo.data.own import is_own
from fedsmoo.data.sources import depends_on_seed, load
from fedsmoo.deploy.settings import from_json, parse, to_json
from fedsmoo.pages.measured import rebuilt
from fedsmoo.runs.build import assemble
from fedsmoo.runs.origin.contents import hash_user_files
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.settings.toml import read_toml
from fedsmoo.sweeps.grid import run_name
from fedsmoo.sweeps.pack import packable

from .conftest import TINY, Call
from .own_things import FLAGS, KINDS, TEXT, written

SETS = ["part=1", "bias=false", "noise=0.3", "shuffle=no", "scale=0.5", "step=2"]
OPTIONS = [word for pair in SETS for word in ("--set", pair)]
OWN = {kind: f"mine.py:{name}" for kind, name in KINDS.items()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    written()
    return tmp_path


def by_hand(rounds: int = 4) -> np.ndarray:
    """The run of FLAGS and OPTIONS as a plain loop in NumPy: least squares by SGD, clients in turn."""
    rng, y = np.random.default_rng(0), np.arange(120) % 3
    x = (np.eye(3)[y] + 0.3 * rng.normal(size=(120, 3)))[:90]
    want, held, lr = np.eye(3)[y[:90]], np.array_split(np.arange(90), 6), 0.1
    with torch.random.fork_rng():
        torch.manual_seed(int(stream(0, "model").integers(2**63 - 1)))
        w = torch.nn.Linear(3, 3, bias=False).weight.detach().double().numpy()
    for number in range(rounds):
        ends = []
        for client in ((2 * number) % 6, (2 * number + 1) % 6):
            mine, v = held[client], w
            order = stream(0, "batches", number, client)
            for batch in batches(order, mine):
                error = x[batch] @ v.T - want[batch]
                v = v - lr * (0.5 * 2 * error.T @ x[batch] / len(batch) + 1e-3 * v)
            ends.append(v)
        w, lr = np.mean(ends, 0), lr * 0.998
    return w


def batches(order: np.random.Generator, mine: np.ndarray) -> list[np.ndarray]:
    """Two batches of eight of one client's fifteen samples."""
    shuffled = mine[order.permutation(len(mine))]
    return [shuffled[:8], shuffled[8:]]


def test_one_of_everything_runs_with_its_options_and_is_noted(call: Call) -> None:
    written()
    answer = call("run", *FLAGS, *OPTIONS, "--out", "out")
    assert answer.code == 0, answer.err
    values = read_toml(Path("out/config.toml"))
    assert {kind: values[kind] for kind in KINDS} == OWN
    order = ("algorithm", "model", "dataset", "partition", "loss", "sampling")
    assert [values[f"{kind}_options"] for kind in order] == [
        {"part": 1.0}, {"bias": False}, {"noise": 0.3}, {"shuffle": False}, {"scale": 0.5}, {"step": 2},
    ]  # fmt: skip
    records = [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()]
    assert [r["cohort"] for r in records] == [[0, 1], [2, 3], [4, 5], [0, 1]]
    held = json.loads(Path("out/started.json").read_text())["contents"]
    assert held.pop("samples_content") == load(OWN["dataset"], options={"noise": 0.3}).fingerprint.short
    assert set(held) == {f"{kind}_content" for kind in (*KINDS, "data")} - {"dataset_content"}
    assert len(set(held.values())) == 1  # all from one file


def test_it_computes_what_a_plain_loop_computes(folder: Path) -> None:
    tables = {
        "dataset_options": {"noise": 0.3},
        "partition_options": {"shuffle": False},
        "loss_options": {"scale": 0.5},
    }
    tables |= {"sampling_options": {"step": 2}, "model_options": {"bias": False}, "algorithm_options": {"part": 1.0}}
    numbers = {"clients": 6, "cohort": 2, "rounds": 4, "local_steps": 2, "batch_size": 8, "dtype": "float64"}
    result = assemble(Config(**OWN, **tables, **numbers, engine="serial", device="cpu", clip=None)).run()
    np.testing.assert_allclose(result.server.w.view(3, 3).numpy(), by_hand(), atol=1e-13)


def test_the_objects_themselves_do_the_same(folder: Path) -> None:
    mine: dict = {}
    exec(TEXT, mine)
    settings = {"clients": 6, "cohort": 2, "rounds": 4, "local_steps": 2, "batch_size": 8, "dtype": "float64"}
    own = {"partition": mine["dealt"], "loss": mine["squared"], "sampling": mine["in_turn"]}
    named = {kind: OWN[kind] for kind in own}
    results = [simulate("softmax", OWN["dataset"], OWN["algorithm"], **settings, **way) for way in (own, named)]
    assert torch.equal(*(r.server.w for r in results))
    assert [r.cohort for r in results[0].history] == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert len(results[0].simulation.indices[0]) == 15


def test_a_stopped_run_goes_on_to_the_same_bits(folder: Path, call: Call) -> None:
    config = Config(**OWN, clients=6, cohort=2, rounds=4, local_steps=2, device="cpu")
    whole, asked = assemble(config).run().server.w, iter([False, True])
    run = Run.begin(config, folder / "stopped")
    run.go(stop=lambda: next(asked))
    assert len(run.simulation.history) == 2
    again = reopen(folder / "stopped")
    again.go()
    assert torch.equal(again.simulation.server.w, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_an_edited_file_is_another_run_and_is_not_resumed(kind: str, folder: Path, call: Call) -> None:
    written(name="other.py")
    config = Config(**{kind: f"other.py:{KINDS[kind]}"}, clients=6, cohort=2, rounds=3, local_steps=1, device="cpu")
    if kind in ("model", "loss"):  # which fit this data alone
        config = config.replace(dataset=OWN["dataset"], model=OWN["model"] if kind == "loss" else config.model)
    run = Run.begin(config, folder / "run")
    run.go(stop=lambda: True)
    before = identity(config), run_name(config)
    written(TEXT + "\n# edited\n", "other.py")
    assert identity(config) != before[0]
    assert run_name(config) != before[1]
    answer = call("resume", "run")
    assert answer.code == 2
    assert "other.py was edited or removed since" in answer.err
    Path("other.py").write_text(TEXT)
    assert identity(config) == before[0]
    assert call("resume", "run").code == 0


def test_sweeps_and_comparisons_take_them(folder: Path, call: Call) -> None:
    text = ["rounds = 2", 'model = "softmax"', "clients = 6", "cohort = 2", 'partition = ["iid", "mine.py:dealt"]']
    text += ['dataset = "mine.py:blobs"', "local_steps = 1", 'algorithm = "fedavg"', 'device = "cpu"']
    text += ["[loss]", 'name = "mine.py:squared"', "scale = 2.0"]
    Path("grid.toml").write_text("\n".join(text))
    answer = call("sweep", "grid.toml", "--out", "swept")
    assert answer.code == 0, answer.err
    names = sorted(p.name for p in Path("swept").iterdir() if (p / "config.toml").is_file())
    assert [re.sub("-[0-9a-f]{8}$", "", n) for n in names] == [
        "fedavg-mine.py-blobs-iid-2of6-softmax-seed0", "fedavg-mine.py-blobs-mine.py-dealt-2of6-softmax-seed0",
    ]  # fmt: skip
    flags = ["--dataset", "mine.py:blobs", "--sampling", "mine.py:in_turn", "--loss", "mine.py:squared", *TINY]
    answer = call("compare", "--algorithms", "fedavg,mine.py:Half", *flags, "--seeds", "0", "--out", "compared")
    assert answer.code == 0, answer.err
    assert "Half" in answer.out


def test_only_seeds_that_do_not_change_the_data_share_a_batch(folder: Path) -> None:
    Path("fixed.py").write_text(
        TEXT.replace("def blobs(seed, ", "def blobs(").replace("default_rng(seed)", "default_rng(7)")
    )
    assert (depends_on_seed("mine.py:blobs"), depends_on_seed("fixed.py:blobs")) == (True, False)
    for file, together in (("mine", False), ("fixed", True)):
        config = Config(dataset=f"{file}.py:blobs", engine="batched", clients=6, cohort=2)
        assert packable([config, config.replace(seed=1)]) is together
    assert torch.equal(load("fixed.py:blobs", seed=0).x_train, load("fixed.py:blobs", seed=1).x_train)
    assert not torch.equal(load("mine.py:blobs", seed=0).x_train, load("mine.py:blobs", seed=1).x_train)


def broken(kind: str, body: str) -> str:
    """The file with one function's body replaced."""
    return re.sub(rf"(def {KINDS[kind]}\(.*\):\n)((?:    .*\n)+)", lambda m: m[1] + f"    {body}\n", TEXT)


WRONG = {
    "dataset fails": ("dataset", "return missing", r"mine\.py:\d+ in blobs: NameError: name 'missing'"),
    "dataset of three": ("dataset", "return 1, 2, 3", "returned has 3 parts, but must be a Dataset, "),
    "dataset of nothing": ("dataset", "return None", "returned is None, but must be a Dataset, "),
    "dataset of words": ("dataset", "return ['a'], [0], ['b'], [0]", "cannot be read as an array of numbers"),
    "partition fails": ("partition", "return labels[1.5]", r"mine\.py:\d+ in dealt: IndexError"),
    "partition too few": ("partition", "return [[0], [1]]", "returned 2 clients, but was asked for 4"),
    "partition empty": ("partition", "return [[0], [1], [2], []]", "client 3 has no samples"),
    "partition outside": ("partition", "return [[0], [1], [2], [9999]]", "client 3 points to sample 9999, but"),
    "partition of words": ("partition", "return 'abc'", "returned a str, but must return a list of each client's"),
    "partition by chance": (
        "partition", "return np.array_split(np.random.permutation(len(labels)), clients)",
        "divided the same samples in two ways: it must depend on its arguments alone",
    ),
    "sampling fails": ("sampling", "return [1 // 0]", r"mine\.py:\d+ in in_turn: ZeroDivisionError"),
    "sampling outside": ("sampling", "return [0, clients]", r"drew \[0, 4\] for round 0, but clients are 0 to 3"),
    "sampling below": ("sampling", "return [-1, 0]", r"drew \[-1, 0\] for round 0, but clients are 0 to 3"),
    "sampling twice": ("sampling", "return [1, 1]", r"drew \[1, 1\] for round 0, where a client is there twice"),
    "sampling halves": ("sampling", "return [0.5]", r"returned \[0\.5\], but must return a list of clients"),
    "sampling none": ("sampling", "return None", "returned None, but must return a list of clients"),
    "sampling by chance": (
        "sampling", "return np.random.choice(10**6, 2)", "it must depend on its arguments alone, so that a run can be",
    ),
    "loss fails": ("loss", "return outputs.missing", r"mine\.py:\d+ in squared: AttributeError"),
    "loss is a mean": ("loss", "return outputs.mean()", r"must be a tensor of one loss per sample"),
    "model fails": ("model", "return missing", r"'mine.py:linear' cannot be made: mine\.py:\d+ in linear: NameError"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_it_is_said_in_one_line(name: str, call: Call) -> None:
    kind, body, says = WRONG[name]
    written(broken(kind, body))
    tiny = [*TINY[2:], *(["--model", "softmax"] if kind != "model" else []), "--rounds", "2"]
    answer = call("run", f"--{kind}", OWN[kind], *tiny, "--out", "out")
    assert answer.code == 2, answer.out
    assert re.search(says, answer.err), answer.err
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err


MISSING = {
    "no file": (["--loss", "none.py:squared"], "loss 'none.py:squared': there is no file 'none.py'"),
    "no name": (["--sampling", "mine.py:inturn"], "unknown sampling in mine.py 'inturn': did you mean 'in_turn'?"),
    "no such loss": (["--loss", "hinge"], "unknown loss 'hinge'; known: bce, cross_entropy"),
    "no such sampling": (["--sampling", "uniformly"], "unknown value of sampling 'uniformly': did you mean 'uniform'?"),
    "no such option": (
        ["--loss", "mine.py:squared", "--set", "loss.scal=2"],
        "unknown option of loss 'mine.py:squared' 'scal': did you mean 'scale'? Known: scale",
    ),
    "ours has no options": (["--set", "sampling.step=2"], "sampling 'uniform' has no options: leave out step"),
    "nor has our data": (["--set", "dataset.step=2"], "data set 'digits' has no options: leave out step"),
    "nor our partition": (["--set", "partition.step=2"], "partition 'dirichlet' has no options: leave out step"),
    "other arguments": (
        ["--loss", "mine.py:in_turn"],
        "loss 'mine.py:in_turn' must be a function of (outputs, labels)",
    ),
    "no function": (["--partition", "mine.py:np"], "partition 'mine.py:np' is a module, but must be a function of ("),
    "a class of data": (["--dataset", "mine.py:Half"], "'mine.py:Half' is a class, but must be a function of (seed)"),
    "a path beside": (["--dataset", "mine.py:blobs", "--data", "x.npz"], "is made by the function in the file and"),
    "an option of two": (
        ["--loss", "mine.py:squared", "--sampling", "mine.py:both", "--set", "scale=2"],
        "scale: several have an option of that name; write which one: loss.scale and sampling.scale",
    ),
    "u of another": (["--partition", "mine.py:dealt", "--u", "0.3"], "the partition 'mine.py:dealt' has no u"),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_not_there_is_said_before_anything_runs(name: str, call: Call) -> None:
    words, says = MISSING[name]
    written(TEXT + "\n\ndef both(seed, round, clients, cohort, scale=1):\n    return [0]\n")
    answer = call("run", *TINY, *words, "--out", "out")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert says in answer.err
    assert not Path("out").exists()


def test_classes_serve_as_partitions_losses_and_samplings(folder: Path) -> None:
    Path("classes.py").write_text(
        "import numpy as np\nfrom torch.nn import functional as F\n"
        "class Deal:\n"
        "    def __init__(self, first=0): self.first = first\n"
        "    def split(self, labels, classes, clients, seed):\n"
        "        return [np.arange(len(labels))[(self.first + i) % clients :: clients] for i in range(clients)]\n"
        "class Smooth:\n"
        "    def __init__(self, by=0.1): self.by = by\n"
        "    def __call__(self, out, y): return F.cross_entropy(out, y, reduction='none', label_smoothing=self.by)\n"
        "class First:\n"
        "    def __call__(self, seed, round, clients, cohort): return range(cohort)\n"
    )
    own = {"partition": "classes.py:Deal", "loss": "classes.py:Smooth", "sampling": "classes.py:First"}
    config = Config(**own, partition_options={"first": 1}, clients=4, cohort=2, rounds=1, model="softmax", device="cpu")
    simulation = assemble(config)
    assert [int(i[0]) for i in simulation.indices] == [1, 2, 3, 0]
    out, y = torch.randn(5, 10, generator=torch.Generator().manual_seed(0)), torch.arange(5)
    truth = -(
        0.91 * out.log_softmax(-1)[range(5), y]
        + 0.01 * (out.log_softmax(-1).sum(-1) - out.log_softmax(-1)[range(5), y])
    )
    torch.testing.assert_close(simulation.setup.task.loss(out, y), truth)
    assert simulation.advance().cohort == [0, 1]


def test_a_set_of_files_leaves_the_names_of_other_runs_alone(folder: Path) -> None:
    """The identity of a run of our own things, from before there was a loss to choose."""
    assert identity(Config()) == identity(Config(loss="cross_entropy", loss_options={}, sampling_options={}))
    assert "loss" not in Config().to_dict()
    assert set(hash_user_files(Config(**OWN))) == {f"{k}_content" for k in KINDS if k != "dataset"} | {"data_content"}
    assert [is_own(n) for n in ("a.py:f", "text:a.py", "text:b.py:c", "cifar10", "my:images")] == [True, *[False] * 4]


def test_a_federation_runs_no_code_that_its_settings_name(folder: Path) -> None:
    for kind in ("algorithm", "model", "loss", "dataset", "partition"):
        with pytest.raises(FedsmooError, match=f"cannot take its {kind} from a file"):
            parse({kind: OWN[kind], "clients": 6})
    config, _ = parse({"sampling": OWN["sampling"], "clients": 6})  # drawn on the server, whose file it is
    assert from_json(to_json(config)).sampling == "uniform"
    with pytest.raises(FedsmooError, match="cannot take its sampling from a file"):
        from_json(json.dumps(config.to_dict()))


def test_a_page_runs_no_code_to_show_who_holds_what(folder: Path) -> None:
    Path("evil.py").write_text("raise SystemExit('ran')\n")
    assert rebuilt({"dataset": "digits", "partition": "iid", "clients": 4}) is not None
    assert rebuilt({"dataset": "digits", "partition": "evil.py:f", "clients": 4}) is None
    assert rebuilt({"dataset": "digits:evil.py:f", "partition": "iid", "clients": 4}) is None


def test_the_list_says_how_to_bring_ones_own(call: Call) -> None:
    out = call("list").out
    for kind in KINDS:
        assert f"--{kind} path/to/file.py:" in out
    assert "cross_entropy" in call("list", "losses").out
