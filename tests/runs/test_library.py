"""The library under the commands: ``fedsmoo.run`` and ``fedsmoo.resume`` do what ``fedsmoo run`` and ``resume`` do."""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedsmoo
from fedsmoo.cli import main
from fedsmoo.core import FedsmooError
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.settings import toml as toml_module
from fedsmoo.runs.settings.training import Training
from fedsmoo.runs.storage import folder as folder_module
from fedsmoo.runs.storage.checkpoint import newest
from fedsmoo.runs.storage.files import read_json
from fedsmoo.runs.storage.names import CHECKPOINT, CONFIG, METRICS, MODEL, STARTED, SUMMARY
from fedsmoo.runs.storage.reader import read_config

SETTINGS: dict[str, Any] = {
    "algorithm": "fedsmoo", "model": "softmax", "clients": 6, "cohort": 2, "rounds": 4, "local_steps": 2, "lr": 0.05,
    "device": "cpu",
}  # fmt: skip
FLAGS = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
TABLE = "\n".join(f"{name} = {value!r}" for name, value in SETTINGS.items() if name != "algorithm")
FILE = f'{TABLE}\n[algorithm]\nname = "fedsmoo"\nr = 0.2\n'.replace("'", '"')


def command(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that the command makes."""
    folder = tmp_path_factory.mktemp("library") / "whole"
    assert command("run", *FLAGS, "--set", "r=0.2", "--out", str(folder)) == 0
    return folder


def same_run(folder: Path, other: Path) -> bool:
    """Whether two folders hold the same settings, vectors and numbers; times and commands differ."""
    files = [(f / name).read_bytes() for f in (folder, other) for name in (CONFIG, MODEL)]
    facts = [
        {k: v for k, v in read_json(f / SUMMARY).items() if k in ("test_loss", "rounds", "pack")}
        for f in (folder, other)
    ]
    notes = [read_json(f / STARTED)["again"] for f in (folder, other)]
    return files[:2] == files[2:] and facts[0] == facts[1] and notes[0] == notes[1] and len(facts[0]) == 3


@pytest.mark.parametrize("way", ["settings", "mapping", "table", "config", "file", "text", "overridden"])
def test_every_way_to_say_it_is_the_run_of_the_command(way: str, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(FILE)
    (tmp_path / "other.toml").write_text('algorithm = "fedsam"\nrounds = 9\n[algorithm_options]\nrho = 0.3\n')
    out = tmp_path / "run"
    result = {
        "settings": lambda: fedsmoo.run(out=out, r=0.2, **SETTINGS),
        "mapping": lambda: fedsmoo.run(SETTINGS, out, r=0.2),
        "table": lambda: fedsmoo.run(tomllib.loads(FILE), out),
        "config": lambda: fedsmoo.run(fedsmoo.Config(**SETTINGS, algorithm_options={"r": 0.2}), out),
        "file": lambda: fedsmoo.run(tmp_path / "c.toml", out),
        "text": lambda: fedsmoo.run(str(tmp_path / "c.toml"), str(out)),
        "overridden": lambda: fedsmoo.run(tmp_path / "other.toml", out, **SETTINGS, algorithm_options={"r": 0.2}),
    }[way]()
    assert same_run(out, whole)
    assert result.folder == out
    assert result.summary == read_json(out / SUMMARY)
    assert [r.round for r in result.history] == [1, 2, 3, 4]


def test_without_a_folder_it_makes_the_one_that_the_command_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = {**SETTINGS, "rounds": 1}
    assert [str(fedsmoo.run(tiny).folder) for _ in "ab"] == [f"runs/fedsmoo-digits-seed0{n}" for n in ("", "-2")]


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (3, {}, "config is 3, but must be a Config, a mapping, or the path of a TOML file"),
        ("nowhere.toml", {}, "cannot read the config file nowhere.toml"),
        ({"lrr": 1}, {}, "lrr"),
        (None, {"lrr": 0.1}, "unknown setting 'lrr'"),
        (None, {"algorithm": "fedavg", "r": 0.1}, "unknown setting 'r'"),
        (None, {"lr": "much"}, "lr is 'much', but must be a number"),
        (None, {"partition": "iid", "u": 0.3}, "the partition 'iid' has no u"),
        ({"partition": "dirichlet-0.6", "u": 0.3}, {}, "u is 0.3, but the partition 'dirichlet-0.6' says 0.6"),
        (fedsmoo.Config(partition="iid", refill=True), {}, "refill"),
        (None, {"algorithm": fedsmoo.FedAvg()}, "algorithm is FedAvg"),
        (
            None,
            {"algorithm": "mine.py"},
            "unknown algorithm 'mine.py': did you mean what a file holds, 'mine.py:Name'?",
        ),
        ({3: 1}, {}, "unknown setting 3"),
        (None, {"track": "tensorboard"}, "track is 'tensorboard', but must be a list: write ['tensorboard']"),
        (None, {"save_every": -1}, "save_every is -1, but must be a number of rounds"),
        (None, {"save_every": "x"}, "save_every is 'x', but must be a number of rounds"),
        (None, {"callback": 3}, "callback is 3, but must be a function"),
    ],
)
def test_what_the_command_refuses_is_refused(
    config: Any, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(FedsmooError) as refused:
        fedsmoo.run(config, tmp_path / "run", **settings)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_config_is_not_taken_for_more_than_it_says() -> None:
    """Settings at their defaults are nobody's choice: a partition's name and a data set's clients overrule them."""
    from fedsmoo.runs.settings.merge import make_config

    assert make_config(fedsmoo.Config(partition="dirichlet-0.6")).u == 0.6
    assert make_config(fedsmoo.Config(partition="iid")).replacement is False
    assert make_config(fedsmoo.Config(), {"dataset": "synthetic"}).partition == "natural"
    assert make_config(fedsmoo.Config(clip=None), {"lr": 0.2}) == fedsmoo.Config(clip=None, lr=0.2)
    assert make_config(make_config(fedsmoo.Config(partition="pathological-5"))).c == 5


def test_a_callback_that_returns_false_stops_and_resume_goes_on_to_the_same_bits(whole: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    stopped = fedsmoo.run(SETTINGS, tmp_path / "run", r=0.2, callback=lambda r: seen.append(r.round) or r.round < 2)
    assert (seen, stopped.summary, stopped.folder) == ([1, 2], None, tmp_path / "run")
    result = fedsmoo.resume(str(tmp_path / "run"), callback=lambda r: seen.append(r.round))
    assert seen == [1, 2, 3, 4]
    assert same_run(tmp_path / "run", whole)
    assert result.summary == read_json(tmp_path / "run" / SUMMARY)
    with pytest.raises(FedsmooError, match="has finished: there is nothing to resume"):
        fedsmoo.resume(tmp_path / "run")
    with pytest.raises(FedsmooError, match="is not a run folder"):
        fedsmoo.resume(tmp_path)


@pytest.fixture
def ctrl_c() -> Iterator[Any]:
    """Ctrl-C as at a terminal; a suite that is started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_saves_the_round_first(whole: Path, tmp_path: Path, ctrl_c: Any) -> None:
    def press(record: fedsmoo.Record) -> None:
        if record.round == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fedsmoo.run(SETTINGS, tmp_path / "run", r=0.2, save_every=0, callback=press)
    assert signal.getsignal(signal.SIGINT) is ctrl_c
    saved, _ = newest(tmp_path / "run" / CHECKPOINT)
    assert saved is not None
    assert saved.round == 3
    assert not (tmp_path / "run" / ".claim").exists()
    fedsmoo.resume(tmp_path / "run")
    assert same_run(tmp_path / "run", whole)


@pytest.mark.usefixtures("ctrl_c")
def test_the_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    def press(record: fedsmoo.Record) -> None:
        for _ in range(2 if record.round == 2 else 0):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fedsmoo.run(SETTINGS, tmp_path / "run", save_every=1, callback=press)
    assert (tmp_path / "run" / METRICS).read_text().count("\n") == 2
    saved, _ = newest(tmp_path / "run" / CHECKPOINT)
    assert saved is not None
    assert saved.round == 1


def test_ctrl_c_that_is_ignored_stops_nothing(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        result = fedsmoo.run(SETTINGS, tmp_path / "run", callback=lambda r: os.kill(os.getpid(), signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.summary is not None


def test_texts_are_checked_rendered_and_validated_once(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config is validated when it is made, and once more as it is read back from the text that the folder keeps."""
    count: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        old = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: count.update([name]) or old(*a, **k))

    counted(Training, "__post_init__")
    counted(folder_module, "to_toml")
    counted(toml_module.tomllib, "loads")
    assert command("run", *FLAGS, "--set", "r=0.2", "--out", str(tmp_path / "run")) == 0
    assert count == {"__post_init__": 2, "to_toml": 1, "loads": 1}
    assert same_run(tmp_path / "run", whole)


def test_no_module_takes_the_place_of_a_function(tmp_path: Path) -> None:
    """A package of the same name would replace a function when it is imported."""
    for module in pkgutil.walk_packages(fedsmoo.__path__, "fedsmoo."):
        if not module.name.startswith(("fedsmoo.kernels", "fedsmoo.deploy", "fedsmoo.__main__")):  # need Triton, Flower
            importlib.import_module(module.name)
    names = {name for _, name, _ in pkgutil.iter_modules(fedsmoo.__path__)}
    assert not names & set(fedsmoo.__all__)
    assert dir(fedsmoo) == sorted(fedsmoo.__all__)
    assert all(getattr(fedsmoo, name) is not None for name in fedsmoo.__all__)
    tiny = {**SETTINGS, "rounds": 2}
    stopped = fedsmoo.run(tiny, tmp_path / "run", callback=lambda r: False)
    assert len(stopped.history) == 1
    done = fedsmoo.resume(tmp_path / "run")
    given = {n: v for n, v in tiny.items() if n not in ("model", "algorithm")}
    assert fedsmoo.simulate("softmax", "digits", "fedsmoo", **given).accuracy == done.accuracy
    assert identity(read_config(tmp_path / "run")) == identity(fedsmoo.Config(**tiny))
    many = {n: v for n, v in tiny.items() if n != "algorithm"}
    assert len(fedsmoo.sweep({"algorithm": ["fedavg", "fedsmoo"]}, tmp_path / "grid", **many).finished) == 2
    assert [row.method for row in fedsmoo.compare("fedavg,fedsmoo", out=tmp_path / "both", **many).rows] == [
        "FedAvg", "FedSMOO",
    ]  # fmt: skip
    assert len(fedsmoo.analyse("fairness", tmp_path / "both", device="cpu")) == 2
    assert fedsmoo.report(tmp_path, tmp_path / "all.html").is_file()
    assert len(fedsmoo.paper.table("ablation", run=False, out=tmp_path, results=tmp_path).tables) == 1


def test_the_document_s_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "resume.md").read_text().partition("## In Python\n")[2]
    exec(text.split("```python\n")[1].partition("```")[0], {})
    accuracy = read_json(Path("runs/b") / SUMMARY)["test_accuracy"]
    assert capsys.readouterr().out == f"None\n9 {accuracy}\n"


def test_a_result_is_a_line_at_a_prompt(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = fedsmoo.run(SETTINGS, folder)
    assert repr(result) == f"<Result: FedSMOO, 4 rounds, test accuracy {100 * result.accuracy:.2f}%, in {folder}>"
    assert repr(fedsmoo.simulate(**{**SETTINGS, "rounds": 3, "eval_every": 2}, callback=lambda r: False)) == (
        "<Result: FedSMOO, 1 rounds>"
    )
