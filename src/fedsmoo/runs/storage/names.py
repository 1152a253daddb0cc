"""What the files of a run folder are called."""

from __future__ import annotations

CONFIG, METRICS, SUMMARY, MODEL = "config.toml", "metrics.jsonl", "summary.json", "model.safetensors"
STARTED, FAILED, LABEL, CHECKPOINT = "started.json", "failed.json", "label.txt", "checkpoint"
FILES = (CONFIG, METRICS, STARTED, SUMMARY, FAILED, LABEL)  # small ones, from which lists and pages are made
