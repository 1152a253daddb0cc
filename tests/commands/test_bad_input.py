"""Every kind of bad input: one clear line, a non-zero exit, no traceback, nothing overwritten."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from fedsmoo import Dirichlet, simulate
from fedsmoo.cli import main
from fedsmoo.core import FedsmooError
from fedsmoo.runs.settings.toml import read_toml
from fedsmoo.sweeps.grid import expand

from .conftest import TINY, Answer, Call, tiny

FILES = {
    "misspelt.toml": "roudns = 3\n",
    "grid.toml": "rounds = 3\n[methods.FedAvg]\n",
    "broken.toml": "rounds = = 3\n",
    "wrong_type.toml": 'rounds = "many"\n',
    "endless.toml": "rounds = inf\n",
    "option.toml": '[algorithm]\nname = "fedsmoo"\nradius = 0.1\n',
    "range.toml": '[algorithm]\nname = "feddyn"\nbeta = -10\n',
    "syntax.py": "def net(:\n",
    "raises.py": "raise RuntimeError('no luck')\n",
    "things.py": "from torch import nn\n"
    "class NotAMethod: pass\n"
    "def number(): return 3\n"
    "def normed(): return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False))\n"
    "def other(): return nn.Sequential(nn.Flatten(), nn.Linear(63, 10))\n"
    "def needs(width): return nn.Linear(width, 10)\n"
    "def any_more(outputs, wide: bool = False, deep=2, **more):\n"
    "    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))\n"
    "def leaves(): raise SystemExit(3)\n"
    "def nan():\n"
    "    layer = nn.Linear(64, 10)\n"
    "    nn.init.constant_(layer.weight, float('nan'))\n"
    "    return nn.Sequential(nn.Flatten(), layer)\n",
    "script.py": "import sys\nsys.exit('usage: script.py')\n",
}

REFUSED = [
    (["--algorithm", "fedsmo"], "unknown algorithm 'fedsmo': did you mean 'fedsmoo'"),
    (["--model", "mpl"], "unknown model 'mpl': did you mean 'mlp'"),
    (["--dataset", "digit"], "did you mean 'digits'"),
    (["--partition", "dirchlet"], "unknown partition 'dirchlet'"),
    (["--sampling", "bernouli"], "did you mean 'bernoulli'"),
    (["--engine", "seriel"], "did you mean 'serial'"),
    (["--set", "betaa=3"], "unknown setting 'betaa'"),
    (["--set", "lr"], "must be KEY=VALUE"),
    (["--set", "=3"], "must be KEY=VALUE"),
    (["--rounds", "ten"], "rounds is 'ten', but must be a whole number"),
    (["--rounds", "-1"], "rounds is -1, but must be above 0"),
    (["--lr", "fast"], "lr is 'fast', but must be a number"),
    (["--weighted=perhaps"], "weighted is 'perhaps', but must be true or false"),
    (["--set", "r=big"], "r is 'big', but must be a number"),
    (["--set", "r=-1"], "r is -1.0, but must be at least 0"),
    (["--algorithm", "fedavgm", "--set", "beta1=1.5"], "beta1 is 1.5, but must be at least 0 and below 1"),
    (["range.toml"], "beta is -10.0, but must be above 0"),
    (["--set", "weight_decay=-1"], "weight_decay is -1.0, but must be at least 0"),
    (["--set", "lr_decay=1.1"], "lr_decay is 1.1, but must be above 0 and at most 1"),
    (["--relaxed", "-1"], "relaxed is -1.0, but must be at least 0"),
    (["--set", "perturbation=papr"], "did you mean 'paper'"),
    (["--model", "mlp", "--set", "hidden=wide"], "hidden is 'wide', but must be a whole number"),
    (["--model", "mlp", "--set", "hidden=1.5"], "hidden is '1.5', but must be a whole number"),
    (["--model", "mlp", "--set", "hidden=-2"], "hidden of the model mlp is -2, but must be a whole number above 0"),
    (["--model", "lenet"], "the model lenet cannot be built"),
    (["--clients", "0"], "clients is 0, but must be above 0"),
    (["--chunk", "-3"], "chunk is -3, but must be above 0"),
    (["--partition", "pathological", "--c", "11"], "c is 11, but the training labels have only 10 classes"),
    (["--partition", "pathological", "--c", "0"], "c is 0"),
    (["--partition", "dirichlet", "--u", "-1"], "u is -1"),
    (["--partition", "natural"], "no natural clients"),
    (["--clients", "5000", "--partition", "iid", "--replacement", "no"], "5000 clients cannot share"),
    (["--device", "tpu9"], "device 'tpu9' cannot be used here"),
    (["--augment", "yes"], "are not uint8 images"),
    (["--target", "80"], "target is 80, but is an accuracy between 0 and 1"),
    (["--local-epochs", "2"], "both local_epochs and local_steps"),
    (["missing.toml"], "cannot read the config file missing.toml"),
    (["misspelt.toml"], "misspelt.toml: unknown setting 'roudns': did you mean 'rounds'"),
    (["grid.toml"], "grid.toml: 'methods' is of a grid of runs, not of one: 'fedsmoo sweep FILE' trains it"),
    (["broken.toml"], "the config file broken.toml is not valid TOML"),
    (["wrong_type.toml"], "wrong_type.toml: rounds is 'many', but must be a whole number"),
    (["endless.toml"], "endless.toml: rounds is inf, but must be a whole number"),
    (["option.toml"], "unknown hyper-parameter of FedSMOO 'radius'"),
    (["--algorithm", "nowhere.py:Method"], "there is no file 'nowhere.py'"),
    (["--algorithm", "syntax.py:Method"], "syntax.py cannot be imported: SyntaxError"),
    (["--algorithm", "raises.py:Method"], "raises.py cannot be imported: RuntimeError: no luck"),
    (["--algorithm", "things.py:NotAMethd"], "did you mean 'NotAMethod'"),
    (["--algorithm", "things.py:NotAMethod"], "is not a class derived from fedsmoo.Algorithm"),
    (["--model", "things.py:number"], "made a int, not an nn.Module"),
    (["--model", "things.py:normed"], "set track_running_stats=True, or use nn.GroupNorm"),
    (["--model", "things.py:needs"], "missing 1 required positional argument: 'width'"),
    (["--model", "things.py:any_more", "--set", "wide=maybe"], "wide is 'maybe', but must be true or false"),
    (["--model", "things.py:any_more", "--set", "deep=1.5"], "deep is '1.5', but must be a whole number"),
    (["--model", "things.py:leaves"], "things.py:9 in leaves: SystemExit: 3"),
    (["--model", "things.py:nan"], "holds NaN or infinite values in 1.weight before training"),
    (["--model", "script.py:net"], "script.py cannot be imported: SystemExit: usage: script.py (line 2)"),
    (["--clients", "99999999999999"], "but half of the memory is "),
    (["--model", "things.py:other"], "cannot train this model on these data"),
    (["--model", "things.py:other", "--engine", "auto", "--cohort", "3"], "no engine can run this model"),
    (["--dataset", "cifar10", "--data", "nowhere"], "nowhere"),
    (["--dataset", "mine", "--data", "empty.npz"], "empty"),
    (["--dataset", "mine", "--data", "nan.npz"], "NaN"),
    (["--dataset", "mine", "--data", "labels.npz"], "labels run from -1"),
    (["--dataset", "mine", "--data", "strange.npz"], "the test part has samples of class 2, but the training part has"),
    (["--split", "none.npz"], "none.npz"),
    (["--seed", str(2**63)], "seed is 9223372036854775808, but must be at most 9223372036854775807"),
    (["--set", f"seed={10**23}"], "seed is 1" + 23 * "0"),
    (["--rounds", "9" * 23], "but must be at most 9223372036854775807"),
]


def one_line(answer: Answer, message: str) -> None:
    assert answer.code != 0
    assert answer.out == ""
    assert message in answer.err
    assert answer.err.startswith("fedsmoo: ")
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err


def arrays() -> None:
    """Data files that are wrong in one way each."""
    x, y = np.zeros((6, 3), np.float32), np.arange(6) % 2
    nan = x.copy()
    nan[2, 1] = np.nan
    np.savez("empty.npz", x_train=x[:0], y_train=y[:0], x_test=x, y_test=y)
    np.savez("nan.npz", x_train=nan, y_train=y, x_test=x, y_test=y)
    np.savez("strange.npz", x_train=x, y_train=y, x_test=x, y_test=np.arange(6) % 3)
    np.savez("labels.npz", x_train=x, y_train=y - 1, x_test=x, y_test=y)


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_run_refuses_in_one_line(arguments: list[str], message: str, call: Call) -> None:
    for name, text in FILES.items():
        Path(name).write_text(text)
    arrays()
    given = [*arguments]
    for flag, value in zip(TINY[::2], TINY[1::2], strict=True):
        if flag not in given:
            given += [flag, value]
    before = sorted(p.name for p in Path().iterdir())
    one_line(call("run", *given, "--out", "made"), message)
    assert sorted(p.name for p in Path().iterdir()) in (before, sorted([*before, "made"]))


SPLITS = {
    "dirichlet.json": ["--partition", "dirichlet", "--u", "0.6"],
    "pathological.json": ["--partition", "pathological", "--c", "2"],
    "imported.json": None,
}
CONTRADICTIONS = [
    ("dirichlet.json", ["--clients", "5"], "clients is 5, but in the split dirichlet.json it is 4: leave clients out"),
    ("dirichlet.json", ["--clients", "100"], "clients is 100"),  # which is also the default
    ("dirichlet.json", ["--set", "clients=100"], "clients is 100"),
    ("dirichlet.json", ["hundred.toml"], "clients is 100"),
    ("dirichlet.json", ["--partition", "dirichlet-0.1"], "u is 0.1, but in the split dirichlet.json it is 0.6"),
    ("dirichlet.json", ["--partition", "iid"], "partition is iid, but in the split dirichlet.json it is dirichlet"),
    ("dirichlet.json", ["--c", "2"], "the split dirichlet.json is dirichlet and has no c: leave c out"),
    ("dirichlet.json", ["--replacement", "no"], "replacement is False"),
    ("pathological.json", ["--c", "3"], "c is 3, but in the split pathological.json it is 2"),
    (
        "imported.json",
        ["--partition", "natural"],
        "partition is natural, but in the split imported.json it is imported",
    ),
    ("imported.json", ["--u", "0.1"], "the split imported.json is imported and has no u"),
    ("missing.json", [], "split missing.json: no such file"),
]
AGREE = [
    ("dirichlet.json", []),
    ("dirichlet.json", ["--clients", "4", "--partition", "dirichlet-0.6", "--u", "0.6", "--refill", "no"]),
    ("pathological.json", ["--partition", "pathological", "--c", "2"]),
    ("imported.json", ["--clients", "4"]),
]
SHORT = [w for k, w in enumerate(TINY) if "--clients" not in (w, TINY[k - 1])]


@pytest.fixture
def splits(call: Call) -> None:
    """Split files of four clients each, in the folder that commands are called in."""
    Path("lists.json").write_text("[[0, 1], [2, 3], [4, 5], [6, 7]]")
    Path("hundred.toml").write_text("clients = 100\n")
    for name, rule in SPLITS.items():
        words = ["import", "lists.json", "--dataset", "digits"] if rule is None else ["split", "digits", *rule]
        assert call("data", *words, *(["--clients", "4"] if rule else []), "--out", name).code == 0


@pytest.mark.usefixtures("splits")
@pytest.mark.parametrize(
    ("file", "arguments", "message"), CONTRADICTIONS, ids=[" ".join(a) for _, a, _ in CONTRADICTIONS]
)
def test_what_contradicts_a_split_file_is_refused(file: str, arguments: list[str], message: str, call: Call) -> None:
    one_line(call("run", *arguments, "--split", file, *SHORT, "--out", "made"), message)
    assert not Path("made").exists()


@pytest.mark.usefixtures("splits")
@pytest.mark.parametrize(("file", "arguments"), AGREE, ids=[" ".join(a) for _, a in AGREE])
def test_what_agrees_with_a_split_file_is_accepted(file: str, arguments: list[str], call: Call) -> None:
    """The folder's config says how many clients there were, and is itself a config that runs."""
    answer = call("run", *arguments, "--split", file, *SHORT, "--out", "made")
    assert answer.code == 0
    assert "on digits, 4 clients" in answer.out
    config = read_toml(Path("made/config.toml"))
    assert (config["clients"], config["split"], "partition" in config) == (4, file, False)
    assert call("run", "made/config.toml", "--out", "again").code == 0
    assert Path("made/model.safetensors").read_bytes() == Path("again/model.safetensors").read_bytes()


@pytest.mark.usefixtures("splits")
def test_a_split_file_is_held_against_other_ways_to_say_it() -> None:
    given = {"rounds": 1, "local_steps": 1, "cohort": 2, "split": "dirichlet.json"}
    assert len(simulate("softmax", **given).simulation.indices) == 4
    with pytest.raises(FedsmooError, match=r"clients is 7, but in the split dirichlet\.json it is 4"):
        simulate("softmax", clients=7, **given)
    with pytest.raises(FedsmooError, match=r"u is 0\.3, but in the split dirichlet\.json it is 0\.6"):
        simulate("softmax", partition="dirichlet-0.3", **given)
    with pytest.raises(FedsmooError, match=r"^both client_indices and split='dirichlet\.json' say who holds which"):
        simulate("softmax", client_indices=[[0, 1], [2, 3]], **given)
    with pytest.raises(FedsmooError, match=r"^both partition=Dirichlet\(.*\) and split='dirichlet\.json' say who"):
        simulate("softmax", partition=Dirichlet(0.6), **given)
    with pytest.raises(FedsmooError, match="clients is 100, but in the split"):
        expand({"split": "dirichlet.json", "clients": [4, 100]}, "here")
    assert expand({"split": "dirichlet.json"}, "here").configs[0].clients == 4


COMPARE = [
    (["--algorithms", "fedavg,fedsmo"], "unknown algorithm 'fedsmo'"),
    (["--algorithms", "fedavg,fedavg"], "names 'fedavg' twice"),
    (["--algorithms", "fedavg", "--seeds", "0,x"], "must be whole numbers separated by commas"),
    (["--algorithms", "fedavg", "--seeds", "0,0"], "names a seed twice"),
    (["--algorithms", "fedavg", "--seeds", f"0,{2**63}"], "seed is 9223372036854775808, but must be at most"),
    (["--algorithms", "fedavg", "--seeds", "0,-1"], "seed is -1, but must be at least 0"),
    (["--algorithms", "fedavg,fedprox", "--set", "fedpro.mu=1"], "'fedpro': did you mean 'fedprox'? Known: al"),
    (["--algorithms", "fedavg", "--set", "roundz=3"], "unknown setting 'roundz': did you mean 'rounds'? fedavg has"),
    (["--algorithms", "fedavg", "--set", "seeds=3"], "a comparison takes its seeds from --seeds"),
    (["--algorithms", "fedavg", "--set", "zzz=3"], "unknown setting 'zzz'; fedavg has lr_server; "),
    (["--algorithms", "fedavg,fedsmoo", "--set", "fedsmoo.r=x"], "r is 'x', but must be a number"),
    (["--algorithms", "fedavg,fedsmoo", "--set", "fedsmoo.r=-1"], "r is -1.0, but must be at least 0"),
]


@pytest.mark.parametrize(("arguments", "message"), COMPARE, ids=[" ".join(a) for a, _ in COMPARE])
def test_compare_refuses_before_it_trains_anything(arguments: list[str], message: str, call: Call) -> None:
    one_line(call("compare", *arguments, *TINY, "--out", "made"), message)
    assert not Path("made").exists()


@pytest.mark.parametrize("command", [["run"], ["compare", "--algorithms", "fedavg"]], ids=["run", "compare"])
def test_a_folder_that_cannot_be_written_is_refused(command: list[str], call: Call) -> None:
    Path("file").write_text("precious")
    for out in ("file", "file/inside", "/proc/nowhere"):
        answer = call(*command, *TINY, "--out", out)
        assert answer.code != 0
        assert answer.err.startswith("fedsmoo: ")
        assert answer.err.count("\n") == 1
        assert out.split("/")[0] in answer.err
    assert Path("file").read_text() == "precious"


@pytest.mark.parametrize(
    "left", [["config.toml"], ["metrics.jsonl"], ["config.toml", "metrics.jsonl", "model.safetensors"]]
)
def test_a_folder_that_holds_a_run_is_not_overwritten(left: list[str], call: Call) -> None:
    Path("old").mkdir()
    for name in left:
        (Path("old") / name).write_text("rounds = 1")
    one_line(call("run", "--algorithm", "fedavg", *TINY, "--out", "old"), "already holds a run")
    assert sorted(p.name for p in Path("old").iterdir()) == sorted(left)
    assert all((Path("old") / name).read_text() == "rounds = 1" for name in left)


def test_compare_does_not_write_into_a_folder_with_something_in_it(call: Call) -> None:
    Path("old").mkdir()
    Path("old/notes.txt").write_text("mine")
    one_line(call("compare", "--algorithms", "fedavg", *TINY, "--out", "old"), "nothing was overwritten")
    assert [p.name for p in Path("old").iterdir()] == ["notes.txt"]


def test_a_run_that_diverges_says_which_round_and_keeps_the_rest(call: Call) -> None:
    """The last layer's scale doubles the exponent every round until float32 ends."""
    Path("grow.py").write_text(
        "from dataclasses import dataclass\nfrom fedsmoo import FedAvg\n"
        "@dataclass(frozen=True)\nclass Grow(FedAvg):\n"
        "    def aggregate(self, srv, mean, rnd):\n        return srv.replace(w=srv.w * 1e15)\n"
    )
    answer = call("run", "--algorithm", "grow.py:Grow", *tiny("--rounds", "9"), "--clip", "none", "--out", "here")
    assert answer.code != 0
    assert "Traceback" not in answer.err
    last = answer.err.strip().splitlines()[-1]
    assert "no longer finite" in last
    assert "Try a smaller lr" in last
    number = int(last.partition("round ")[2].partition(":")[0])
    assert 1 < number < 9
    assert len(Path("here/metrics.jsonl").read_text().splitlines()) == number - 1
    assert Path("here/config.toml").exists()
    assert not Path("here/summary.json").exists()  # it did not finish
    assert all(v.isfinite().all() for v in load_file("here/model.safetensors").values())  # the last sound model


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "algoritms"], "did you mean 'algorithms'"),
        (["show", "fedsmo"], "did you mean 'fedsmoo'"),
        (["show", "nowhere.py:X"], "there is no file 'nowhere.py'"),
    ],
)
def test_other_commands(arguments: list[str], message: str, call: Call) -> None:
    one_line(call(*arguments), message)


@pytest.mark.parametrize("arguments", [["rum"], ["run", "--algorith"], ["run", "a.toml", "b.toml"], ["show"]])
def test_wrong_words_get_a_usage_message(arguments: list[str], call: Call) -> None:
    answer = call(*arguments)
    assert answer.code == 2
    assert "Usage" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("command", [["compare", "--algorithms", "fedavg", *TINY], ["sweep", "grid.toml"]])
def test_only_single_runs_use_ranks(command: list[str], call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("grid.toml").write_text(
        'algorithm = ["fedavg", "fedsam"]\nmodel = "softmax"\nclients = 4\ncohort = 2\nrounds = 1\n'
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    one_line(call(*command, "--out", "here"), "not under torchrun")
    assert not Path("here").exists()


def test_a_factory_that_fails_is_said_in_a_line(call: Call) -> None:
    Path("net.py").write_text("def make():\n    raise KeyError('weights')\n")
    one_line(
        call("run", "--algorithm", "fedavg", *tiny("--model", "net.py:make"), "--out", "here"), "KeyError: 'weights'"
    )


@pytest.mark.parametrize("words", [["verify"], ["run", "--out"], ["run", "--dataset"], ["show"]], ids=" ".join)
def test_a_name_that_no_file_can_have_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main([*words, "9" * 300])
    said = capsys.readouterr().err.strip()
    assert (end.value.code, said.count("\n"), said[:9]) == (2, 0, "fedsmoo: ")
    assert list(tmp_path.iterdir()) == []
