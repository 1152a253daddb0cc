"""What the files of a run folder are called."""

from __future__ import annotations

import hashlib

CONFIG, METRICS, SUMMARY, MODEL = "config.toml", "metrics.jsonl", "summary.json", "model.safetensors"
STARTED, FAILED, LABEL, CHECKPOINT = "started.json", "failed.json", "label.txt", "checkpoint"
FILES = (CONFIG, METRICS, STARTED, SUMMARY, FAILED, LABEL)  # small ones, from which lists and pages are made
LONGEST = 220  # bytes of a name made of settings: file systems take 255, and endings such as .json.part follow


def fitting_name(name: str) -> str:
    """Return a name as it is; of one that is too long for a file system, the beginning and a hash of the whole.

    >>> fitting_name("fedsmoo-digits"), fitting_name("9" * 300)[-12:], len(fitting_name("9" * 300))
    ('fedsmoo-digits', '999-28c33efd', 220)
    """
    content = name.encode()
    if len(content) <= LONGEST:
        return name
    return f"{content[: LONGEST - 9].decode(errors='ignore')}-{hashlib.sha256(content).hexdigest()[:8]}"
