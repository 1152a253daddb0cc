"""Hostile clients and damaged states of a federation, without a network.

One client of a federation sends the same hostile reply in every round. It holds if training goes on, the model is as
good as without that client, who is left out is named in the reports, and the reports hold no control characters and no
number that JSON has none for.
"""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.drills.parts.hostile import EVIL, LONG, ODD, Twist, array, npy, numbers, replies
from benchmarks.drills.parts.outcome import Outcome, judged, sample
from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.deploy.client import Answer, Recipe, RoundRequest, answer, share_of
from fedsmoo.deploy.judge import Reply
from fedsmoo.deploy.server import Coordinator, RoundReport
from fedsmoo.deploy.settings import Federation
from fedsmoo.deploy.store import ROUNDS
from fedsmoo.deploy.wire import Refusal, to_arrays
from fedsmoo.runs.config import Config

CONFIG = Config(
    dataset="digits", model="softmax", algorithm="fedavg", partition="iid", clients=5, cohort=5, rounds=6,
    local_epochs=1, batch_size=32, lr=0.1, device="cpu", engine="serial",
)  # fmt: skip
HOSTILE, NEAR = 1, 0.03  # who is hostile; how much less accurate a model may be that holds
RECIPE = Recipe()


@cache
def setup_of(client: int | None, clients: int) -> Any:
    """What a client, or the server, trains and evaluates with."""
    config = CONFIG.replace(clients=clients, cohort=clients)
    return RECIPE.setup(config, RECIPE.test(config) if client is None else share_of(client, config))


@cache
def trained(client: int, clients: int, number: int, lr: float, share: float, w: bytes) -> Answer:
    """An honest answer, computed once: most cases ask for the same."""
    setup, down = setup_of(client, clients), torch.frombuffer(bytearray(w), dtype=torch.float32)
    request = RoundRequest("drill", number, client, lr, share, 0, Vectors(w=down))
    return answer(CONFIG.replace(clients=clients, cohort=clients), setup, request, Path("none is kept"))


@dataclass
class Case:
    """A federation in a folder, in which some clients are hostile."""

    folder: Path
    clients: int = 5
    twists: dict[int, Twist] = field(default_factory=dict)
    weighted: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    samples: dict[int, Any] = field(default_factory=dict)  # what hostile clients say they have
    rounds: int = CONFIG.rounds

    def open(self) -> Coordinator:
        sizes = {"clients": self.clients, "cohort": self.clients, "rounds": self.rounds}
        config = CONFIG.replace(**sizes, weighted=self.weighted)
        federation = Federation(server_folder=str(self.folder), **self.settings)
        return Coordinator(config, federation, setup_of(None, self.clients))

    def go(self, rounds: int | None = None) -> Coordinator:
        """Carry out the rounds that are left, or up to so many."""
        c = self.open()
        here = [i for i in range(self.clients) if self.introduced(c, i)]
        while c.number < (rounds or self.rounds):
            self.round(c, here)
        return c

    def introduced(self, c: Coordinator, client: int) -> bool:
        honest = len(setup_of(client, self.clients).task.data.x_train)
        try:
            c.meet(client, "", self.samples.get(client, honest))
        except Refusal:
            return False
        return True

    def round(self, c: Coordinator, here: list[int]) -> RoundReport:
        """One round, as the strategy carries it out."""
        asked, answers, refused = c.draw(here), {}, {}
        for i in asked:
            reply: Reply | None = self.honest(c, i, len(asked) / self.clients)
            reply = self.twists[i](reply) if i in self.twists else reply
            try:
                if reply is not None:
                    answers[i] = c.judge(i, reply)
            except Refusal as e:
                refused[i] = e
        return c.close(asked, answers, refused)

    def honest(self, c: Coordinator, client: int, share: float) -> Reply:
        w = c.sent().w.numpy().tobytes()
        a = trained(client, self.clients, c.number, c.lr, share, w)
        facts = {"session": c.session, "number": c.number, "client": client, "version": c.number + 1}
        metrics = {"loss": a.loss, "drift": a.drift, "steps": a.steps, "samples": c.members.of(client).samples}
        return Reply(facts, metrics, {n: npy(v) for n, v in to_arrays(a.up, "exact").items()})


def reports(folder: Path) -> list[dict[str, Any]]:
    """The reports, if they are strict JSON without control characters; raises ``ValueError`` if not."""

    def no_number(word: str) -> Any:
        raise ValueError(f"{word} in {ROUNDS}")

    lines = (folder / ROUNDS).read_text(encoding="utf-8").splitlines()
    if not all(line.isprintable() and len(line) < 5000 for line in lines):
        raise ValueError(f"{ROUNDS} holds control characters or endless lines")
    told = [json.loads(line, parse_constant=no_number) for line in lines]
    if not all(json.dumps(json.loads(line)["refused"], ensure_ascii=False).isprintable() for line in lines):
        raise ValueError(f"{ROUNDS} holds control characters, escaped")
    return told


def accuracy(c: Coordinator) -> float:
    return c.setup.task.evaluate(c.server.w).lead


@cache
def honest_accuracy(clients: int, rounds: int, without: tuple[int, ...] = (), weighted: bool = False) -> float:
    """How good the model is without hostile clients, or without anybody in their place."""
    with TemporaryDirectory() as folder:
        gone: dict[int, Twist] = dict.fromkeys(without, lambda reply: None)
        return accuracy(Case(Path(folder), clients, gone, weighted, rounds=rounds).go())


def verdict(case: Case, near: float = NEAR) -> str:
    """Carry out a case; returns what did not hold."""
    try:
        c = case.go()
        told = reports(case.folder)
    except Exception as e:  # a hostile client must not end anything
        return f"{type(e).__name__}: {e}"[:300]
    hostile = {*case.twists, *case.samples}
    gone = [(), tuple(sorted(hostile))]
    least = min(honest_accuracy(case.clients, case.rounds, w, case.weighted) for w in gone) - near
    skipped = [r["round"] for r in told if r["skipped"]]
    unnamed = [r["round"] for r in told if {*r["cohort"]} - {*r["accepted"]} - {int(i) for i in r["refused"]}]
    innocent = [r["round"] for r in told if {int(i) for i in r["refused"]} - hostile]
    found = accuracy(c)
    problems = [
        f"rounds {skipped} were skipped" if skipped else "",
        f"rounds {unnamed} do not say who was left out" if unnamed else "",
        f"rounds {innocent} leave out an honest client" if innocent else "",
        f"accuracy is {found:.3f}, not {least:.3f} at least" if not found >= least else "",
    ]
    return "; ".join(filter(None, problems))


def in_a_folder(name: str, try_one: Callable[[Path], str]) -> str:
    with TemporaryDirectory() as folder:
        why = try_one(Path(folder))
    return f"{name}: {why}" if why else ""


def hostile_replies(share: float, seed: int) -> Iterator[Outcome]:
    """One of five clients, and one of two, where no median helps, sends the same in every round."""
    cases = list(replies())
    for clients in (5, 2):
        chosen = sample(cases, share, seed + clients)
        lines = [in_a_folder(n, lambda f, k=clients, m=m: verdict(Case(f, k, {HOSTILE: m()}))) for n, m in chosen]
        yield judged(f"a hostile reply every round, one of {clients} clients", lines)


def moved(reply: Reply, start: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> Reply:
    return array(reply, npy((start + change(np.load(io.BytesIO(reply.arrays["w"])) - start)).astype(np.float32)))


POISONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the other way": lambda d: -d,
    "ten times the other way": lambda d: -10 * d,
    "fifty times too far": lambda d: 50 * d,
    "nothing new": lambda d: 0 * d,
    "noise": lambda d: 20 * np.linalg.norm(d) * np.random.default_rng(3).standard_normal(d.shape) / len(d) ** 0.5,
    "one number": lambda d: np.where(np.arange(len(d)) == 5, 30 * np.linalg.norm(d), d),
}


def poisons(share: float, seed: int) -> Iterator[Outcome]:
    """Two of seven clients send what passes every bound; the settings choose a robust aggregate."""
    cases = [(kind, n) for kind in ("median", "trimmed-mean", "bounded-mean") for n in POISONS]
    chosen = sample(cases, min(3 * share, 1.0), seed)

    def one(folder: Path, kind: str, name: str) -> str:
        trim = {"trim": 0.3} if kind == "trimmed-mean" else {}
        case = Case(folder, 7, settings={"aggregate": kind, "norm_bound": 1000.0, **trim}, rounds=25)
        c = case.open()

        def twist(reply: Reply) -> Reply:
            return moved(reply, c.sent().w.numpy(), POISONS[name])

        case.twists = dict.fromkeys((1, 4), twist)
        case.open = lambda: c  # type: ignore[method-assign]
        return verdict(case, near=0.1)  # who pushes the other way costs time: of seven, two leave three

    lines = (in_a_folder(f"{k}, {n}", lambda f, k=k, n=n: one(f, k, n)) for k, n in chosen)
    yield judged("replies within all bounds, two of seven clients, robust aggregates", lines)


def counts(share: float, seed: int) -> Iterator[Outcome]:
    """A client says how many samples it has, and clients count by that; it trains nothing, so that its weight shows."""
    said = [*ODD.items(), ("10**6", 10**6), ("10**6 + 1", 10**6 + 1), ("-10**9", -(10**9)), ("True", True)]

    def one(folder: Path, samples: Any) -> str:
        case = Case(folder, 5, weighted=True, samples={HOSTILE: samples})
        c = case.open()
        case.open = lambda: c  # type: ignore[method-assign]
        lazy: Twist = lambda r: moved(numbers(r, steps=steps(c)), c.sent().w.numpy(), lambda d: 0 * d)  # noqa: E731
        case.twists = {HOSTILE: lazy}
        return verdict(case, near=0.08)

    def steps(c: Coordinator) -> int:
        return c.expectation(HOSTILE, c.members.of(HOSTILE).samples).steps

    chosen = [*sample(said, min(3 * share, 1.0), seed), *(s for s in said if s[0] in ("10**6", "10**9"))]
    lines = (in_a_folder(f"{n} samples", lambda f, v=v: one(f, v)) for n, v in dict(chosen).items())
    yield judged("a client that says how many samples it has, weighted", lines)


def introductions(share: float, seed: int) -> Iterator[Outcome]:
    """Who says to be a client whose key, or whose count, is known to be another; nothing may change."""
    tries = {
        "another key": (1, "b" * 64, 300), "no key": (1, "", 300), "another's key": (4, "a" * 64, 300),
        "another's key, unknown client": (3, "a" * 64, 300), "another count": (1, "a" * 64, 301),
        **{f"key {k}": (1, v, 300) for k, v in {"escapes": EVIL, "long": LONG}.items()},
        **{f"{k} samples": (3, "c" * 64, v) for k, v in ODD.items()},
    }  # fmt: skip

    def one(folder: Path, client: int, key: str, samples: Any) -> str:
        c = Case(folder).open()
        c.meet(1, "a" * 64, 300)
        c.meet(4, "d" * 64, 300)
        before = c.members.plain()
        for again in (c, Case(folder).open()):  # also after a new start
            try:
                again.meet(client, key, samples)
                return "was let in"
            except Refusal as e:
                if not str(e).isprintable() or len(str(e)) > 400 or again.members.plain() != before:
                    return f"refused, but with {e!r}"[:200]
        return ""

    chosen = sample(list(tries.items()), min(3 * share, 1.0), seed)
    lines = (in_a_folder(n, lambda f, t=t: one(f, *t)) for n, t in chosen)
    yield judged("introductions of clients that are others", lines)


def damages(share: float, seed: int) -> Iterator[Outcome]:
    """The newest states of the server are cut, zeroed or changed in a bit; it goes on to the same bits."""
    draws = random.Random(seed)
    with TemporaryDirectory() as folder:
        whole = Case(Path(folder) / "whole").go()
        half = Path(folder) / "half"
        Case(half).go(4)

        def one(number: int) -> str:
            left = Path(folder) / "left"
            shutil.rmtree(left, ignore_errors=True)
            shutil.copytree(half, left)
            for path in sorted(left.glob("server-*"), reverse=True)[: draws.choice([1, 1, 2])]:
                path.write_bytes(damaged(path.read_bytes(), draws))
            try:
                c = Case(left).go()
            except FedsmooError as e:
                return f"damage {number}: {e}"
            return "" if torch.equal(c.server.w, whole.server.w) else f"damage {number}: another model"

        yield judged("damaged states of a server", [one(i) for i in range(round(300 * share))])


def damaged(content: bytes, draws: random.Random) -> bytes:
    """A file that a disk spoilt."""
    at = draws.randrange(len(content))
    bit = content[:at] + bytes([content[at] ^ (1 << draws.randrange(8))]) + content[at + 1 :]
    return draws.choice([content[:at], bit, bit, b"", bytes(len(content)), content[:at] + bytes(len(content) - at)])


def drill(full: bool, seed: int, share: float = 0.12) -> Iterator[Outcome]:
    """Hostile replies, poison within all bounds, counts, introductions and damaged states."""
    torch.set_num_threads(1)
    for part in (hostile_replies, poisons, counts, introductions, damages):
        yield from part(1.0 if full else share, seed)
