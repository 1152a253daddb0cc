"""Read a run folder: its config, rounds, state and facts. Nothing in it is imported or executed.

What is damaged, a link, a pipe, a device, a file that is too large or a value of another type raises a ``FedsmooError``
of one line. For a page (``strict``) it is left out, with a line in ``skipped``, and the rest is shown.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import as_word, brief
from fedsmoo.core.untrusted import text
from fedsmoo.data.files.plain import MAX_BYTES, parse_table, read_plain
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.contents import recorded_hashes, refuse_damaged
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.origin.method import Method, is_users_code, recorded_method
from fedsmoo.runs.record import GLOBAL, HELD_OUT, PERSONAL, SCORES, Record
from fedsmoo.runs.settings.toml import LostSettings, config_in, parse_toml
from fedsmoo.runs.storage.files import parse_line, parse_lines, refuse_changed
from fedsmoo.runs.storage.names import CONFIG, FAILED, LABEL, METRICS, STARTED, SUMMARY
from fedsmoo.runs.storage.toml import refuse_deep_keys

State = Literal["new", "unfinished", "failed", "finished"]
LARGEST_ROUND, LARGEST_COUNT, LARGEST_CONFIG = 2**53, 2**63, 2**20
LARGEST_METRICS = 4 * MAX_BYTES  # of a run that is read for its numbers; a page leaves out what is larger than others
NUMBERS: set[type] = {int, float}
CHANGED, OPTIONAL = {*NUMBERS, str}, {*NUMBERS, type(None)}  # what was changed: a number, or a schedule as text
# The types of facts that programs use further on; any of them may be missing or null.
KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("rounds", "threads", "chunk", "ranks", "packed", "cores", "evaluations", "without_number"), int),
    **dict.fromkeys(("parameters", "parameters_full", "parameters_staying"), int),
    **dict.fromkeys(("test_accuracy", "test_accuracy_last10", "best_accuracy", "validated_accuracy"), (int, float)),
    **dict.fromkeys(("test_loss", "bytes_up", "bytes_down", "seconds_train", "seconds_eval"), (int, float)),
    **dict.fromkeys((*PERSONAL, *GLOBAL, *SCORES), (int, float)),
    **dict.fromkeys(("score", "score_last10", "best_score", "validated_score", "validation_score"), (int, float)),
    **dict.fromkeys(("metric", "validation_metric"), str),
    **dict.fromkeys(("engine", "device", "command", "commit", "started", "finished", "error"), str),
    **dict.fromkeys(("contents", "versions", "method", "metrics", "hessian"), dict),
    **dict.fromkeys(("sessions", "changes", "lower", "staying"), list),
}
INNER: dict[str, set[type]] = {"contents": {str}, "hessian": OPTIONAL}  # what tables among them hold


@dataclass(frozen=True)
class StoredRun:
    """What a run folder holds. The config is checked, and the rounds are read, when they are first asked for."""

    files: Files
    settings: dict[str, Any]  # the table in the config file
    started: dict[str, Any]  # notes of the run's beginning, and of those who resumed it
    summary: dict[str, Any]
    failure: dict[str, Any]
    label: str | None  # what a sweep's file calls the method; none: its own name
    state: State

    @property
    def path(self) -> Path:
        return self.files.folder

    @property
    def skipped(self) -> list[str]:
        """Why which part was left out so far, if the folder is a stranger's."""
        return self.files.skipped

    @property
    def facts(self) -> dict[str, Any]:
        """The notes of the run's beginning, replaced by those of its end; what a callback changed, no settings say."""
        found = {**self.started, **self.summary}
        return found | ({"again": found.get("command")} if found.get("changes") else {})

    @property
    def held(self) -> dict[str, str] | None:
        """Hashes of the user's own files when the run began; ``None`` where nobody noted them."""
        return recorded_hashes(self.started)

    @property
    def method(self) -> Method | None:
        """What the run recorded of its method when it began; ``None`` in older runs."""
        return recorded_method(self.started)

    @property
    def identity(self) -> str | None:
        """Which run it is; ``None`` where only code of the user's own could say: nothing is imported to find out."""
        if is_users_code(self.config.algorithm) and self.method is None:
            return None
        return identity(self.config, self.held, self.method, self.facts.get("changes"))

    @cached_property
    def config(self) -> Config:
        """The config; ``FedsmooError`` if it is lost, or a setting is unknown, of another type or out of range."""
        if not self.settings:
            raise LostSettings(f"{self.path / CONFIG} holds no settings")
        return config_in(self.settings, str(self.path / CONFIG))

    @cached_property
    def history(self) -> list[Record]:
        """The rounds; a torn last line (a killed run) is left out. ``FedsmooError`` if another line is damaged.

        So it is if the run has finished and wrote others: of a file that was cut, earlier rounds would be the last.
        """
        return parse_records(self.sound_metrics(), str(self.path / METRICS))

    @property
    def done(self) -> int:
        """How many rounds are done; the metrics of a finished run need not be read for that."""
        return self.summary.get("rounds") or (self.files.content(METRICS) or b"").count(b"\n")

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rounds as tables of unchecked values; lines that are no round after the one before are left out."""
        last = -1
        for row in parse_lines(self.files.content(METRICS) or b""):
            at = row.get("round") if type(row) is dict else None
            if type(at) is int and last < at < LARGEST_ROUND:
                last = at
                yield row

    def sound_metrics(self) -> bytes:
        """Read the metrics; ``FedsmooError`` if a finished run wrote others, which older runs do not record."""
        content = self.files.content(METRICS) or b""
        refuse_changed(self.path / METRICS, content, self.summary.get("metrics_sha256"))
        return content

    def refuse_damaged(self) -> None:
        """Raise ``FedsmooError`` if the notes contradict what the run says its data was."""
        refuse_damaged(self.config, self.facts, str(self.path / STARTED))


def read_run(path: Path, strict: bool = False) -> StoredRun:
    """Read the run in a folder.

    Args:
        path: the run folder. ``FedsmooError`` if it holds no config, unless ``strict``.
        strict: take the folder for a stranger's: leave out what is damaged or no plain file instead of raising.
    """
    files = Files(path, strict)
    settings = files.settings()
    started, summary, failure = (files.facts(name) for name in (STARTED, SUMMARY, FAILED))
    label = (files.content(LABEL) or b"").decode("utf-8", "replace").strip() or None
    state = state_of(summary is not None, failure is not None, True)
    return StoredRun(files, settings, started or {}, summary or {}, failure or {}, label, state)


@dataclass(frozen=True)
class Files:
    """The files of one folder; if ``strict``, notes in ``skipped`` why which one is left out, or else raises."""

    folder: Path
    strict: bool = False
    skipped: list[str] = field(default_factory=list)

    @contextmanager
    def leaving_out(self) -> Iterator[None]:
        """Note a ``FedsmooError`` instead of raising it, if strict."""
        try:
            yield
        except FedsmooError as e:
            if not self.strict:
                raise
            if (line := text(e)) not in self.skipped:
                self.skipped.append(line)

    def content(self, name: str) -> bytes | None:
        """Read a file; ``None`` if there is none, or none that may be read."""
        path = self.folder / name
        largest = LARGEST_CONFIG if name == CONFIG else MAX_BYTES
        largest = LARGEST_METRICS if name == METRICS and not self.strict else largest
        with self.leaving_out():
            if any((self.folder / inner).is_symlink() for inner in list(Path(name).parents)[:-1]):
                raise FedsmooError(f"{path} cannot be read: it lies behind a link")
            return read_plain(path, links=False, limit=largest)
        return None

    def table(self, name: str) -> dict[str, Any] | None:
        """Read a JSON object; ``None`` if there is no file, empty if it is damaged and strictly left out."""
        content = self.content(name)
        if content is None:
            return None
        with self.leaving_out():
            return parse_table(content, self.folder / name, "replace" if self.strict else "strict")
        return {}

    def facts(self, name: str) -> dict[str, Any] | None:
        """Read a JSON object of facts; those of another type than in ``KINDS`` are damage."""
        table = self.table(name)
        wrong = [k for k, v in (table or {}).items() if not right_kind(k, v)]
        for key in wrong:
            with self.leaving_out():
                raise FedsmooError(f"{self.folder / name} is damaged: {key} is {brief((table or {})[key])}")
        return {k: v for k, v in table.items() if k not in wrong} if table and wrong else table

    def settings(self) -> dict[str, Any]:
        """Read the table in the config file."""
        content, folder = self.content(CONFIG), self.folder
        with self.leaving_out():
            if content is not None:
                try:
                    refuse_deep_keys(content, str(folder / CONFIG))
                    return parse_toml(content, str(folder / CONFIG), "replace" if self.strict else "strict")
                except LostSettings as e:
                    mended = f"if there is a checkpoint, 'fedsmoo resume {as_word(folder)}' puts it back"
                    raise LostSettings(f"{e}, as after a power cut: {mended}") from e
            inside = folder.is_file() and (folder.parent / CONFIG).is_file()
            hint = f"; did you mean {folder.parent}?" if inside else ""
            raise LostSettings(f"{folder} is not a run folder: it has no {CONFIG}{hint}")
        return {}


def read_config(path: Path) -> Config:
    """Read the config of a run folder; ``FedsmooError`` if there is none or it is damaged."""
    return config_in(Files(path).settings(), str(path / CONFIG))


def read_label(path: Path) -> str | None:
    """Read what a sweep's file calls the method of a run; none if that is the method's own name."""
    return (Files(path).content(LABEL) or b"").decode("utf-8", "replace").strip() or None


def parse_records(content: bytes, where: str) -> list[Record]:
    """Return the rounds in the bytes of a metrics file, without a torn last line; ``FedsmooError`` names another.

    They are 1, 2, 3, ...: a line that is missing or there twice would be so many bytes and seconds less or more.
    """
    records: list[Record] = []
    for i, line in enumerate(io.BytesIO(content)):
        if line == b"\n":
            continue
        try:
            record = Record(**parse_line(line))
            if not is_sound_record(record) or record.round != len(records) + 1:
                raise ValueError(record)
            records.append(record)
        except (ValueError, TypeError, RecursionError) as e:
            if not line.endswith(b"\n"):
                break
            raise FedsmooError(f"{where}, line {i + 1}: not a round's record") from e
    return records


def is_sound_record(record: Record) -> bool:
    """Return whether every field of a round has its type."""
    tables = (record.probes, record.metrics, record.validation_metrics)
    if {*map(type, (*tables, record.changes))} != {dict} or {type(record.cohort), type(record.lower)} != {list}:
        return False
    optional = (record.test_accuracy, record.test_loss, record.train_loss, record.drift, record.drift_after)
    optional += tuple(getattr(record, n) for n in HELD_OUT)
    always = (record.round, record.bytes_up, record.bytes_down, record.seconds_train, record.seconds_eval, record.lr)
    held = {type(record.round), *map(type, record.cohort)} == {int} and {*map(type, record.lower)} <= {str}
    held = held and {*map(type, record.changes.values())} <= CHANGED
    return held and are_numbers((*optional, *(v for t in tables for v in t.values())), OPTIONAL) and are_numbers(always)


def are_numbers(values: Collection[Any], kinds: set[type] = NUMBERS) -> bool:
    """Return whether values are of these types, and none is a whole number so large that nothing counts to it."""
    found = {*map(type, values)}
    return found <= kinds and (int not in found or all(abs(v) < LARGEST_COUNT for v in values if type(v) is int))


def state_of(summary: bool, failure: bool, config: bool) -> State:
    """Return a run's state from which of its files are there: a summary is written last, and a failure ends a run."""
    return "finished" if summary else "failed" if failure else "unfinished" if config else "new"


def state(folder: Path) -> State:
    """Return the state of the run in a folder, which may not be there yet, without reading any file."""
    summary, failure, config = ((folder / name).is_file() for name in (SUMMARY, FAILED, CONFIG))
    return state_of(summary, failure, config)


def right_kind(name: str, value: Any) -> bool:
    """Return whether a fact has the type that it should have; unknown ones may have any."""
    if name not in KINDS or value is None:
        return True
    fits = isinstance(value, KINDS[name]) and not isinstance(value, bool)  # true and false are no numbers
    fits = fits and (type(value) is not int or abs(value) < LARGEST_COUNT)
    return fits and (name not in INNER or {*map(type, value.values())} <= INNER[name])
