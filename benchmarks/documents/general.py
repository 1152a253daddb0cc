"""Tables of modules as they come on a GPU: their rounds, and the convolutions of any shape under them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.gpu import limits
from benchmarks.kernels.tiles import fastest

GPU = Path(__file__).parents[2] / "results" / "gpu"
NAMES = {
    "cnn": "CNN: two 5x5 convolutions of 64, three linear layers",
    "resnet": "ResNet-18 with GroupNorm and a 3x3 stem",
    "vit": "ViT: 6 layers of 192, 64 tokens",
    "lstm": "character LSTM: 2 layers of 256, 80 characters",
    "bert": "BERT-tiny, 128 tokens, dropout",
}
WRONG = "[did not wait](gpu.md#a-wait-that-was-missing) for their products"  # rows that are marked `unawaited`
BUSY = "The last of our tests may still have run on the same GPU, so single times may be too long."
WAYS = ("grouped", "loop", "streams", "patches", "products", "boxes")
GROUP_WAYS = ("few", "folded")  # of layers with groups


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GPU / name).read_text())
    return found


def rows_of(header: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown: numbers to the right."""
    lines = ["|".join(("", *(f" {cell} " for cell in line), "")) for line in (header, *rows)]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(header) - 1), *lines[1:]])


def modules() -> str:
    """Rounds of plain modules against a plain loop (``benchmarks/gpu/modules.py``)."""
    found = read("modules.json")
    rows = []
    for r in found["rows"]:
        times = f"{r['loop']:.2f}", f"{r['ours']:.3f}", f"{r['ratio']:.0f}x"
        starts = (f"{r[k]:.1f}" if k in r else "" for k in ("first", "first_later"))
        rows.append([NAMES[r["model"]], f"{r['parameters'] / 1e6:.1f} M", *times, *starts])
    note = (
        f"FedAvg, 10 clients, {found['steps']} steps of 50 samples, {found['precision']}, on {found['hardware']}, "
        f"commit {found['code']['commit'][:10]}{other_commits(found)}. The loop trains one client after the other in "
        "the same precision. The first round includes looking at the module, tracing and compiling, from an empty "
        "cache and in a later process, which finds compiled code on disk; an empty cell was not measured. "
        f"{first_rounds(found['rows'])}{unawaited(found['rows'])}"
    )
    header = ["module", "parameters", "plain loop, s", "a round, s", "faster"]
    header += ["first round, s", "in a later process, s"]
    return rows_of(header, rows) + f"\n\n{note}"


def first_rounds(rows: list[dict[str, Any]]) -> str:
    """Return at which commits, and with how many cores of the host, first rounds were measured, as a sentence."""
    by = dict[str, list[str]]()
    for r in rows:
        commit = r.get("first_commit", r.get("commit", ""))[:10]
        how = f"{commit and f'at {commit} '}with {r['first_cores']} cores of the host"
        by.setdefault(how, []).append(short_name(r))
    words = "; ".join(f"of {' and '.join(names)} {how}" for how, names in by.items())
    return f"First rounds: {words}."


def unawaited(rows: list[dict[str, Any]]) -> str:
    """Return which rows are times of kernels that did not wait for their products, as a sentence; empty if none."""
    names = [short_name(r) for r in rows if r.get("unawaited")]
    return f" The times of {' and '.join(names)} are of kernels by boxes that {WRONG}." if names else ""


def short_name(row: dict[str, Any]) -> str:
    return re.split("[:,]| with", NAMES[row["model"]])[0]


def other_commits(found: dict[str, Any]) -> str:
    """Return which rows were measured at a commit of their own, in words."""
    by = dict[str, list[str]]()
    for r in found["rows"]:
        if "commit" in r:
            by.setdefault(r["commit"][:10], []).append(short_name(r))
    words = "; ".join(f"{commit} for {' and '.join(names)}" for commit, names in by.items())
    return f" ({words})" if words else ""


def profile() -> str:
    """Where the rounds of those modules spend their time, beside what arithmetic and memory allow."""
    found = read("modules.json")
    header = ["milliseconds of a round", "kernels", "of the clock", "TFLOP", "GB", "limit", "times the limit"]
    parts = [
        f"**{NAMES.get(r['model'], r['model'])}**\n\n{rows_of(header, limits.rows_of(r))}"
        for r in found["rows"]
        if "limits" in r
    ]
    note = (
        f"FedAvg, 10 clients, {found['steps']} steps of 50 samples, {found['precision']}, {found['hardware']}, commit "
        f"{found['code']['commit'][:10]}. A kernel that does work of several groups is in the one that its name tells: "
        "below 1x, some of a group's work is done in the passes of another."
        f"{unawaited([r for r in found['rows'] if 'limits' in r])}"
    )
    return "\n\n".join([*parts, note])


def other_layers(found: dict[str, Any]) -> str:
    """Return which layers were measured at a commit of their own, in words."""
    by = dict[str, dict[str, None]]()
    for r in found["rows"]:
        if "commit" in r:
            by.setdefault(r["commit"][:10], {})[r["layer"]] = None
    words = "; ".join(f"{commit} for {', '.join(layers)}" for commit, layers in by.items())
    return f" ({words})" if words else ""


def tiles_tf32() -> str:
    """Kernels of ResNet-18-GN in tf32 with the tiles that were the table's, and the fastest of those tried."""
    found, rows = read("tiles_tf32.json"), []
    for key in dict.fromkeys(r["key"] for r in found["rows"]):
        best, was = fastest([r for r in found["rows"] if r["key"] == key])
        kind, channels = key.split(":")
        what = kind.replace("/2", ", stride 2").replace("stem-weight", "stem, weight").replace("backward", "data")
        tile = best["tile"]
        shape = f"{tile['rows']} x {tile['cols']} by {tile['inner']}"
        cells = [f"{was:.1f}", f"{best['us']:.1f}", f"{was / best['us']:.1f}x", shape, str(tile["warps"])]
        rows.append([f"{what}, {channels} channels", *cells])
    header = ["product", "before, us", "fastest, us", "faster", "its tile", "warps"]
    note = (
        f"One kernel after the other, {found['clients']} clients of {found['batch']} samples, NVIDIA H200, commit "
        f"{found['code']['commit'][:10]}; {len(found['rows'])} variants were timed. {BUSY}"
    )
    return rows_of(header, rows) + f"\n\n{note}"


def convolutions_tf32() -> str:
    """Ways to convolve in tf32."""
    return f"{convolutions('convolutions_tf32.json')} {BUSY}"


def convolutions(file: str = "convolutions.json") -> str:
    """Ways to convolve with a client axis, layer by layer (``benchmarks/kernels/convolutions.py``)."""
    found = read(file)
    rows, ways = [], [*WAYS, *(w for w in ("turned", *GROUP_WAYS) if any(w in r for r in found["rows"]))]
    for r in found["rows"]:
        cells = [f"{r[w]:.0f}" if w in r else "" for w in ways]
        rows.append([f"{r['layer']}, {r['kind']}", *cells, f"{r['tflops']:.0f}"])
    note = (
        f"Microseconds, {found['clients']} clients of {found['batch']} samples, {found.get('precision', 'bf16')}, "
        f"NVIDIA H200, commit {found['code']['commit'][:10]}{other_layers(found)}. `grouped` is what `vmap` makes of a "
        "convolution by itself, `loop` and `streams` call cuDNN once a client, `patches` copies patches and multiplies "
        "matrices, `products` and `boxes` are ours; the last column is of the fastest."
    )
    if "turned" in ways:
        note += " `turned` are boxes whose products are transposed."
    if set(ways) & set(GROUP_WAYS):
        note += (
            " Of layers with groups, `few` and `folded` are ours: kernels of their own, and groups as clients, copies "
            "of images included; the three first find their images in the order they need."
        )
    return rows_of(["layer, product", *ways, "TFLOP/s"], rows) + f"\n\n{note}"
