"""Slips of a newcomer: a wrong place, a wrong word, a damaged file. One line each, and what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from fedsmoo.core import FedsmooError
from fedsmoo.paper.experiments import experiment
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.settings.toml import read_toml
from fedsmoo.runs.storage.reader import read_config
from fedsmoo.sweeps.grid import expand

from .conftest import TINY, Call, tiny
from .test_bad_input import one_line

NATURAL = [
    "run",
    "--dataset",
    "synthetic",
    "--model",
    "softmax",
    "--cohort",
    "2",
    "--rounds",
    "1",
    "--local-steps",
    "1",
]
MARKED = "<!-- table: accuracy -->\n<!-- /table -->\n"
SLIPS = [
    (["run", "here"], "cannot read the config file here: Is a directory; did you mean here/config.toml?"),
    (["resume", "here/config.toml"], "here/config.toml is not a run folder: it has no config.toml; did you mean here?"),
    (["serve", "here", "--port", "99999"], "cannot listen on 127.0.0.1, port 99999: ports are 0 to 65535"),
    (["runs", ".", "--order", "nonsense"], "--order 'nonsense' is not SQL for these columns: no such column: nonsense"),
    (["runs", ".", "--where", "lr >"], "--where 'lr >' is not SQL for these columns"),
    (["results", "export", "here", "--to", "file"], "cannot write file/"),
    (["table", "accuracy", "--format", "xlsx"], "unknown format 'xlsx'; known: csv, latex, markdown, text"),
    (["table", "--update", "file", "--results", "cut"], "cut/a.json is cut or damaged"),
    (["table", "--update", "file", "--results", "uneven"], "uneven/a.json is damaged: the columns of its curve differ"),
    (["table", "--update", "file", "--results", "empty"], "file has no marker: a table goes between the lines"),
    (["table", "--update", "marked", "file", "--results", "empty"], "file has no marker"),
    (["table", "--update", "opened", "--results", "empty"], "opened has no marker"),
    (["table", "--update", "marked", "--results", "nowhere"], "results: there is no folder nowhere"),
    (["table", "--update", "marked"], "results: there is no folder results"),
    (["table", "--update", "--results", "empty"], "update: which files?"),
    (["table", "accuracy", "--no-run", "--results", "nowhere"], "results: there is no folder nowhere"),
    (
        ["report", "here", "--out", "."],
        "cannot write the page .: it is a folder; name a file in it, such as report.html",
    ),
    (["report", "here", "--out", "empty"], "it is a folder; name a file in it, such as empty/report.html"),
    (["export", ".", "--to", "new"], ". is not a run folder: it has no config.toml"),
    (["run", "code.py"], "code.py is Python, no config file: say what it is, --algorithm code.py:Name or --model"),
    (["run", "code.py:Net"], "code.py:Net is Python, no config file: say what it is, --algorithm code.py:Net or"),
    (["compare", "fedavg", "code.py"], "code.py is Python, no config file: say what it is, --algorithm code.py:Name"),
    (["table", "here"], "here is a path, but tables are the paper's: accuracy, rounds, "),
    (["run", "--dataset", "mine", "--data", "a.csv"], "; a table is named by --dataset 'table:a.csv'"),
    (["figure", "accuracy"], "figure accuracy: say of which runs: fedsmoo figure accuracy RUN"),
    ([*NATURAL, "--partition", "natural", "--clients", "7"], "clients is 7, but 'synthetic(0.5,0.5)' has 30 natural"),
]


@pytest.fixture
def here(call: Call) -> None:
    """A finished run, a file, and results that are not whole."""
    assert call("run", "--algorithm", "fedavg", *TINY, "--out", "here").code == 0
    Path("file").write_text("precious")
    Path("code.py").write_text("from torch import nn\n")
    Path("a.csv").write_text("a,y\n1,0\n")
    Path("opened").write_text("<!-- table: accuracy -->\n")
    Path("marked").write_text(MARKED)
    Path("empty").mkdir()
    for name, curve in (("cut", {}), ("uneven", {"curve": {"round": [1, 2], "test_accuracy": [0.5]}})):
        Path(name).mkdir()
        Path(name, "a.json").write_text(json.dumps({"format": "fedsmoo result 1", "config": {}, **curve}))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("arguments", "message"), SLIPS, ids=[" ".join(a) for a, _ in SLIPS])
def test_a_slip_is_one_line(arguments: list[str], message: str, call: Call) -> None:
    one_line(call(*arguments), message)
    assert Path("file").read_text() == "precious"
    assert Path("marked").read_text() == MARKED


def test_a_folder_with_blanks_is_one_word_of_the_command_to_go_on(call: Call) -> None:
    folder = Path("my runs") / "a"
    small = ["--rounds", "1", "--clients", "4", "--cohort", "2", "--local-steps", "1", "--model", "softmax"]
    call("run", *small, "--out", str(folder))
    for words, said in (
        (["run", *small, "--out", str(folder)], "'fedsmoo resume \"my runs/a\"'"),
        (["resume", str(folder)], "'fedsmoo report \"my runs/a\"'"),
    ):
        assert said in " ".join(call(*words).err.split())
    (folder / "summary.json").unlink()
    assert "'fedsmoo resume \"my runs/a\"' goes on" in " ".join(call("verify", str(folder)).out.split())


@pytest.mark.parametrize(("words", "said"), [(["rum"], "'run', 'resume'"), (["results", "exprt"], "'export'")])
def test_an_unknown_command_is_answered_once(words: list[str], said: str, call: Call) -> None:
    answer = " ".join(call(*words).err.replace("│", " ").split())
    assert f"No such command {words[-1]!r}. Did you mean {said}?" in answer
    assert answer.count("Did you mean") == 1


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_byte_order_mark_is_no_setting(command: str, call: Call) -> None:
    text = "rounds = 1\nclients = 4\ncohort = 2\nlocal_steps = 1\nmodel = 'softmax'\n"
    Path("marked.toml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    call(command, "marked.toml", "--out", "out")
    assert len(list(Path("out").rglob("summary.json"))) == 1


def test_a_marked_table_is_updated_without_a_result(call: Call) -> None:
    """The folder must be there, not results in it; the default one may be missing where nothing is updated."""
    Path("empty").mkdir()
    Path("marked").write_text(MARKED)
    assert call("table", "--update", "marked", "--results", "empty").err == "1 file, 1 changed\n"
    assert "| FedSMOO |  |" in Path("marked").read_text()
    assert call("table", "--update", "marked", "--results", "empty").err == "1 file, 0 changed\n"
    assert call("table", "accuracy", "--no-run").code == 0


@pytest.mark.parametrize(
    "arguments",
    [["sweep", "a.toml", "--pack", "0"], ["sweep", "a.toml", "--minutes", "-1"], ["runs", ".", "--limit", "-1"]],
)
def test_counts_below_their_least_are_refused(arguments: list[str], call: Call) -> None:
    answer = call(*arguments)
    assert answer.code == 2
    assert f"Invalid value for '{arguments[2]}'" in answer.err


def test_a_sweep_says_that_its_folder_cannot_be_written(call: Call) -> None:
    Path("grid.toml").write_text("rounds = 1\nseed = [0, 1]\n")
    Path("file").write_text("precious")
    answer = call("sweep", "grid.toml", *TINY, "--out", "file/inside")
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith("fedsmoo: cannot write the run folder file/inside/")
    assert "Traceback" not in answer.err
    assert Path("file").read_text() == "precious"


def test_a_slip_in_a_sweep_s_hyper_parameters_is_said() -> None:
    """A name that none of its methods has; the paper's tables may be asked for with some of their methods only."""
    for slip in ({"hyper": {"betta": [1, 10]}}, {"columns": {"a": {"hyper": {"betta": 1}}}}):
        with pytest.raises(FedsmooError, match="unknown hyper-parameter of these methods 'betta': did you mean 'beta'"):
            expand({"algorithm": ["feddyn", "fedavg"], **slip}, "here")
    with pytest.raises(FedsmooError, match="'beta'"):
        expand({"algorithm": "fedavg", "hyper": {"beta": 1}}, "here")
    assert experiment("accuracy", methods=["FedAvg"]).cells


@pytest.mark.parametrize("command", ["run", "sweep", "compare"])
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ('mu = "x"', "mine.toml: mu is 'x', but must be a number"),
        ("mu = -1", "mine.toml: mu is -1.0, but must be at least 0"),
        ("nu = 1", "mine.toml: unknown hyper-parameter of FedProx 'nu': did you mean 'mu'? Known: lr_server, mu"),
    ],
)
def test_a_wrong_option_of_a_method_is_said_with_its_file(command: str, option: str, message: str, call: Call) -> None:
    Path("mine.toml").write_text(f'rounds = 1\nalgorithm = "fedprox"\n[algorithm_options]\n{option}\n')
    one_line(call(command, "mine.toml", *(["--algorithms", "fedprox"] if command == "compare" else [])), message)
    assert not Path("runs").exists()


def test_tables_of_options_are_not_offered_to_set(call: Call) -> None:
    answer = call("run", *TINY, "--set", "algorithm_options=3")
    assert "unknown setting 'algorithm_options'" in answer.err
    assert "algorithm_options" not in answer.err.partition("'algorithm_options'")[2]


def test_a_natural_split_says_how_many_clients_it_has(call: Call) -> None:
    answer = call("data", "split", "synthetic", "--partition", "natural", "--out", "n.json")
    assert answer.out == "n.json: 30 clients of synthetic, natural, seed 0\n"
    assert json.loads(Path("n.json").read_text())["clients"] == 30


def test_a_run_with_natural_clients_keeps_their_number(call: Call) -> None:
    """In the config, the report and the result file; and the run is still the one that the command describes."""
    given = [*NATURAL, "--partition", "natural", "--engine", "serial"]
    assert call(*given, "--out", "n").code == 0
    assert read_toml(Path("n/config.toml"))["clients"] == 30
    assert call("run", "n/config.toml", "--out", "again").code == 0
    assert Path("n/model.safetensors").read_bytes() == Path("again/model.safetensors").read_bytes()
    assert call("report", "n", "--out", "n.html").code == 0
    page = Path("n.html").read_text()
    assert "of 30 clients" in page
    assert "of 100 clients" not in page
    asked = Config(dataset="synthetic", model="softmax", cohort=2, rounds=1, local_steps=1, partition="natural")
    assert identity(read_config(Path("n"))) == identity(asked) == identity(asked.replace(clients=30))
    assert identity(asked) != identity(asked.replace(partition="iid"))


def test_a_sweep_with_natural_clients_finds_its_runs_again(call: Call) -> None:
    lines = [
        f'{flag[2:].replace("-", "_")} = "{value}"' for flag, value in zip(NATURAL[1::2], NATURAL[2::2], strict=True)
    ]
    Path("grid.toml").write_text("\n".join([*lines, 'algorithm = "fedavg"', 'partition = "natural"', "seed = [0, 1]"]))
    assert "2 finished, 0 failed, 0 left" in call("sweep", "grid.toml", "--out", "s").out
    assert "2 runs, 2 done" in call("sweep", "grid.toml", "--out", "s").err
    folders = sorted(p.name for p in Path("s").iterdir() if p.is_dir())
    assert len(folders) == 2
    assert {read_toml(Path("s", name, "config.toml"))["clients"] for name in folders} == {30}
    written = call("results", "export", "s", "--to", "files").out.split()
    assert [Path(name).stem for name in written] == folders


def test_one_thing_is_not_several(call: Call) -> None:
    answer = call("run", "--algorithm", "fedavg", *tiny("--rounds", "1"), "--out", "here")
    assert "2 per round, 1 round\n  engine          serial: engine=serial; 1 thread" in answer.out
    assert all(line == line.rstrip() for line in answer.out.splitlines())
    assert call("runs", ".").out.startswith("1 run in .\n")


@pytest.mark.parametrize("out", [["--out", ""], ["--out="], ["--out", " "]])
def test_an_empty_path_is_not_the_present_folder(out: list[str], call: Call) -> None:
    for command in (["run", *TINY], ["compare", "--algorithms", "fedavg", *TINY], ["sweep", "grid.toml"]):
        answer = call(*command, *out)
        assert (answer.code, answer.err) == (2, "fedsmoo: --out is empty: give it a value, or leave it out\n")
    assert list(Path().iterdir()) == []


def test_the_second_line_says_which_engine_and_why(call: Call) -> None:
    words = ["--model", "mlp", "--clients", "4", "--cohort", "3", "--rounds", "1", "--local-steps", "1"]
    second = call("run", *words, "--device", "cpu", "--out", "here").out.splitlines()[1]
    why = "the model has a hand-batched forward"
    threads = torch.get_num_threads()
    assert second == f"  engine          batched: {why}; 3 clients at once, {threads} thread{'s' * (threads > 1)}"
    for name in ("started.json", "summary.json"):
        facts = json.loads(Path("here", name).read_text())
        assert [facts[n] for n in ("engine", "engine_why", "chunk", "threads")] == ["batched", why, 3, threads]
    (file,) = call("results", "export", "here", "--to", "files").out.split()
    facts = json.loads(Path(file).read_text())
    assert [facts[n] for n in ("engine", "engine_why", "chunk", "threads")] == ["batched", why, 3, threads]


def test_a_run_called_bf16_that_a_cpu_began_goes_on_and_says_what_it_is(call: Call) -> None:
    """Such runs were begun before they were refused."""
    assert call("run", *TINY, "--device", "cpu", "--out", "here").code == 0
    for name in ("summary.json", "metrics.jsonl"):
        Path("here", name).unlink()
    shutil.rmtree("here/checkpoint")
    text = Path("here/config.toml").read_text()
    Path("here/config.toml").write_text(text.replace('precision = "tf32"', 'precision = "bf16"'))
    answer = call("resume", "here")
    assert answer.code == 0, answer.err
    assert (
        "fedsmoo: precision is bf16, but the run is computed in float32 on this CPU: it keeps its name\n" in answer.err
    )
    assert 'precision = "bf16"' in Path("here/config.toml").read_text()
