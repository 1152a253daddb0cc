"""Which code is the user's own: files whose SHA-256 is in a list in their configuration folder.

``run``, and all that begins a run by the user's own word, adds to the list what it runs. Whatever goes on with what a
folder says, which a stranger may have made, runs a file only if it is in the list, or if the user says so once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.user_code import Judge, file_of, is_in_file
from fedsmoo.data.fingerprint import SHORT
from fedsmoo.data.own import is_own
from fedsmoo.metrics.quantity import own_metrics
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.contents import recorded_hashes
from fedsmoo.runs.origin.objects import PREFIX
from fedsmoo.runs.settings.fields import BROUGHT
from fedsmoo.runs.storage.files import make_folder, reason, write_durably
from fedsmoo.runs.storage.lease import locked
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.runs.storage.walk import run_folders

ENTRY = re.compile(rb"([0-9a-f]{64})(?: .*)?")


@dataclass(frozen=True)
class Code:
    """A file of code that a setting names, and the SHA-256 of what it holds."""

    setting: str
    path: Path
    sha256: str

    def __str__(self) -> str:
        return f"{self.setting} {self.path} (SHA-256 {self.sha256})"


def list_file() -> Path:
    """Return where the list lies: ``$XDG_CONFIG_HOME/fedsmoo/trusted``, by default below ``~/.config``."""
    home = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".config") / "fedsmoo" / "trusted"


def code_in(config: Config) -> list[Code]:
    """Return the files of code that a config names, as they are now; those that are not there are left out."""
    metrics = (("metrics", spec) for spec in own_metrics(config.metrics))
    return code_files([*((name, getattr(config, name)) for name in BROUGHT), *metrics])


def code_files(named: Iterable[tuple[str, str]]) -> list[Code]:
    """Return the files of code among what settings name, each once."""
    found: dict[Path, Code] = {}
    for setting, spec in named:
        path = file_of(spec) if is_own(spec) or (setting != "dataset" and is_in_file(spec)) else None
        if path is None or path in found or spec.startswith(PREFIX):
            continue
        with suppress(OSError, ValueError):
            if path.is_file():  # no pipe
                found[path] = Code(setting, path, hashlib.sha256(path.read_bytes()).hexdigest())
    return list(found.values())


def read_list() -> bytes:
    """Read the list; nothing, if it is no file that only its owner may write."""
    with suppress(OSError), list_file().open("rb") as f:
        found = os.fstat(f.fileno())
        owner = getattr(os, "geteuid", lambda: found.st_uid)()
        if stat.S_ISREG(found.st_mode) and found.st_uid in (owner, 0) and not found.st_mode & stat.S_IWOTH:
            return f.read()
    return b""


def trusted_hashes() -> set[str]:
    """Return the SHA-256 of all files in the list; lines that are none are left out."""
    matches = (ENTRY.fullmatch(line) for line in read_list().split(b"\n"))
    return {match[1].decode() for match in matches if match}


def remember(found: Iterable[Code]) -> list[str]:
    """Add files to the list, all or none, whatever other processes do; returns a line if it cannot be written."""
    new = {code.sha256: code for code in found if code.sha256 not in trusted_hashes()}
    if not new:
        return []
    path = Path(os.path.realpath(list_file()))  # it may be a link into somebody's collection of settings
    try:
        make_folder(path.parent)
        with locked(path.parent):
            known, before = trusted_hashes(), read_list()
            added = b"".join(line_of(code) for code in new.values() if code.sha256 not in known)
            if added:
                write_durably(path, before + (b"" if before.endswith(b"\n") or not before else b"\n") + added)
    except OSError as e:
        return [f"{path} cannot be written ({reason(e)}): to go on with this run later, say --trust"]
    return []


def line_of(code: Code) -> bytes:
    """Return an entry of the list: the SHA-256, and for people when and where the file was run."""
    about = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "file": str(code.path.absolute())}
    return f"{code.sha256} {json.dumps(about)}\n".encode()


def permit(config: Config, what: str, trust: bool = False) -> Judge:
    """Return a judge that lets pass the code which a config names, if it is the user's own.

    Args:
        config: what a folder or a file says, which a stranger may have made.
        what: what it is, in words.
        trust: the user says that it is theirs: it is added to the list.

    Raises:
        FedsmooError: if some of it is not, with its files and what they hold.
    """
    found = code_in(config)
    refuse_strange(found, what, trust)
    return judge_for(found)


def refuse_strange(found: Iterable[Code], what: str, trust: bool = False) -> None:
    """Refuse code that is not in the list, unless the user trusts it: then it is added."""
    known = trusted_hashes()
    strange = [code for code in found if code.sha256 not in known]
    if strange and not trust:
        raise FedsmooError(
            f"{what} would run code that you have not run before: {', '.join(map(str, strange))}. Read it; if you "
            "trust it, say so once with --trust (in Python: trust=True); nothing was run"
        )
    remember(strange)


def refuse_begun_elsewhere(named: Iterable[tuple[str, Any]], root: Path, trust: bool = False) -> None:
    """Refuse to go on with runs below a folder that somebody else began, with code that the user has not run.

    Args:
        named: what settings name, by setting: text, or what is no name of code.
        root: where the runs lie.
        trust: as of :func:`permit`.
    """
    specs = [(setting, spec) for setting, spec in named if isinstance(spec, str)]
    known = trusted_hashes()
    strange = [code for code in code_files(specs) if code.sha256 not in known]
    for folder in run_folders([root]) if strange else ():
        run = read_run(folder, strict=True)
        if run.state == "finished":
            continue
        held, says = recorded_hashes(run.started), {s: run.settings.get(s) for s in (*BROUGHT, "metrics")}
        if held is None:  # begun before files were noted: it may be the one that is there
            mine = [code for code in strange if (code.setting, says[code.setting]) in specs]
        else:
            mine = [code for code in strange if code.sha256[:SHORT] in held.values()]
        refuse_strange(mine, f"to go on with the run in {folder}", trust)


def judge_for(found: Iterable[Code]) -> Judge:
    """Return a judge that lets pass these files, as long as they hold what they did."""
    allowed: Mapping[str, Code] = {code.sha256: code for code in found}

    def judge(path: Path, sha256: str) -> None:
        if sha256 not in allowed:
            raise FedsmooError(f"{path} was not run: it is not what was looked at before (SHA-256 {sha256})")

    return judge
