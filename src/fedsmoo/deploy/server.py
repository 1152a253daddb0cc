"""The server of a federation, without a network: whom to ask, what to make of the replies, and what to remember."""

from __future__ import annotations

import json
import math
import statistics
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from functools import partial
from operator import mul
from typing import Any

import torch
from safetensors.torch import save

from fedsmoo.algorithms.statistics import NAME, recomputes
from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.core.random.streams import stream
from fedsmoo.core.server import Replies, is_evaluated, lr_of, round_of, server_step, weights_of
from fedsmoo.data.batches.cohort import cohort, make_sampling
from fedsmoo.deploy.client import Answer
from fedsmoo.deploy.combine import MEAN, cap_weights, combine
from fedsmoo.deploy.judge import ENOUGH, Expectation, Proportion, Reply, RoundReport, Scale, judge, steps_of
from fedsmoo.deploy.members import Members
from fedsmoo.deploy.settings import Federation, server_folder
from fedsmoo.deploy.store import ServerStore
from fedsmoo.deploy.wire import Refusal, plain_of, wire_of
from fedsmoo.engines.contract import Contribution, RoundOutcome, Setup, Sums
from fedsmoo.engines.failure import explained
from fedsmoo.metrics.average import finite_or_none
from fedsmoo.metrics.tally import Scores
from fedsmoo.runs.config import Config
from fedsmoo.runs.storage.files import copy_shared, on_host, write_durably

MODEL = "model.safetensors"


class Coordinator:
    """The state of a federation and its rounds. Saved after every round; made anew, it goes on where it was."""

    def __init__(self, config: Config, federation: Federation, setup: Setup) -> None:
        self.config, self.federation, self.setup = config, federation, setup
        self.folder, self.sampling = server_folder(federation), make_sampling(config.sampling, config.sampling_options)
        self.store = ServerStore(self.folder, federation.keep_states)
        self.wire, self.began = wire_of(setup.algorithm), time.perf_counter()
        task = setup.task
        with explained("server"):
            self.server = setup.algorithm.at(0).init(task.model.initial().to(task.device, task.dtype))
        self.session = f"{federation.name}-{uuid.uuid4().hex[:12]}"
        self.number = 0
        self.known: dict[int, int] = {}  # client -> version of its vectors that the server has used
        self.before: list[dict[int, int]] = []  # the same in the states before that are kept, newest first
        self.counts: dict[int, dict[str, int]] = {}  # client -> reason -> how often
        self.members = Members()
        self.proportion = Proportion(federation.norm_bound)
        self._reload()
        self.members.forget(federation.forgotten())

    # -- memory

    def _reload(self) -> None:
        """Load the newest whole state that is on the disk, if there is any."""
        found = self.store.load()
        if found is None:
            self.store.refuse_reports()
            self.save()
            return
        server, facts = found
        self.session, self.members = facts["session"], Members.from_plain(facts.get("members", {}))
        if facts["number"] > 0:  # before there is a round, settings may be changed
            self._take_over(server, facts)
        self.store.begin(self.number)

    def _take_over(self, server: Vectors, facts: dict[str, Any]) -> None:
        """Go on where a state ends; refuses one of another federation."""
        now, then = ({k: v for k, v in c.items() if k != "rounds"} for c in (self.plain_config(), facts["config"]))
        if now != then:
            changed = ", ".join(k for k in now if now[k] != then.get(k))
            raise FedsmooError(f"{self.folder} holds a federation with other settings ({changed}): choose another name")
        if {n: v.shape for n, v in server.items()} != {n: v.shape for n, v in self.server.items()}:
            raise FedsmooError(f"{self.folder} holds a federation of another method or model: choose another name")
        device = self.setup.task.device
        self.server = Vectors(**{n: getattr(server, n).to(device) for n in self.server.names()})
        self.number = facts["number"]
        self.known, *self.before = (
            {int(c): v for c, v in known.items()} for known in (facts["known"], *facts.get("before", []))
        )
        self.counts = {int(c): v for c, v in facts["counts"].items()}
        usual = {n: [v] * ENOUGH for n, v in facts.get("usual", {}).items()}  # of older states
        self.proportion = Proportion(self.federation.norm_bound, facts.get("recent", usual))

    def plain_config(self) -> dict[str, Any]:
        """Return the settings as JSON gives them back."""
        return json.loads(json.dumps(self.config.to_dict()))

    def save(self) -> None:
        """Keep the state of this moment."""
        facts = {
            "session": self.session,
            "number": self.number,
            "known": self.known,
            "before": self.before,
            "counts": self.counts,
            "members": self.members.plain(),
            "recent": self.proportion.recent,
            "config": self.plain_config(),
        }
        self.store.save(self.number, self.server, facts)

    def meet(self, client: int, key: str, samples: Any) -> None:
        """Let a client in, or raise a ``Refusal``; what is new about it is kept at once."""
        if self.members.meet(client, key, samples, self.federation.max_samples):
            self.save()

    def kept(self, client: int) -> int:
        """Return the oldest version of a client's vectors that one of the states that are kept may ask for."""
        return min((known[client] for known in (self.known, *self.before) if client in known), default=0)

    # -- a round

    @property
    def finished(self) -> bool:
        return self.number >= self.config.rounds

    @property
    def lr(self) -> float:
        return lr_of(self.config, self.number)

    def draw(self, available: Collection[int]) -> list[int]:
        """Draw the cohort of this round: the simulation's, with absent clients replaced by others that are present."""
        c = self.config
        drawn = cohort(c.seed, self.number, c.clients, min(c.cohort, c.clients), self.sampling)
        available = set(available) - self.members.left_out(self.number)
        here = [i for i in drawn if i in available]
        spare = sorted(set(available) - set(drawn))
        stream(c.seed, "substitutes", self.number).shuffle(spare)
        return sorted(here + spare[: len(drawn) - len(here)])

    def sent(self) -> Vectors:
        """Return what every client of the cohort receives."""
        with explained("server"):
            masks = self.setup.masks
            return masks.cut(self.setup.algorithm.at(self.number).sent(masks.beside(self.server)))

    def expectation(self, client: int, samples: int) -> Expectation:
        task = self.setup.task
        return Expectation(
            self.session, self.number, client, samples, steps_of(self.config, samples),
            tuple(self.setup.algorithm.up), task.model.layout.size - self.setup.masks.staying, task.dtype, self.wire,
            plain_of(self.setup.algorithm),
        )  # fmt: skip

    def judge(self, client: int, reply: Reply) -> Answer:
        """Return a client's answer; raises a ``Refusal`` if it is not sound."""
        return judge(reply, self.expectation(client, self.members.of(client).samples))

    def need(self, asked: int) -> int:
        """Return how many good replies a round needs."""
        return self.federation.min_replies or math.ceil(asked / 2) or 1

    def close(self, asked: list[int], answers: Mapping[int, Answer], refused: Mapping[int, Refusal]) -> RoundReport:
        """End the round: leave out replies that are out of proportion, aggregate the others, save, report."""
        refused = dict(refused)
        self.before = [dict(self.known), *self.before][: self.federation.keep_states - 1]
        for client in set(asked) - set(answers) - set(refused):
            refused[client] = Refusal("missing", "no reply in time")
        sizes = self.proportion.sizes(answers, self.sent(), self.wire)
        scale = Scale.of_round(self.setup.algorithm, self.server, self.lr, answers.values(), self.federation.max_update)
        refused.update(self.proportion.outliers(sizes, scale))
        good = {c: answers[c] for c in sorted(answers) if c not in refused}
        self.proportion = self.proportion.learn({c: sizes[c] for c in good})
        need = self.need(len(asked))
        outcome, skipped = None, None
        over: dict[int, float] = {}  # who says to have more than its share
        if len(good) < need:
            skipped = f"{len(good)} good replies, {need} needed"
        else:
            declared = weights_of(self.config, [a.samples for a in good.values()])
            weights = cap_weights(declared, self.federation.max_share) if self.config.weighted else declared
            over = {c: d for c, d, w in zip(good, declared, weights, strict=True) if w < d}
            outcome = self._combined(good, weights)
            skipped = self._aggregate(good, outcome, weights)
        return self._conclude(asked, good, refused, outcome, skipped, over)

    def _combined(self, good: Mapping[int, Answer], weights: list[float]) -> RoundOutcome:
        """Return what is made of the replies, by the rule that the settings choose."""
        outcome, kind = self._mean(good, weights), self.federation.aggregate
        if kind == MEAN:
            return outcome
        device, names = self.setup.task.device, self.setup.algorithm.summed
        ups = [a.up.pick(names).map(lambda v: v.to(device)) for a in good.values()]
        down = self.sent() if self.wire == "exact" else Vectors()  # else what was sent are changes already
        mean = self.setup.masks.grown(combine(kind, ups, down, weights, self.federation.trim), Vectors())
        measured = [statistics.median(getattr(a, n) for a in good.values()) for n in ("loss", "drift")]
        return replace(outcome, mean=mean, measured=torch.tensor(measured, dtype=torch.float64))

    def _mean(self, good: Mapping[int, Answer], weights: list[float]) -> RoundOutcome:
        """Return the mean in the order of the clients, as the serial engine adds."""
        task, algorithm = self.setup.task, self.setup.algorithm
        sums = Sums(len(good))
        for weight, a in zip(weights, good.values(), strict=True):
            loss, drift = (torch.tensor(x, dtype=task.dtype, device=task.device) for x in (a.loss, a.drift))
            up = self.setup.masks.grown(a.up.map(lambda v: v.to(task.device)), Vectors())
            mine, rows = up.pick(algorithm.summed), up.pick(algorithm.rows).map(lambda v: v[None])
            sums.add(Contribution(mine.map(partial(mul, weight)), loss, drift, rows=rows))
        return sums.outcome()

    def _aggregate(self, good: Mapping[int, Answer], outcome: RoundOutcome, weights: list[float]) -> str | None:
        """Take the server's step; return why not, if its vectors would no longer be finite."""
        steps, share = [a.steps for a in good.values()], len(good) / self.config.clients
        rnd, size = round_of(self.config, self.number, steps, weights, share), self.setup.task.model.layout.size
        algorithm, replies = self.setup.algorithm.at(self.number), None
        if outcome.rows is not None:
            replies = Replies(outcome.rows, list(good), [a.samples for a in good.values()], steps, weights)
        with explained("server"):
            masks = self.setup.masks
            server = server_step(algorithm, self.server, outcome.mean, rnd, size, outcome.loss, replies, masks)
        if server is None:
            return "the server's vectors would no longer be finite: try a smaller lr or, for FedSMOO, a larger beta"
        self.server = server
        if self.setup.algorithm.own:
            self.known.update(dict.fromkeys(good, self.number + 1))
        return None

    def _conclude(
        self,
        asked: list[int],
        good: Mapping[int, Answer],
        refused: Mapping[int, Refusal],
        outcome: RoundOutcome | None,
        skipped: str | None,
        over: dict[int, float],
    ) -> RoundReport:
        self.members.conclude(self.number, good, refused)
        for client, why in refused.items():
            mine = self.counts.setdefault(client, {})
            mine[why.reason] = mine.get(why.reason, 0) + 1
            if why.reason == "lost state" and self.federation.lost_state == "restart":
                self.known.pop(client, None)
        scores = self._evaluated() if is_evaluated(self.config, self.number) else None
        found, loss = ({}, None) if scores is None else (scores.metrics, scores.loss)
        lr, self.number = self.lr, self.number + 1
        now = time.perf_counter()
        mean, drift = (outcome.loss, outcome.drift) if outcome else (None, None)
        report = RoundReport(
            self.number, asked, list(good), {c: str(r) for c, r in sorted(refused.items())}, lr,
            finite_or_none(mean), finite_or_none(drift), found.get("accuracy"), finite_or_none(loss), skipped,
            now - self.began, over, {} if [*found] == ["accuracy"] else found,
        )  # fmt: skip
        self.began = now
        values = {n: v for n, v in asdict(report).items() if n != "metrics" or v}
        self.store.record(json.dumps(values, allow_nan=False))
        self.save()
        if self.finished:
            self.export()
        return report

    @property
    def whole(self) -> bool:
        """Whether the server knows all of its model: not where clients keep its running statistics to themselves."""
        return not recomputes(self.setup.algorithm)

    def _hold(self) -> None:
        """Have the model evaluated and exported with the server's running statistics, if there are any."""
        if NAME in self.server.names():
            self.setup.task.model.hold(self.server.statistics)

    def _evaluated(self) -> Scores | None:
        """Return loss and metrics on the server's test data, where there are some and the model is whole."""
        if not self.setup.task.data.has_test or not self.whole:
            return None
        self._hold()
        return self.setup.task.evaluate(self.server.w)

    def export(self) -> None:
        """Write the trained model under its module's own names, without what the server does not know of it."""
        self._hold()
        model = self.setup.task.model
        unknown = () if self.whole or model.statistics is None else model.statistics.names
        state = {n: on_host(v) for n, v in model.state_dict(self.server.w).items() if n not in unknown}
        try:
            write_durably(self.folder / MODEL, save(copy_shared(state)))
        except OSError as e:
            raise FedsmooError(f"cannot write {self.folder / MODEL}: {e.strerror}; start the run again") from e
