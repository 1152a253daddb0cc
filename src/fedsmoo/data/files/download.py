"""Official files from the network into the cache folder: checked, resumed where a connection broke, retried.

`pooch` keeps the files: it checks sums, retries, and moves a file to its name only once it is right. It starts every
attempt from the first byte, so the downloader below adds what it lacks, an HTTP range request for the missing rest.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.data.catalog import SPECS, Remote, Spec
from fedsmoo.data.files.cache import user_cache
from fedsmoo.data.files.durable import rename_durably
from fedsmoo.data.names import PUBLISHED

NEEDS = "downloading needs pooch and requests: pip install 'fedsmoo[download]', or give the files with --data PATH"


def fetch_dataset(name: str, to: str | Path | None = None, progress: bool = True) -> Path:
    """Download a known data set into ``to/NAME`` (default: the cache folder) and return that folder.

    Files that are there already and whole are not fetched again.
    """
    if PUBLISHED.fullmatch(name):
        from fedsmoo.data.forms.published.federated import how_to_get  # late: readers need PyTorch, a download does not

        raise FedsmooError(f"data set {name} is not downloaded: {how_to_get(name)}")
    if name not in SPECS:
        raise unknown("data set to download", name, SPECS)
    return fetch_spec(SPECS[name], Path(to).expanduser() if to else user_cache(), progress)


def fetch_spec(
    spec: Spec, to: Path, progress: bool = True, retries: int = 5, timeout: tuple[float, float] = (15.0, 60.0)
) -> Path:
    """Download any data set that is described; ``timeout`` is for connecting and between two answers."""
    folder = to / spec.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedsmooError(f"{folder}: cannot be created ({error.strerror}); choose another folder") from None
    if not os.access(folder, os.W_OK):
        raise FedsmooError(f"{folder}: cannot be written; choose another folder")
    for remote in spec.remotes:
        _fetch(spec, remote, folder, progress, retries, timeout)
    return folder


def _fetch(
    spec: Spec, remote: Remote, folder: Path, progress: bool, retries: int, timeout: tuple[float, float]
) -> None:
    """Download one file from the first address that serves the right one."""
    try:
        import pooch
        import requests
    except ImportError:
        raise FedsmooError(NEEDS) from None
    pooch.get_logger().setLevel(logging.ERROR)
    reasons = []
    for url in remote.urls:
        keeper = pooch.create(
            path=folder,
            base_url="",
            registry={remote.file: remote.checksum},
            urls={remote.file: url},
            retry_if_failed=retries,
        )
        part = folder / f"{remote.file}.part"
        try:
            keeper.fetch(remote.file, downloader=Resume(part, progress, timeout))
        except ValueError:  # how pooch says that the checksum is wrong
            reasons.append(f"{url} serves another file ({remote.checksum.partition(':')[0]} differs)")
        except Refused as error:
            reasons.append(f"{url}: {error}")
        except requests.exceptions.RequestException as error:
            reasons.append(f"{url}: {_plain(error)}")
        except OSError as error:
            raise FedsmooError(
                f"{folder}: cannot be written ({error.strerror or error}); choose another folder"
            ) from None
        else:
            return
    raise FedsmooError(
        f"{spec.name}: could not get {remote.file}: {'; '.join(reasons)}. Run again to go on where it stopped, or "
        "download it by other means and give its folder with --data"
    )


def _plain(error: Exception) -> str:
    """Return the innermost words of a network error, without the layers of Python objects around them."""
    reason: Any = error
    while getattr(reason, "args", None) and isinstance(reason.args[-1], Exception):
        reason = reason.args[-1]
    return f"{type(error).__name__}, {getattr(reason, 'reason', None) or reason}"


class Refused(Exception):
    """The server does not give this file, now or later."""


@dataclass(frozen=True)
class Resume:
    """A pooch downloader that keeps what has arrived in ``part`` and asks the server for the rest only."""

    part: Path
    progress: bool = True
    timeout: tuple[float, float] = (15.0, 60.0)
    chunk: int = 1 << 16

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        import requests

        tag = self.part.with_name(self.part.name + ".etag")
        have = self.part.stat().st_size if self.part.exists() else 0
        # Without "identity" a server may compress on the fly, and then byte positions mean nothing.
        headers = {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if tag.exists():
                headers["If-Range"] = tag.read_text("ascii", "replace")
        with _ask(url, headers, self.timeout) as answer:
            if answer.status_code == 416:  # the part is as long as the file, or longer: not a beginning of it
                self.part.unlink(missing_ok=True)
                raise requests.exceptions.ConnectionError("the partial file did not fit and was dropped")
            if 400 <= answer.status_code < 500 and answer.status_code not in (408, 429):
                raise Refused(f"HTTP {answer.status_code} {answer.reason}")  # asking again would not help
            answer.raise_for_status()
            start = have if _continues(answer, have) else 0
            _remember(tag, answer.headers.get("ETag", ""))
            self._receive(answer, start)
        rename_durably(self.part, Path(output_file))
        tag.unlink(missing_ok=True)

    def _receive(self, answer: Any, start: int) -> None:
        """Append the body to the part, which keeps whatever arrived if the connection breaks."""
        import requests

        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else None
        with (
            self.part.open("r+b" if start else "wb") as file,
            _bar(self.part.stem, total, start, self.progress) as step,
        ):
            file.truncate(start)
            file.seek(start)
            for block in answer.iter_content(self.chunk):
                file.write(block)
                step(len(block))
            if total is not None and file.tell() != total:
                raise requests.exceptions.ConnectionError(f"{file.tell()} of {total} bytes arrived")


def _ask(url: str, headers: dict[str, str], timeout: tuple[float, float]) -> Any:
    import requests

    try:
        return requests.get(url, headers=headers, stream=True, timeout=timeout)
    except requests.exceptions.ConnectionError as error:
        if "NameResolutionError" in repr(error):
            raise Refused("the name of the server cannot be resolved (no network?)") from None
        raise


def _continues(answer: Any, have: int) -> bool:
    """Return whether the server sends the rest (206, from the right place) rather than the whole file."""
    return answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _remember(file: Path, etag: str) -> None:
    """Keep the version of the file on the server, so that a resume of another version starts afresh."""
    if etag and not etag.startswith("W/"):
        file.write_text(etag, "ascii", "replace")
    else:
        file.unlink(missing_ok=True)


@contextmanager
def _bar(name: str, total: int | None, start: int, show: bool):
    """Return a progress bar on a terminal, else one that shows nothing."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), disable=not show) as progress:
        if not progress.console.is_terminal:
            progress.disable = True
        task = progress.add_task(name, total=total, completed=start)
        yield lambda count: progress.advance(task, count)
