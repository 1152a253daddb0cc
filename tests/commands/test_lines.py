"""What commands say of runs that go on where there is no terminal."""

from __future__ import annotations

import io
import re
import sys
import warnings
from pathlib import Path

import pytest

from fedsmoo.cli import main
from fedsmoo.commands.console import warnings_in_a_line
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.runs import progress

from .conftest import TINY, Answer, Call, tiny

SAYS = r"round {} of 3: accuracy \d+\.\d\d%, loss \d\.\d{{4}}, \d+\.\d{{3}} s a round, \d+ s left\n"
TWO = """
model = "softmax"
clients = 4
cohort = 2
rounds = 2
local_steps = 1
engine = "serial"
[methods.FedAvg]
[methods."Plain, twice"]
algorithm = "fedavg"
lr = 0.05
"""


def test_a_run_says_how_far_it_is(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "--algorithm", "fedavg", *tiny("--rounds", "3"), "--eval-every", "2"]
    monkeypatch.setattr(progress, "EVERY", 1e9)
    answer = call(*words, "--out", "quiet")
    assert answer.code == 0
    assert re.fullmatch(SAYS.format(3), answer.err)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    answer = call(*words, "--out", "talks")
    untested = SAYS.replace(r"accuracy \d+\.\d\d%, ", "")
    assert re.fullmatch(untested.format(1) + SAYS.format(2) + SAYS.format(3), answer.err)


def heads(answer: Answer) -> list[str]:
    """What comes before the accuracy in each line on a round."""
    return [line.partition(", accuracy")[0] for line in answer.err.splitlines() if line.startswith("round ")]


def test_a_sweep_and_a_comparison_say_so_too(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    (tmp_path / "two.toml").write_text(TWO)
    answer = call("sweep", "two.toml")
    assert answer.code == 0
    assert heads(answer) == [
        "round 1 of 4: 0/2 runs · FedAvg", "round 2 of 4: 0/2 runs · FedAvg",
        "round 3 of 4: 1/2 runs · Plain, twice", "round 4 of 4: 1/2 runs · Plain, twice",
    ]  # fmt: skip
    assert re.search(r"\[2/2\] .*: fedavg-\S+ \(Plain, twice\)$", answer.err, re.M)
    assert heads(call("compare", "--algorithms", "fedavg,fedsam", *TINY)) == [
        "round 1 of 4: FedAvg", "round 2 of 4: FedAvg", "round 3 of 4: FedSAM", "round 4 of 4: FedSAM"
    ]  # fmt: skip


def test_what_the_encoding_of_standard_output_lacks_is_replaced(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert call("run", "--algorithm", "fedavg", *tiny("--rounds", "1"), "--out", "runs/caf\u00e9").code == 0
    said = {}
    for encoding in ("ascii", "latin-1"):
        out = io.TextIOWrapper(io.BytesIO(), encoding)
        with monkeypatch.context() as on:
            on.setattr(sys, "stdout", out)
            for words in (["runs", "runs"], ["table", "accuracy", "--no-run", "--methods", "fedsmoo"]):
                with pytest.raises(SystemExit) as stopped:
                    main(words)
                assert stopped.value.code == 0
        out.flush()
        said[encoding] = out.buffer.getvalue()  # type: ignore[attr-defined]
    assert b"caf\\xe9" in said["ascii"]
    assert b" +- " in said["ascii"]
    assert "caf\u00e9".encode("latin-1") in said["latin-1"]
    assert " \u00b1 ".encode("latin-1") in said["latin-1"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_output_that_finds_no_space_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "wb", buffering=0) as full, monkeypatch.context() as on:
        on.setattr(sys, "stdout", io.TextIOWrapper(full, "utf-8", write_through=True))
        with pytest.raises(SystemExit) as stopped:
            main(["--version"])
    assert stopped.value.code == 2
    said = "fedsmoo: no space is left on the device: what was to be written is not there whole\n"
    assert capsys.readouterr().err == said


def test_a_warning_is_a_line_that_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Several runs of one command may warn of the same: each has its own place in the code, and Python tells all."""
    with warnings_in_a_line():
        warnings.simplefilter("always")
        for words in ("threads wait", "a loss is small", "threads wait"):
            warnings.warn(words, FedsmooWarning, stacklevel=1)
    assert capsys.readouterr().err == "fedsmoo: threads wait\nfedsmoo: a loss is small\n"
