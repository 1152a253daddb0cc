"""Settings: types, choices, files, and what is said about a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsmoo.algorithms.choices import CHOICES
from fedsmoo.commands.options import gather_config
from fedsmoo.core import FedsmooError, Schedule
from fedsmoo.runs.build import make_algorithm
from fedsmoo.runs.config import FIELDS, Config, differs, free_within
from fedsmoo.runs.settings.fields import AROUND
from fedsmoo.runs.settings.merge import make_config
from fedsmoo.runs.settings.toml import named_tables, read_toml
from fedsmoo.runs.storage.folder import config_text
from fedsmoo.runs.storage.toml import to_toml

REFUSED = [
    ({"rounds": "ten"}, "rounds is 'ten', but must be a whole number"),
    ({"rounds": 1.5}, "rounds is 1.5, but must be a whole number"),
    ({"rounds": float("inf")}, "rounds is inf, but must be a whole number"),
    ({"rounds": True}, "rounds is True, but must be a whole number"),
    ({"rounds": None}, "rounds is none"),
    ({"rounds": 0}, "rounds is 0, but must be above 0"),
    ({"lr": "fast"}, "lr is 'fast', but must be a number"),
    ({"lr": float("nan")}, "lr is nan, but must be a number"),
    ({"lr": -0.1}, "lr is -0.1, but must be above 0"),
    ({"lr": "cosine:0.1:0:50"}, "lr is 'cosine:0.1:0:50', but must be a number: lr_decay multiplies it after"),
    ({"lr": Schedule(0.1, 0.01, 50)}, "state.set(lr=...)"),
    ({"lr": [0.1]}, "lr is [0.1], but must be a number"),
    ({"weight_decay": -1}, "weight_decay is -1.0, but must be at least 0"),
    ({"weighted": "maybe"}, "weighted is 'maybe', but must be true or false"),
    ({"weighted": 1}, "weighted is 1, but must be true or false"),
    ({"algorithm": 3}, "algorithm is 3, but must be text"),
    ({"algorithm_options": "r=1"}, "algorithm_options is 'r=1', but must be a table"),
    ({"sampling": "unifrom"}, "unknown value of sampling 'unifrom': did you mean 'uniform'"),
    ({"engine": "fast"}, "unknown value of engine 'fast'"),
    ({"seed": -1}, "seed is -1, but must be at least 0"),
    ({"target": 80}, "target is 80, but is an accuracy between 0 and 1"),
    ({"local_epochs": 1, "local_steps": 2}, "both local_epochs and local_steps are given"),
    ({"chunk": -1}, "chunk is -1, but must be above 0"),
    ({"clients": 0}, "clients is 0, but must be above 0"),
    ({"clip": 0}, "clip is 0.0, but must be above 0"),
    ({"lr": float("inf")}, "lr is inf, but must be finite"),
    ({"lr_decay": 1.5}, "lr_decay is 1.5, but must be above 0 and at most 1"),
    ({"relaxed": -0.1}, "relaxed is -0.1, but must be at least 0"),
    ({"u": 0}, "u is 0.0, but must be above 0"),
    ({"c": 0}, "c is 0, but must be above 0"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=[str(s) for s, _ in REFUSED])
def test_a_wrong_setting_is_refused_in_one_line(settings: dict, message: str) -> None:
    with pytest.raises(FedsmooError) as caught:
        Config(**settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_from_a_command_line_becomes_the_right_type() -> None:
    config = Config(rounds="7", lr="1e-2", weighted="yes", clip="none", local_steps="3", algorithm="fedavg")
    assert (config.rounds, config.lr, config.weighted, config.clip) == (7, 0.01, True, None)
    assert config.epochs is None
    assert Config(lr=1).lr == 1.0
    assert type(Config(lr=1).lr) is float
    assert Config(rounds=3.0).rounds == 3
    assert Config().epochs == 5
    assert Config(local_epochs=2).epochs == 2


def test_every_setting_has_help_and_a_panel() -> None:
    for name, field in FIELDS.items():
        assert field.metadata["help"], name
        assert field.metadata["group"] in ("what", "data", "training", "machine")


def test_replace_refuses_a_misspelt_name() -> None:
    with pytest.raises(FedsmooError, match="unknown setting 'batchsize': did you mean 'batch_size'"):
        Config().replace(batchsize=3)


UNUSUAL = Config(
    algorithm="my files/a \"b\" \\c.py:Method",
    algorithm_options={"r": 0.05, "form": "released", "regularise": False, "n": 3},
    model_options={"hidden": 8},
    lr=1e-7,
    lr_decay=1.0,
    clip=None,
    local_epochs=None,
    local_steps=4,
    weighted=True,
    data="tab\there\nand a new line",
    target=0.5,
    clients=7,
)  # fmt: skip


@pytest.mark.parametrize("config", [Config(), UNUSUAL], ids=["default", "unusual"])
def test_a_config_survives_a_file(config: Config, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(config_text(config), encoding="utf-8")
    assert Config(**read_toml(tmp_path / "c.toml")) == config


def test_tables_name_the_method_and_its_options(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('rounds = 3\n[algorithm]\nname = "feddyn"\nbeta = 4\n[model]\nname = "softmax"\n')
    config = Config(**read_toml(tmp_path / "c.toml"))
    assert (config.algorithm, config.algorithm_options) == ("feddyn", {"beta": 4})
    assert (config.model, config.model_options) == ("softmax", {})
    assert to_toml({"a": 1, "t": {"x": "y"}}) == 'a = 1\n\n[t]\nx = "y"\n'


def test_a_misspelt_key_names_the_file_and_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("roudns = 3\n")
    with pytest.raises(FedsmooError, match=r"c\.toml: unknown setting 'roudns': did you mean 'rounds'"):
        read_toml(path)
    with pytest.raises(FedsmooError, match="unknown setting 'frobnicate'"):
        named_tables({"frobnicate": 1}, "here")


@pytest.mark.parametrize(("content", "message"), [(b"rounds = = 3", "not valid TOML"), (b"\xff\xfe", "not valid TOML")])
def test_a_broken_file_is_refused_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(content)
    with pytest.raises(FedsmooError, match=message) as caught:
        read_toml(tmp_path / "c.toml")
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(FedsmooError, match="cannot read the config file"):
            read_toml(path)


HYPER = [
    ({"q": 1}, "unknown hyper-parameter of FedSMOO 'q'"),
    ({"beta0": 1}, "did you mean 'beta'"),
    ({"beta": "large"}, "beta is 'large', but must be a number"),
    ({"sam": "sometimes"}, "sam is 'sometimes', but must be true or false"),
    ({"perturbation": "papr"}, "unknown value of perturbation 'papr': did you mean 'paper'"),
    ({"r": None}, "r is none"),
]


@pytest.mark.parametrize(("options", "message"), HYPER, ids=[str(o) for o, _ in HYPER])
def test_wrong_hyperparameters_are_refused(options: dict, message: str) -> None:
    with pytest.raises(FedsmooError, match=message):
        make_algorithm("fedsmoo", options)


@pytest.mark.parametrize(("word", "value"), [("3", 3), ("0.5", 0.5), ("true", True), ("wide", "wide")])
def test_an_option_of_one_s_own_without_a_type_is_what_its_word_looks_like(
    word: str, value: object, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def net(width=None):\n    ...\n")
    (found,) = gather_config(None, [f"width={word}"], {"model": f"{file}:net"}).model_options.items()
    assert found == ("width", value)
    assert type(found[1]) is type(value)
    assert make_config({"model": f"{file}:net"}, {"width": word}).model_options == {"width": word}  # from Python


def test_hyperparameters_are_converted() -> None:
    made = make_algorithm("FedSMOO", {"r": "0.5", "beta": 3, "sam": "off", "perturbation": "released"})
    assert made.options() == {
        "beta": 3.0, "r": 0.5, "regularise": True, "sam": False, "correct": True, "perturbation": "released",
    }  # fmt: skip


def test_settings_name_all_that_goes_around_a_method() -> None:
    assert tuple(CHOICES) == AROUND
    for name, (known, plain) in CHOICES.items():
        assert FIELDS[name].metadata["choices"] == (plain, *known)
        assert FIELDS[name].default == plain


def test_what_may_differ_within_a_run_a_batch_and_a_line() -> None:
    machine = {"engine", "exact", "chunk", "table", "samples_in", "device"}
    assert set(free_within("run")) == {"data", "target", "probe", "precision", *machine}
    assert set(free_within("line")) == {"data", "target", "probe", "seed", *machine}
    step = {"lr", "lr_decay", "weight_decay", "relaxed", "algorithm_options"}
    step |= {"local_optimizer_options", "local_schedule_options", "privacy_options", "compression_options"}
    step |= {"attack_options"}
    assert set(free_within("batch")) == {"seed", "target", "partition", "partition_options", "u", "c", "split", *step}
    words = {word for f in FIELDS.values() for word in f.metadata["free"]}
    assert words == {"run", "batch", "line"}


def test_no_options_are_the_default_of_options() -> None:
    names = [n for n in FIELDS if n.endswith("_options")]
    assert "dataset_options" in names
    assert not any(differs(n, empty) for n in names for empty in ({}, FIELDS[n].default))
    assert all(differs(n, {"a": 1}) for n in names)
