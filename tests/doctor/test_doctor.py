"""``fedsmoo doctor``: machines of many kinds, made up, and what is said of each; and this one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from commands.conftest import Call, call

import fedsmoo
from fedsmoo.data.catalog import SPECS
from fedsmoo.doctor.findings import TORCH, judge
from fedsmoo.doctor.machine import EXTRAS, PACKAGES, Disk, Gpu, Machine, file_system, look

__all__ = ["call"]  # a fixture of other tests
DISK = Disk(Path("runs"), "ext4", 10**12, True)
GOOD = Machine(
    python="3.12.1", system="Linux x86_64",
    versions={"fedsmoo": "0.1.0", **dict.fromkeys(PACKAGES, "1.0")}, extras=dict.fromkeys(EXTRAS, True),
    cuda="13.0", gpus=(Gpu("NVIDIA H200", 139 * 2**30, (9, 0)),), driver=True, kernels="", compiler="gcc", headers=True,
    cores=16, all_cores=16, threads=16, dynamic="", load=0.5, cache=DISK, data=tuple(SPECS), runs=DISK,
)  # fmt: skip


def test_a_good_machine_has_nothing_to_be_typed() -> None:
    found = judge(GOOD)
    assert all(f.well and not f.next for f in found)
    assert [f.about for f in found] == [
        "fedsmoo", "packages", "extras", "GPU", "Triton", "compiler", "threads", "load", "cache", "data", "runs",
    ]  # fmt: skip
    assert "NVIDIA H200, 139 GiB, compute capability 9.0" in [f.says for f in found]


WITHOUT = {"gpus": (), "kernels": "torch finds no CUDA device"}
ABSENT = {**GOOD.versions, "triton": None}
# What is changed of a good machine: what it is about, words of what is said, and the command to type.
TROUBLE = {
    "no GPU": ({**WITHOUT, "driver": False}, "GPU", "none: small models", "fedsmoo table accuracy --no-run"),
    "torch without CUDA": ({**WITHOUT, "cuda": None}, "GPU", "built without CUDA",
                           f"pip install --force-reinstall {TORCH}"),
    "a driver that fails": (WITHOUT, "GPU", "built for CUDA 13.0, but finds none", "nvidia-smi"),
    "no Triton": ({"versions": ABSENT}, "Triton", "not installed", "pip install triton"),
    "an old GPU": ({"kernels": "this device has 7.5"}, "Triton", "1.0, but this device has 7.5", ""),
    "no compiler": ({"compiler": None}, "compiler", "no C compiler", "apt-get install gcc libc6-dev"),
    "no headers": ({"headers": False}, "compiler", "gcc, but Python.h", "apt-get install python3-dev"),
    "too many threads": ({"cores": 2}, "threads", "16 on 2 cores", "export OMP_NUM_THREADS=2"),
    "threads that move": ({"dynamic": "true"}, "threads", "OMP_DYNAMIC=true is refused", "unset OMP_DYNAMIC"),
    "a busy machine": ({"load": 24.5}, "load", "24.5 on 16 cores: others", "top"),
    "no data": ({"data": ()}, "data", "digits and made ones alone; not here: cifar10", "fedsmoo data get cifar10"),
    "a network's disk": ({"runs": dataclasses.replace(DISK, kind="nfs4")}, "runs", "nfs4, 1.0 TB free): a network's",
                         "fedsmoo run --out FOLDER"),
    "a full disk": ({"runs": dataclasses.replace(DISK, free=10**9)}, "runs", "a disk that fills stops a run",
                    "fedsmoo run --out FOLDER"),
    "no rights": ({"cache": dataclasses.replace(DISK, writable=False)}, "cache", "it cannot be written",
                  "export FEDSMOO_DATA=FOLDER"),
    "no page": ({"extras": {**GOOD.extras, "report": False}}, "extras", "not installed: report",
                "pip install 'fedsmoo[report]'"),
    "no pandas": ({"versions": {**GOOD.versions, "pandas": None}}, "packages", "pandas missing", "pip install pandas"),
}  # fmt: skip


@pytest.mark.parametrize("case", TROUBLE)
def test_each_trouble_is_said_once_with_what_to_type(case: str) -> None:
    changed, about, says, typed = TROUBLE[case]
    wrong = [f for f in judge(dataclasses.replace(GOOD, **changed)) if not f.well]
    assert [(f.about, f.next) for f in wrong] == [(about, typed)]
    assert says in wrong[0].says


def test_what_is_only_absent_is_no_trouble() -> None:
    some = dataclasses.replace(GOOD, extras={**GOOD.extras, "flower": False}, data=("cifar10",), threads=1, load=20.0)
    assert [f.next for f in judge(some) if f.next] == ["pip install 'fedsmoo[flower]'", "fedsmoo data get cifar100"]
    assert all(f.well for f in judge(some))


def test_threads_that_wait_for_others_programs_are_given_up_on_a_cpu() -> None:
    busy = dataclasses.replace(GOOD, **WITHOUT, load=24.5)
    assert {f.about: f.next for f in judge(busy)}["load"] == "export OMP_NUM_THREADS=1"
    assert {f.about: f.next for f in judge(dataclasses.replace(busy, threads=1, load=30.0))}["load"] == "top"


def test_a_download_that_never_ended_is_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "archive.part").touch()
    (tmp_path / "mnist.npz").touch()
    assert look().data == ("mnist",)
    (tmp_path / "cifar10" / "archive.tar.gz").touch()
    assert look().data == ("cifar10", "mnist")


def test_the_torch_it_recommends_is_the_newest_that_is_allowed() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'<={TORCH.removeprefix("torch==")}"' in text


def test_the_file_system_is_that_of_the_nearest_mount() -> None:
    mounts = ["/dev/a / ext4 rw 0 0", "a:/b /home/a\\040b nfs4 rw 0 0", "tmp /home/a\\040b/x tmpfs rw 0 0"]
    for path, kind in (("/", "ext4"), ("/home/a", "ext4"), ("/home/a b/c", "nfs4"), ("/home/a b/x/y", "tmpfs")):
        assert file_system(Path(path), mounts) == kind
    assert file_system(Path("/a"), []) == "unknown"


def test_the_command_says_it_in_lines_and_as_json(call: Call, tmp_path: Path) -> None:
    answer = call("doctor", "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    assert told["machine"]["versions"]["fedsmoo"] == fedsmoo.__version__
    assert told["machine"]["threads"] == torch.get_num_threads()
    assert told["machine"]["runs"]["path"] == "runs"
    plain = call("doctor", "--runs", str(tmp_path))
    assert plain.code == 0, plain.err
    lines = plain.out.splitlines()
    assert lines[0].startswith(f"ok   fedsmoo   {fedsmoo.__version__}, Python 3.")
    for finding in told["findings"]:
        assert any(line.split()[:2] == ["ok" if finding["well"] else "warn", finding["about"]] for line in lines)
    assert lines[-1].endswith(": fedsmoo demo")
    assert not list(tmp_path.iterdir())
