"""States with checksums, of which the last ones are kept: whatever is damaged or cut off, a whole one is used."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save

pytest.importorskip("flwr", reason="pip install 'fedsmoo[flower]'")

sys.path.insert(0, str(Path(__file__).parents[1] / "runs" / "storage"))
from power import Disk, recorded, restore

from fedsmoo.cli import main
from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.deploy.access.keys import make_keys
from fedsmoo.deploy.app import write_app
from fedsmoo.deploy.client import Recipe
from fedsmoo.deploy.flower import carry_out, client_app, serve
from fedsmoo.deploy.server import MODEL, Coordinator
from fedsmoo.deploy.settings import Federation, parse
from fedsmoo.deploy.store import ROUNDS, ClientStore, Missing, ServerStore, alone

from .fake import FakeGrid
from .replay import replayed, reports
from .test_methods import federate
from .test_trouble import CONFIG, same

STATE = Vectors(w=torch.arange(6.0), h=torch.ones(6))


def damages(content: bytes) -> dict[str, bytes]:
    """A file that a disk or somebody spoilt."""
    middle = len(content) - 10
    return {
        "empty": b"",
        "cut": content[: len(content) // 2],
        "without its last byte": content[:-1],
        "zeros": bytes(len(content)),
        "a bit of a number": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "a bit of its facts": content.replace(b"number", b"numbes"),
        "without a checksum": content.replace(b"sha256", b"sha257"),
        "another checksum": content.replace(b'sha256":"', b'sha256":"0'),
        "something else": save({"w": torch.zeros(6)}),
    }


@pytest.mark.parametrize("how", damages(b"x" * 40))
def test_the_last_whole_state_is_used(how, tmp_path):
    store = ServerStore(tmp_path)
    for number in (1, 2, 3, 4):
        store.save(number, Vectors(w=STATE.w + number, h=STATE.h), {"number": number})
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"server-0000000{n}.safetensors" for n in (2, 3, 4)]
    newest = store.path(4)
    newest.write_bytes(damages(newest.read_bytes())[how])
    found = ServerStore(tmp_path).load()
    assert found is not None
    assert found[1] == {"number": 3}
    assert torch.equal(found[0].w, STATE.w + 3)
    for number in (2, 3):
        store.path(number).write_bytes(b"")
    with pytest.raises(FedsmooError, match="no other state is whole: move them away to start anew"):
        ServerStore(tmp_path).load()


@pytest.mark.parametrize("how", damages(b"x" * 40))
def test_a_damaged_version_of_a_clients_vectors_is_missing(how, tmp_path):
    store = ClientStore(tmp_path, "session", 0)
    store.save(3, STATE)
    content = store.path(3).read_bytes()
    spoilt = damages(content)[how]
    if spoilt == content:  # clients keep no facts
        return
    store.path(3).write_bytes(spoilt)
    with pytest.raises(Missing):
        store.load(3, {"w": 6, "h": 6})


def test_files_of_before_there_were_checksums_are_read(tmp_path):
    (tmp_path / "s" / "0").mkdir(parents=True)
    (tmp_path / "s" / "0" / "00000003.safetensors").write_bytes(save(dict(STATE.items())))
    assert torch.equal(ClientStore(tmp_path, "s", 0).load(3, {"w": 6, "h": 6}).w, STATE.w)
    (tmp_path / "server.safetensors").write_bytes(save(dict(STATE.items()), {"fedsmoo": '{"number": 7}'}))
    store = ServerStore(tmp_path)
    found = store.load()
    assert found is not None
    assert found[1] == {"number": 7}
    for number in (8, 9, 10):
        store.save(number, STATE, {"number": number})
    assert not (tmp_path / "server.safetensors").exists()
    assert [int(p.stem[-2:]) for p in store.states()] == [10, 9, 8]


def state_of_before(folder: Path) -> None:
    """Turn a server's folder into one that older code left."""
    store = ServerStore(folder)
    found = store.load()
    assert found is not None
    facts = {k: v for k, v in found[1].items() if k not in ("members", "before", "recent")} | {"usual": {}}
    for path in store.states():
        path.unlink()
    (folder / "server.safetensors").write_bytes(save(dict(found[0].items()), {"fedsmoo": json.dumps(facts)}))


def test_a_federation_of_before_goes_on(tmp_path):
    config = CONFIG.replace(rounds=4)
    whole, _ = federate(config, tmp_path / "a")
    _, grid = federate(config.replace(rounds=2), tmp_path / "b")
    state_of_before(tmp_path / "b" / "server")
    again, _ = federate(config, tmp_path / "b", grid=grid)
    assert same(whole.server, again.server)


@pytest.mark.parametrize("damaged", [1, 2])
def test_the_server_goes_on_from_a_state_before_to_the_same_bits(damaged, tmp_path):
    """Clients still have the versions of their vectors that it asks for."""
    config = CONFIG.replace(rounds=6)
    whole, _ = federate(config, tmp_path / "a")
    _, grid = federate(config.replace(rounds=4), tmp_path / "b")
    store = ServerStore(tmp_path / "b" / "server")
    for path in store.states()[:damaged]:
        path.write_bytes(path.read_bytes()[:100])
    again, _ = federate(config, tmp_path / "b", grid=grid)
    assert len(again.store.skipped) == damaged
    assert same(whole.server, again.server)
    assert [r["round"] for r in reports(tmp_path / "b" / "server")] == [1, 2, 3, 4, 5, 6]
    assert again.counts == {}
    versions = sorted(int(p.stem) for p in (tmp_path / "b" / "state" / again.session / "0").iterdir())
    assert versions == [3, 4, 5, 6]  # what three states of the server may ask for, and the newest


def test_power_cuts_at_many_moments_of_a_federation(tmp_path):
    """Server and clients on one disk; after every cut both go on to the same bits."""
    config = CONFIG.replace(rounds=3, clients=2, cohort=2)

    def go(root: Path) -> Vectors:
        grid = FakeGrid(client_app(), config.clients, {}, root / "state")
        return federate(config, root, grid=grid)[0].server

    (tmp_path / "counted").mkdir()
    counted = Disk(tmp_path / "counted", 0, lambda cut: False)
    with recorded(counted):
        truth = go(counted.root)
    every = max(counted.cuts // 25, 1)
    (tmp_path / "cut").mkdir()
    disk = Disk(tmp_path / "cut", 0, lambda cut: cut % every == 0)
    with recorded(disk):
        go(disk.root)
    assert len(disk.images) >= 20
    for image in disk.images:
        shutil.rmtree(tmp_path / "left", ignore_errors=True)
        restore(image, tmp_path / "left")
        assert same(truth, go(tmp_path / "left"))
        told = reports(tmp_path / "left" / "server")
        assert [r["round"] for r in told] == [1, 2, 3]
        assert not list((tmp_path / "left").rglob("*.part"))
    assert same(truth, replayed(config, told))


def test_an_app_and_keys_are_flushed(tmp_path):
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk", 0, lambda cut: False)
    with recorded(disk):
        write_app(disk.root / "app", "clinic")
        make_keys(disk.root / "secrets", ["localhost"], nodes=1)
    left = dict(disk.left(os.stat(disk.root).st_ino, ""))
    there = {p.relative_to(disk.root).as_posix(): p.read_bytes() for p in disk.root.rglob("*") if p.is_file()}
    assert left == there
    assert "secrets/keys/node-0" in left


def verify_command(capsys, *folders: Path) -> tuple[int, list[str]]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["verify", *map(str, folders)])
    return int(ended.value.code or 0), capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("how", damages(b"x" * 40))
def test_verify_says_of_every_state_whether_it_can_be_used(how, tmp_path, capsys):
    store = ServerStore(tmp_path / "server")
    for number in (1, 2, 3):
        store.record(json.dumps({"round": number}))
        store.save(number, STATE, {"number": number})
    names = [f"server-0000000{n}.safetensors" for n in (3, 2, 1)]
    sound = [f"{name}: usable, after round {n}" for name, n in zip(names, (3, 2, 1), strict=True)]
    head = f"{tmp_path / 'server'}: {{}} damaged; the newest that can be used is after round {{}}"
    assert verify_command(capsys, tmp_path / "server") == (0, [head.format("3 files sound, 0", 3), *indented(sound)])
    before = {p: p.read_bytes() for p in store.folder.iterdir()}
    newest = store.path(3)
    newest.write_bytes(damages(newest.read_bytes())[how])
    code, (first, third, *others) = verify_command(capsys, tmp_path / "server")
    assert (code, first) == (1, head.format("2 files sound, 1", 2))
    assert third.startswith(f"  {names[0]}: damaged, ")
    assert others == indented(sound[1:])
    assert {p: p.read_bytes() for p in store.folder.iterdir() if p != newest} == {
        p: c for p, c in before.items() if p != newest
    }
    assert ServerStore(store.folder).load()[1] == {"number": 2}  # which the server uses


def indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def test_verify_looks_at_reports_and_at_a_client_s_vectors(tmp_path, capsys):
    store = ServerStore(tmp_path / "server")
    store.record("{}")
    store.save(2, STATE, {"number": 2})
    code, said = verify_command(capsys, store.folder)
    assert (code, said[-1]) == (1, "  rounds.jsonl: damaged, it reports 1 rounds of 2")
    client = ClientStore(tmp_path, "mine", 0)
    for version in (4, 7):
        client.save(version, Vectors(h=torch.ones(3)))
    code, said = verify_command(capsys, client.folder)
    assert code == 0
    assert said[1:] == [
        "  00000007.safetensors: usable, after round 7",
        "  00000004.safetensors: usable, after round 4",
    ]
    client.path(7).write_bytes(client.path(7).read_bytes()[:-1])
    assert verify_command(capsys, client.folder)[0] == 1
    assert verify_command(capsys, tmp_path / "mine")[0] == 1  # no run, and no states: one line


def test_two_servers_do_not_share_a_folder(tmp_path):
    """Both would carry out the rounds, and the second would remove what the first has done since."""
    said = {"name": "one", "server-folder": str(tmp_path / "server"), "dataset": "digits", "model": "softmax"}
    context = SimpleNamespace(run_config=said)
    with alone(tmp_path / "server"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedsmoo.deploy.flower.alone", lambda folder: alone(folder, 0))
            with pytest.raises(FedsmooError, match=r"another server is at work in .*server: stop it first"):
                serve(Recipe(), SimpleNamespace(), context)
        assert [p.name for p in (tmp_path / "server").iterdir()] == [".lock"]
    with alone(tmp_path / "server", 0):  # whoever ended is no obstacle
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(FedsmooError, match="cannot write into"), alone(tmp_path / "file" / "server", 0):
        pass


def test_a_server_that_was_killed_before_it_wrote_the_model_does_so_when_started_again(tmp_path, monkeypatch):
    """Else a model of fewer rounds, of an earlier run of the server, is taken for the trained one."""
    config = CONFIG.replace(rounds=1)
    federation = Federation(name="test", server_folder=str(tmp_path / "a" / "server"))
    model = tmp_path / "a" / "server" / MODEL
    _, grid = federate(config, tmp_path / "a")
    after_one = model.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "export", lambda self: None)
        federate(config.replace(rounds=2), tmp_path / "a", grid=grid)
    assert model.read_bytes() == after_one
    federate(config.replace(rounds=2), tmp_path / "b")
    carry_out(Recipe(), grid, config.replace(rounds=2), federation)
    assert model.read_bytes() == (tmp_path / "b" / "server" / MODEL).read_bytes() != after_one


def test_a_model_that_cannot_be_written_is_said_in_a_line(tmp_path):
    federate(CONFIG.replace(rounds=1), tmp_path)
    (tmp_path / "server" / MODEL).unlink()
    (tmp_path / "server" / MODEL).mkdir()
    federation = Federation(name="test", server_folder=str(tmp_path / "server"))
    with pytest.raises(FedsmooError, match=r"cannot write .*model\.safetensors: .*; start the run again"):
        carry_out(Recipe(), SimpleNamespace(), CONFIG.replace(rounds=1), federation)


def test_reports_of_a_federation_whose_states_are_gone_are_not_taken_for_a_new_ones(tmp_path):
    _, grid = federate(CONFIG, tmp_path)
    for path in ServerStore(tmp_path / "server").states():
        path.unlink()
    with pytest.raises(FedsmooError, match=r"rounds\.jsonl reports rounds of which no state is there: move it away"):
        federate(CONFIG, tmp_path, grid=grid)
    (tmp_path / "server" / ROUNDS).unlink()
    federate(CONFIG, tmp_path, grid=grid)
    assert [r["round"] for r in reports(tmp_path / "server")] == [1, 2]


def test_a_server_that_was_killed_in_a_first_round_without_clients_begins_it_again(tmp_path):
    federation = Federation(name="test", server_folder=str(tmp_path / "server"))
    setup = Recipe().setup(CONFIG, Recipe().test(CONFIG))
    first = Coordinator(CONFIG, federation, setup)
    first.store.record('{"round": 1}')  # the state was not saved any more
    again = Coordinator(CONFIG, federation, setup)
    assert (again.number, again.session) == (0, first.session)
    assert reports(tmp_path / "server") == []


def test_a_round_that_was_cut_off_is_reported_once_even_if_another_report_is_missing(tmp_path):
    _, grid = federate(CONFIG, tmp_path)
    path = tmp_path / "server" / ROUNDS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[1] + lines[1].replace('"round": 2', '"round": 3'))  # somebody's edit; then a crash in round 3
    federate(CONFIG.replace(rounds=3), tmp_path, grid=grid)
    assert [r["round"] for r in reports(tmp_path / "server")] == [2, 3]


@contextmanager
def no_more_open_files() -> Iterator[None]:
    """This process has as many files open as it may."""
    before, held = resource.getrlimit(resource.RLIMIT_NOFILE), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, before[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_what_cannot_be_read_now_is_not_lost(tmp_path, monkeypatch):
    """Else the server begins anew, or goes back a round and removes its newest state; and a client starts anew."""
    server, client = ServerStore(tmp_path), ClientStore(tmp_path, "session", 0)
    for number in (1, 2):
        server.save(number, STATE, {"number": number})
    client.save(2, STATE)
    with no_more_open_files():
        with pytest.raises(FedsmooError, match=r"cannot read .*: Too many open files; nothing was changed"):
            server.load()
        with pytest.raises(FedsmooError, match=r"cannot read .*2\.safetensors: Too many open files") as found:
            client.load(2, {"w": 6, "h": 6})
    assert not isinstance(found.value, Missing)

    def denied(path: Path, *args: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    with monkeypatch.context() as patch:  # the superuser may read everything
        patch.setattr(Path, "open", denied)
        with pytest.raises(FedsmooError, match=r"cannot read .*2\.safetensors: Permission denied; nothing was changed"):
            server.load()
    assert [p.stem[-1] for p in server.states()] == ["2", "1"]
    loaded = server.load()
    assert loaded is not None
    assert loaded[1] == {"number": 2}
    assert torch.equal(client.load(2, {"w": 6, "h": 6}).w, STATE.w)
    with pytest.raises(Missing, match=r"not in .* \(there: 2\)"):
        client.load(3, {"w": 6, "h": 6})


def test_a_name_that_fits_no_session_is_refused_at_once(tmp_path):
    """Every client would refuse every round of it."""
    federate(CONFIG.replace(rounds=1), tmp_path)
    name = "a" * 87
    assert ClientStore(tmp_path, f"{name}-{'0' * 12}", 0).folder.parent.name.startswith(name)
    assert Federation(name=name).name == name
    for make in (lambda: Federation(name="a" * 88), lambda: write_app(tmp_path / "app", "a" * 88)):
        with pytest.raises(FedsmooError, match="cannot name a federation: use up to 87 letters"):
            make()


def test_more_replies_than_a_round_asks_for_are_refused():
    """Every round would be skipped."""
    assert parse({"cohort": 3, "clients": 5, "min-replies": 3})[1].min_replies == 3
    for said in ({"cohort": 3, "clients": 5}, {"cohort": 9, "clients": 3}):
        with pytest.raises(FedsmooError, match="min-replies is 4, but a round asks 3 clients"):
            parse({**said, "min-replies": 4})
