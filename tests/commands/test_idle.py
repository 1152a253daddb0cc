"""Settings and flags that would change nothing, or change something else than they say: refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsmoo
from fedsmoo.core import FedsmooError
from fedsmoo.data.sources import load
from fedsmoo.deploy.settings import parse
from fedsmoo.engines.oracles import products
from fedsmoo.paper.tables import Grid
from fedsmoo.runs.config import Config
from fedsmoo.runs.record import Record
from fedsmoo.runs.storage.folder import config_text
from fedsmoo.runs.storage.reader import read_config
from fedsmoo.sweeps.grid import expand
from fedsmoo.sweeps.paired import common_target

from .conftest import TINY, Call
from .test_bad_input import one_line

RUN = ["run", "--algorithm", "fedavg", *TINY, "--out", "made"]
COMPARE = ["compare", "--algorithms", "fedavg,scaffold", *TINY, "--out", "made"]
IDLE = [
    ([*RUN, "--lr", "0.2", "--set", "lr=0.1"], "lr is given twice, as --lr 0.2 and as --set lr=0.1: choose one"),
    ([*RUN, "--set", "lr=0.2", "--set", "lr=0.1"], "lr is given twice, as --set lr=0.2 and as --set lr=0.1"),
    ([*RUN, "--set", "algorithm=scaffold"], "algorithm is given twice, as --algorithm fedavg and as --set algorithm"),
    ([*RUN, "--probe", "sharpness:2,sharpness:3"], "probe 'sharpness:2,sharpness:3' names sharpness twice"),
    ([*RUN, "--dataset", "text:a.txt", "--data", "b"], "says itself where the text is; leave out b"),
    ([*COMPARE, "--set", "seed=3"], "--set 'seed=3': a comparison takes its seeds from --seeds"),
    ([*COMPARE, "--set", "algorithm=fedsam"], "a comparison takes its algorithms from --algorithms"),
    ([*COMPARE, "--set", "fedavg.algorithm=fedsam"], "a comparison takes its algorithms from --algorithms"),
    ([*COMPARE, "--set", "scaffold.partition=iid"], "methods are compared on the same data; set partition for all"),
    ([*COMPARE, "--set", "scaffold.clients=5"], "methods are compared on the same data"),
    (["figure", "accuracy", "here", "--over", "lr"], "figure accuracy: --over is of other figures (sensitivity)"),
    (["figure", "accuracy", "here", "--apart"], "figure accuracy: --apart is of other figures (landscape)"),
    (["figure", "accuracy", "here", "--focus", "a"], "figure accuracy: --focus is of other figures (landscape)"),
    (["figure", "heatmap", "here", "--smooth", "5"], "figure heatmap: --smooth is of other figures (accuracy, loss"),
    (["figure", "sensitivity", "here", "--axis", "bytes"], "figure sensitivity: --axis is of other figures"),
    (["runs", "here", "--json", "--show", "lr"], "--json has every column, so that --show changes nothing"),
    (["table", "accuracy", "--check"], "--check is of files with tables in them: give --update and the files"),
    (["table", "accuracy", "a.txt"], "a.txt: files are for --update"),
    (["table", "accuracy", "--markdown", "--format", "latex"], "--markdown and --format latex say two things"),
    (["table", "accuracy", "--no-run", "--dry-run"], "--no-run carries nothing out, so that --dry-run changes nothing"),
    (["table", "accuracy", "--no-run", "--pack", "2"], "--no-run carries nothing out, so that --pack changes nothing"),
    (["table", "rounds", "--no-run", "--compact"], "--compact is of the table accuracy, not of rounds"),
    (["table", "--update", "a.txt", "--methods", "fedsmoo"], "--methods changes nothing of --update"),
    (["table", "--update", "a.txt", "--lr", "0.1"], "--lr changes nothing of --update"),
]


@pytest.mark.parametrize(("arguments", "message"), IDLE, ids=[" ".join(a[-4:]) for a, _ in IDLE])
def test_what_would_change_nothing_is_refused(arguments: list[str], message: str, call: Call) -> None:
    Path("a.txt").write_text("words " * 100)
    one_line(call(*arguments), message)
    assert not Path("made").exists()


def test_bf16_is_refused_where_a_cpu_has_none(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "cpu_has_bf16", lambda: False)
    one_line(
        call(*RUN, "--device", "cpu", "--precision", "bf16"), "precision is bf16, but this CPU computes in float32"
    )
    assert not Path("made").exists()


def test_the_same_value_twice_is_no_contradiction(call: Call) -> None:
    assert call(*RUN, "--lr", "0.2", "--set", "lr=0.2").code == 0
    assert read_config(Path("made")).lr == 0.2


def test_options_of_the_file_s_method_stay_with_it_however_it_is_spelt(call: Call) -> None:
    Path("a.toml").write_text('algorithm = { name = "fedsmoo", r = 0.5 }\nmodel = { name = "mlp", hidden = 8 }\n')
    tiny = TINY[2:]  # without the model
    assert call("run", "a.toml", "--algorithm", "FedSMOO", *tiny, "--out", "made").code == 0
    assert read_config(Path("made")).algorithm_options == {"r": 0.5}
    assert call("run", "a.toml", "--model", "softmax", *tiny, "--out", "other").code == 0
    assert read_config(Path("other")).model_options == {}, "they are the file's model's"


def test_a_comparison_takes_the_file_s_seed_unless_others_are_named(call: Call) -> None:
    Path("a.toml").write_text("seed = 5\n")
    assert call("compare", "a.toml", *COMPARE[1:]).code == 0
    assert read_config(Path("made/fedavg-seed5")).seed == 5
    assert call("compare", "a.toml", *COMPARE[1:-1], "named", "--seeds", "1").code == 0
    assert sorted(p.name for p in Path("named").iterdir() if p.is_dir()) == ["fedavg-seed1", "scaffold-seed1"]


def test_a_target_is_written_as_it_is(call: Call) -> None:
    """12.5% was shown as 12%."""
    assert "rounds to 12.5%  sent to 12.5%" in call(*COMPARE, "--target", "0.125").out
    assert "  to 12.55%       " in call(*RUN[:-1], "one", "--target", "0.1255").out


@pytest.mark.parametrize(("best", "target"), [(0.7, 0.63), (0.9, 0.81), (0.5, 0.45), (0.99, 0.89), (0.001, 0.01)])
def test_the_common_target_is_nine_tenths_rounded_down(best: float, target: float) -> None:
    """90 * 0.7 is 62.99999999999999 to a computer."""
    last = Record(1, best, 1.0, 1.0, 1.0, 0.1, [0], 1, 1, 0.1, 0.1)
    assert common_target({"FedAvg": {0: [last]}}) == target


def test_simulate_says_when_the_target_was_reached() -> None:
    few = {"clients": 4, "cohort": 2, "rounds": 3, "local_steps": 1, "engine": "serial"}
    result = fedsmoo.simulate("softmax", "digits", "fedavg", **few, target=0.05)
    hit = result.target_reached
    assert hit is not None
    first = next(r for r in result.history if r.test_accuracy >= 0.05)
    assert (hit.round, hit.bytes) == (first.round, sum(r.bytes_up + r.bytes_down for r in result.history[: hit.round]))
    assert fedsmoo.simulate("softmax", "digits", "fedavg", **few, target=1.0).target_reached is None
    assert fedsmoo.simulate("softmax", "digits", "fedavg", **few).target_reached is None


@pytest.mark.parametrize(
    ("axis", "words"), [({"seed": [0, 0, 1]}, "seed lists 0 twice"), ({"lr": [0.1, 0.10]}, "lr lists 0.1")]
)
def test_a_sweep_does_not_count_a_run_twice(axis: dict, words: str) -> None:
    with pytest.raises(FedsmooError, match=words):
        expand({"rounds": 1, **axis}, "here")


def test_two_spellings_of_one_run_are_one_cell_of_a_table() -> None:
    """Its value would stand twice in a mean, with a deviation that is too small."""
    sweep = expand({"partition": "pathological", "c": [2, 3], "local_epochs": [5], "seed": [0, 1]}, "here")
    assert len(sweep.cells) == 4
    spelt = expand({"partition": ["pathological-3", "pathological"], "seed": [0, 1], "rounds": 1}, "here")
    assert [c.config.seed for c in spelt.cells] == [0, 1]
    assert len(Grid(spelt, {})[spelt.cells[0].method, ""]) == 0


def test_a_table_takes_no_batch_of_none(call: Call) -> None:
    for words in (["--pack", "0"], ["--minutes", "-1"]):
        assert call("table", "accuracy", "--no-run", *words).code == 2


def test_a_split_file_is_not_made_by_another_rule_s_option(call: Call) -> None:
    one_line(
        call("data", "split", "digits", "--out", "s.json", "--c", "2"), "c is 2, but the partition 'dirichlet' has"
    )
    assert call("data", "split", "digits", "--out", "s.json", "--partition", "pathological", "--c", "2").code == 0
    assert json.loads(Path("s.json").read_text())["rule"]["c"] == 2


@pytest.mark.parametrize(
    ("name", "value"), [("probe", "sharpness:5"), ("target", 0.5), ("table", "disk"), ("chunk", 2)]
)
def test_a_federation_refuses_what_it_does_not_look_at(name: str, value: object) -> None:
    with pytest.raises(FedsmooError, match=f"^{name} is for simulated runs"):
        parse({"dataset": "digits", name: value})


@pytest.mark.parametrize("client", [4, -1, "0", 1.5])
def test_there_is_no_state_of_a_client_who_is_not_there(client: object) -> None:
    few = {"clients": 4, "cohort": 2, "rounds": 1, "local_steps": 1, "engine": "serial"}
    result = fedsmoo.simulate("softmax", "digits", "scaffold", **few)
    with pytest.raises(FedsmooError, match=r"there is no client .*: they are 0 to 3"):
        result.client_state(client)


def test_data_of_one_s_own_is_not_taken_for_a_known_set(tmp_path: Path) -> None:
    """Runs are told apart by the name of a known set: other data under it would pass for it."""
    x, y = np.random.default_rng(0).random((12, 6)), np.arange(12) % 3
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(FedsmooError, match=r"samples of \[6\], but cifar10 has images of \[32, 32, 3\]; give your own"):
        load("cifar10", tmp_path / "own.npz")
    assert load("own", tmp_path / "own.npz").classes == 3


def test_a_folder_from_before_with_another_precision_goes_on(call: Call) -> None:
    """On a CPU the word meant nothing; its numbers are those of any other."""
    old = Config(algorithm="fedavg", model="softmax", clients=4, cohort=2, rounds=2, local_steps=1, engine="serial")
    for name, config in (("old", old.replace(precision="bf16")), ("plain", old)):
        Path(name).mkdir()
        Path(name, "config.toml").write_text(config_text(config))
        assert call("resume", name).code == 0
    assert Path("old/model.safetensors").read_bytes() == Path("plain/model.safetensors").read_bytes()


@pytest.mark.parametrize("stop", [False, np.False_, torch.tensor(False)], ids=["python", "numpy", "torch"])
def test_a_callback_s_false_stops_whoever_made_it(stop: object) -> None:
    """A comparison of NumPy's numbers is NumPy's own false, which did not stop a run."""
    few = {"clients": 4, "cohort": 2, "rounds": 3, "local_steps": 1, "engine": "serial"}
    assert len(fedsmoo.simulate("softmax", "digits", "fedavg", **few, callback=lambda r: stop).history) == 1
    for on in (None, 0, np.True_, torch.tensor(True)):
        assert len(fedsmoo.simulate("softmax", "digits", "fedavg", **few, callback=lambda r, on=on: on).history) == 3


RULES = [
    (lambda: fedsmoo.IID(replacement="false"), "partition iid: replacement is 'false', but must be True or False"),
    (lambda: fedsmoo.Dirichlet(0.1, replacement="no"), "partition dirichlet: replacement is 'no', but must be True"),
    (lambda: fedsmoo.Pathological(3, refill=1), "partition pathological: refill is 1, but must be True or False"),
    (lambda: fedsmoo.Dirichlet("0.1"), "partition dirichlet: u is '0.1', but must be a number above 0"),
    (lambda: fedsmoo.Dirichlet(True), "partition dirichlet: u is True, but must be a number above 0"),
    (lambda: fedsmoo.Pathological(None), "partition pathological: c is None, but must be a whole number"),
    (lambda: load(None), "the name of a data set is None, but must be text"),
]


@pytest.mark.parametrize(("make", "message"), RULES, ids=[m for _, m in RULES])
def test_a_word_is_not_taken_for_a_truth_value(make: Callable[[], object], message: str) -> None:
    """Without replacement, asked for by the word "false", was with replacement."""
    with pytest.raises(FedsmooError) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"local-epochs": 1, "local_epochs": 2}, "local-epochs and local_epochs are one setting, given twice: choose"),
        ({"algorithm-options.lr-server": 1.0, "algorithm-options.lr_server": 2.0}, "are one setting, given twice"),
        ({"min-replies.most": 2}, "unknown setting in the app's config 'min-replies.most'"),
        ({"trim": 0.1}, "trim is 0.1, but aggregate is 'mean': it is of trimmed-mean alone"),
        ({"trim": 0.1, "aggregate": "median"}, "trim is 0.1, but aggregate is 'median': it is of trimmed-mean alone"),
    ],
)
def test_settings_of_a_federation_that_would_change_nothing(values: dict[str, object], says: str) -> None:
    with pytest.raises(FedsmooError, match=says):
        parse(values)


def test_settings_of_a_federation_at_their_defaults_are_no_choice() -> None:
    assert parse({"trim": 0.2, "local-epochs": "", "local_epochs": 2})[0].local_epochs == 2
    assert parse({"trim": 0.1, "aggregate": "trimmed-mean"})[1].trim == 0.1
