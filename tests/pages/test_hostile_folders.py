"""``fedsmoo serve`` over HTTP, with run folders that somebody made to be read: shown as text, and nothing else is."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE, wait_for

from fedsmoo.pages.server import PageServer

from .folders import run_folder

SECRET = "the-secret-of-another-folder"
SCRIPT = '"><img src=x onerror=window.hacked=1><script>window.hacked=2</script>'
NAMES = [SCRIPT.replace("/", "\u2044"), "two\nlines \x1b[2J", "\u202egnihtemos", "@DATA@", "a" * 250]
BROKEN = {
    "nested": '{"round": ' + "[" * 100_000,
    "cut": '{"round": 1, "test_accu',
    "huge": json.dumps({"round": 1, "test_accuracy": 10**400, "train_loss": "9" * 10**6}) + "\n",
    "endless": '{"round": 1, "test_accuracy": 1e999, "test_loss": NaN, "drift": -Infinity}\n',
    "zeros": "\0" * 1000,
    "words": f'{{"round": "{SCRIPT.replace(chr(34), "")}", "test_accuracy": {{"a": 1}}}}\n',
}


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[PageServer]:
    """A server of such folders, and a secret beside them."""
    runs, secret = tmp_path / "runs", tmp_path / "secret.txt"
    secret.write_text(json.dumps({"command": SECRET, "engine": SECRET, "eigenvalues": [1.0], "counts": [[1]]}) + SECRET)
    for name in NAMES:
        folder = run_folder(runs, name, SCRIPT, rounds=3, command=SCRIPT, model=SCRIPT, split=f"../../{secret.name}")
        (folder / "label.txt").write_text(SCRIPT)
    for name, content in BROKEN.items():
        (run_folder(runs, name, "fedavg", rounds=3) / "metrics.jsonl").write_text(content)
    for name in ("label.txt", "summary.json", "started.json", "metrics.jsonl", "config.toml", "analysis/hessian.json"):
        folder = run_folder(runs, f"link-{name.replace('/', '-')}", "fedavg", rounds=3)
        (folder / "analysis").mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(secret)
    os.mkfifo(run_folder(runs, "pipe", "fedavg", rounds=3) / "label.txt")
    (runs / "out").symlink_to(tmp_path)
    with PageServer([runs]) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def get(server: PageServer, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=PATIENCE)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{server.server_address[1]}")
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_data_is_text_and_nothing_outside_is_read(hostile: PageServer) -> None:
    status, body = get(hostile, "/data.json")
    assert status == 200
    assert SECRET.encode() not in body
    runs = json.loads(body, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))["runs"]
    assert len(runs) >= len(NAMES) + len(BROKEN)
    assert all(character.isprintable() for run in runs for character in run["name"] + (run["label"] or ""))
    assert {run["label"] for run in runs if run["method"] != "FedAvg" and run["label"]} == {SCRIPT[:80]}
    columns = [run["acc"] if isinstance(run["acc"], list) else [run["acc"]] for run in runs]
    finite = [v for column in columns for v in column if v is not None]
    assert all(0 <= v <= 1 for v in finite)
    for path in ("/../secret.txt", "/%2e%2e/secret.txt", "//etc/passwd", "/data.json?x=../secret.txt", "/runs/../../x"):
        assert get(hostile, path)[0] == 404, path


def test_the_page_executes_nothing_of_it(hostile: PageServer, browser: Any) -> None:
    tab = browser.new_context().new_page()
    tab.set_default_timeout(1000 * PATIENCE)
    problems: list[str] = []
    tab.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    tab.on("pageerror", lambda e: problems.append(str(e)))
    tab.goto(hostile.url)
    wait_for(lambda: "finished" in tab.locator("#about").inner_text(), "the runs on the page")
    wait_for(lambda: not tab.locator("#about").inner_text().startswith("0 runs"), "the runs on the page")
    for task in tab.locator("#task option").all():
        tab.locator("#task").select_option(task.get_attribute("value"))
        for section in ("summary", "curves", "configs", "commands"):
            tab.locator(f"#{section}").scroll_into_view_if_needed()
            tab.wait_for_selector(f"#{section}[data-drawn]", state="attached")
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("main img, main iframe, main a[href^='javascript']").count() == 0
    assert SECRET not in tab.content()
    assert problems == []
    tab.context.close()
