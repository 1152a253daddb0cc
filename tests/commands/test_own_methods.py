"""Methods from a user's file: what breaks the contract is refused with its line; what is odd and right runs alike."""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
from pathlib import Path

import pytest
import torch

from fedsmoo import Config, FedsmooError, simulate
from fedsmoo.core import contract
from fedsmoo.core.contract import check, declared, findings
from fedsmoo.deploy.client import Recipe, whole
from fedsmoo.engines import serial
from fedsmoo.engines.steps import eager as steps
from fedsmoo.runs.build import make_algorithm
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.sweeps.pack import assemble_pack

from .conftest import TINY, Call, tiny
from .own_methods import BROKEN, RIGHT, written

SMALL = {"clients": 4, "cohort": 3, "rounds": 3, "local_epochs": 2, "partition": "dirichlet-0.3", "device": "cpu"}
BOOM = """class M(FedAvg):
    def finish(self, w, down, me, rnd):
        if rnd.number == 2:
            raise KeyError("boom")  # here
        return me, Vectors(w=w)
"""


def own(body: str, name: str = "my.py") -> tuple[str, int]:
    """The name of a method in a file of the present folder, and its marked line."""
    text, line = written(body)
    Path(name).write_text(text)
    return f"{name}:M", line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", BROKEN)
def test_a_run_refuses_a_broken_method_with_its_line(name: str, call: Call) -> None:
    body, says = BROKEN[name]
    spec, line = own(body)
    answer = call("run", "--algorithm", spec, *TINY, "--out", "out")
    assert answer.code == 2
    assert answer.err.startswith(f"fedsmoo: my.py:{line} {says}"), answer.err
    assert answer.err.count("\n") == 1
    assert not Path("out").exists()


@pytest.mark.parametrize("name", RIGHT)
def test_an_odd_method_that_is_right_runs_alike_on_every_engine(name: str, folder: Path) -> None:
    spec, _ = own(RIGHT[name])
    run = {e: simulate("softmax", "digits", spec, engine=e, dtype="float64", **SMALL) for e in ("serial", "batched")}
    torch.testing.assert_close(run["serial"].server.w, run["batched"].server.w, rtol=0, atol=1e-10)


FITTED = """class M(FedAvg):
    mask: object = None
    def finish(self, w, down, me, rnd):
        d = (w - down.w) * self.mask  # here
        kept = d.abs().topk(100, -1).indices
        return me, Vectors(w=down.w + torch.zeros_like(d).scatter(-1, kept, d.gather(-1, kept)))
    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=mean.w + 0 * (torch.eye(len(srv.w), dtype=torch.float32) @ srv.w))
"""


def test_a_method_that_fits_one_model_only_is_tried_on_that(folder: Path) -> None:
    """A mask of the model's 650 numbers, the largest 100, and a matrix in float32: none of it fits other vectors."""
    spec, line = own(FITTED)
    method = type(make_algorithm(spec, {}))
    fits = method(mask=torch.ones(650))
    run = {e: simulate("softmax", "digits", fits, engine=e, **SMALL) for e in ("serial", "batched")}
    torch.testing.assert_close(run["serial"].server.w, run["batched"].server.w, rtol=0, atol=1e-5)
    with pytest.raises(
        FedsmooError, match=rf"^my.py:{line} in finish: RuntimeError: The size of tensor a \(650\) must"
    ):
        simulate("softmax", "digits", method(mask=torch.ones(651)), **SMALL)


def test_everything_is_said_at_once(call: Call) -> None:
    spec, _ = own("""class M(FedAvg):
    server = ("p",)
    def direction(self, w, grad, down, me):
        g = grad(w)
        return (g if g.sum() > 0 else -g) + float(g.max()), me
    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w + torch.randn_like(w))
    def aggregate(self, srv, mean, rnd):
        return Vectors(w=mean.w)
""")
    lines = call("run", "--algorithm", spec, *TINY).err.removeprefix("fedsmoo: ").splitlines()
    assert [line.partition(":")[2].partition(" ")[2].partition(": ")[0] for line in lines] == [
        "in aggregate", "in direction", "in direction", "in finish",
    ]  # fmt: skip
    said = ("'p'", "bool of", "float of", "randn_like")
    assert all(word in line for word, line in zip(said, lines, strict=True))


LETTERS = tuple("hgfedcba")
SAID_OF_NAMES = {
    "up names {!r} twice": {"up": ("w", *LETTERS, *LETTERS)},
    "server names {!r}, which is on the server already: it is in down": {"down": ("w", *LETTERS), "server": LETTERS},
    "{!r} is own and local: it either stays between rounds or does not": {"own": LETTERS, "local": LETTERS},
    "scalars names {!r}, which no other declaration does": {"scalars": LETTERS},
    "rows names {!r}, which is not in up": {"rows": LETTERS},
    "stays names {!r}, which is not in masks": {"stays": LETTERS},
    "masks names {!r}, which is a vector already": {"server": LETTERS, "masks": LETTERS},
}


@pytest.mark.parametrize("says", SAID_OF_NAMES)
def test_what_is_wrong_with_names_is_said_in_one_order(says: str) -> None:
    """That of the alphabet, not of a set, which is another in every process."""
    names = {place: SAID_OF_NAMES[says].get(place, ()) for place in declared.NAMES}
    if "twice" in says:
        found = declared.wrong_names("up", names["up"])
    else:
        found = [text for _, text in declared.clashes({**names, "down": names["down"] or ("w",)})]
    assert found == [says.format(n) for n in sorted(LETTERS)]


@pytest.mark.parametrize("settings", [{"relaxed": 0.1}, {"wire": "int8"}, {"relaxed": 0.1, "wire": "fp16"}])
def test_a_wrapper_of_ours_hides_nothing(settings: dict[str, object], folder: Path) -> None:
    spec, line = own(BROKEN["branches on a norm"][0])
    with pytest.raises(FedsmooError, match=f"^my.py:{line} in finish: branches on the value"):
        simulate("softmax", "digits", spec, **SMALL, **settings)


def test_comparisons_sweeps_and_federations_refuse_before_anything_runs(call: Call) -> None:
    spec, line = own(BROKEN["adds to w in place"][0])
    says = f"my.py:{line} in finish: changes its input w in place"
    assert says in call("compare", "--algorithms", f"fedavg,{spec}", *TINY, "--out", "out").err
    Path("grid.toml").write_text(f'algorithm = ["fedavg", "{spec}"]\nmodel = "softmax"\n')
    assert says in call("sweep", "grid.toml", "--out", "out").err
    assert not Path("out").exists()
    with pytest.raises(FedsmooError, match=says):
        Recipe(algorithm=make_algorithm(spec, {})).setup(Config(model="softmax"), whole(Config()))


def test_a_wrong_option_of_a_method_in_a_toml_file_is_said_with_the_file(call: Call) -> None:
    spec, _ = own("class M(FedAvg):\n    alpha: float = option(0.5, 'a number')\n")
    for options, says in (
        ("alfa = 1", "unknown hyper-parameter of M 'alfa': did you mean 'alpha'?"),
        ('alpha = "x"', "alpha is 'x'"),
    ):
        Path("mine.toml").write_text(f'algorithm = "{spec}"\n[algorithm_options]\n{options}\n')
        answer = call("run", "mine.toml", *TINY, "--out", "out")
        assert answer.code == 2
        assert answer.err.startswith("fedsmoo: mine.toml: ")
        assert says in answer.err
        assert answer.err.count("\n") == 1


def test_a_profiler_goes_on_after_the_check(folder: Path) -> None:
    """One of functions and one of C, which Python hands out as an object that cannot be called."""
    spec, _ = own(RIGHT[next(iter(RIGHT))])
    method = make_algorithm(spec, {})
    heard: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: heard.append(frame.f_code.co_name))
    try:
        contract.refuse_unsound(method)
        whole(Config())
    finally:
        sys.setprofile(before)
    assert "whole" in heard
    with cProfile.Profile() as profile:
        contract.refuse_unsound(make_algorithm(spec, {}))
        whole(Config())
    assert {"refuse_unsound", "whole"} <= {name for _, _, name in pstats.Stats(profile).stats}


def test_the_check_runs_once_for_a_method_and_again_on_resume(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(check, "findings", lambda a: calls.append(a) or findings(a))
    spec, _ = own(RIGHT["a clamp that hides"])
    config = Config(algorithm=spec, model="softmax", engine="batched", **SMALL)
    assemble_pack([config, config.replace(seed=1)])
    assert len(calls) == 1
    Run.begin(config, folder / "run").folder.path.joinpath("config.toml")
    check._sound.clear()  # another process
    reopen(folder / "run")
    assert len(calls) == 2


def test_ours_are_not_checked_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(algorithm: object) -> list[str]:
        raise AssertionError

    monkeypatch.setattr(check, "findings", never)
    simulate("softmax", "digits", "fedsmoo", relaxed=0.1, wire="int8", engine="serial", **SMALL)
    assert contract.is_ours(make_algorithm("fedsmoo", {}))


def test_the_check_takes_a_moment(folder: Path) -> None:
    """Processor time, with room for a slow machine: on a free one it is below a tenth of a second."""
    spec, _ = own(RIGHT["the largest tenth"])
    method = make_algorithm(spec, {})
    began = time.process_time()
    assert findings(method) == []
    assert time.process_time() - began < 2


@pytest.mark.parametrize("engine", ["serial", "batched", "vmap", "auto"])
def test_an_error_in_a_later_round_has_its_line(engine: str, folder: Path) -> None:
    spec, line = own(BOOM)
    with pytest.raises(FedsmooError, match=f"^my.py:{line} in finish: KeyError: 'boom'$"):
        simulate("softmax", "digits", spec, engine=engine, **SMALL)


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_an_error_for_people_is_left_in_its_own_words(engine: str, folder: Path) -> None:
    spec, _ = own(BOOM.replace('KeyError("boom")', 'FedsmooError("no such day")'))
    with pytest.raises(FedsmooError, match=r"^no such day$"):
        simulate("softmax", "digits", spec, engine=engine, **SMALL)


def test_an_error_in_a_later_round_is_one_line_on_the_command_line(call: Call) -> None:
    spec, line = own(BOOM)
    answer = call("run", "--algorithm", spec, *tiny("--rounds", "4"))
    assert answer.err == f"fedsmoo: my.py:{line} in finish: KeyError: 'boom'\n"
    assert answer.code == 2


def test_an_error_at_the_server_has_its_line(folder: Path) -> None:
    spec, line = own("""class M(FedAvg):
    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=mean.w + len(srv.w.shape) / (len(srv.w) - 650))  # here
""")
    with pytest.raises(FedsmooError, match=f"^my.py:{line} in aggregate: ZeroDivisionError: division by zero$"):
        simulate("softmax", "digits", spec, engine="serial", **SMALL)


def test_a_model_of_the_users_has_its_line_too(folder: Path) -> None:
    class Net(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.flatten(1))[:, {}["gone"]]

    for engine in ("serial", "auto"):
        with pytest.raises(FedsmooError, match=r"test_own_methods.py:\d+ in forward: KeyError: 'gone'"):
            simulate(Net(64, 10), "digits", "fedavg", engine=engine, **SMALL)


@pytest.mark.parametrize("engine", ["serial", "batched", "auto"])
@pytest.mark.parametrize("error", [KeyError, TypeError])
def test_a_bug_of_our_own_keeps_its_traceback(
    engine: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: object) -> None:
        raise error("ours")

    monkeypatch.setattr(serial, "client_batch", bug)
    monkeypatch.setattr(steps, "masked_step", bug)
    with pytest.raises(error, match="ours"):
        simulate("softmax", "digits", "fedavg", engine=engine, **SMALL)


def test_what_cannot_be_imported_or_made_says_its_line(call: Call) -> None:
    Path("bad.py").write_text("x = 1\ny = x.missing\n")
    answer = call("run", "--algorithm", "bad.py:M", *TINY)
    assert "bad.py cannot be imported: AttributeError: 'int' object has no attribute 'missing' (line 2)" in answer.err
    spec, line = own("""class M(FedAvg):
    a: float = 0.5
    def __post_init__(self):
        super().__post_init__()
        1 / (self.a - 0.25)  # here
""")
    answer = call("run", "--algorithm", spec, "--set", "a=0.25", *TINY)
    assert answer.err == f"fedsmoo: my.py:{line} in __post_init__: ZeroDivisionError: float division by zero\n"


@pytest.mark.parametrize(("word", "says"), [
    ("r=0.3", "--set r=0.3: r is a hyper-parameter of fedsmoo, but not of fedavg, feddyn: say whose it is, with "
              "--set fedsmoo.r=0.3\n"),
    ("beta=1", "--set beta=1: beta is a hyper-parameter of feddyn, fedsmoo, but not of fedavg: say whose it is, with "
               "--set feddyn.beta=1 --set fedsmoo.beta=1\n"),
])  # fmt: skip
def test_a_hyper_parameter_of_some_methods_says_whose_it_is(word: str, says: str, call: Call) -> None:
    answer = call("compare", "--algorithms", "fedavg,feddyn,fedsmoo", *TINY, "--set", word, "--out", "out")
    assert answer.err == f"fedsmoo: {says}"
    assert not Path("out").exists()
