r"""A round of many clients in limited GPU memory: how many train at once by our rule, what they take, their bits.

PYTHONPATH=src python3 -m benchmarks.gpu.memory --out results/gpu/memory.json            # 100 clients in 80 GB
PYTHONPATH=src python3 -m benchmarks.gpu.memory --device cpu --model cnn_gn --clients 4 --batch 4 --other 2 --out m.json

The process may take that much of the GPU and no more. One process runs the round twice with the chunk of the rule,
which must give the same bits; another one, beside it, with another chunk, which must agree within rounding.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.modules import images
from fedsmoo.api import assemble_objects
from fedsmoo.engines.client_state.memory import activation_bytes, bytes_per_client
from fedsmoo.models import build
from fedsmoo.runs.origin.provenance import code_facts, device_name


def limit(args: argparse.Namespace) -> None:
    """Let the process have no more of the GPU than was given."""
    if args.device != "cpu":
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, args.gigabytes * 1e9 / whole))


def one_round(args: argparse.Namespace, chunk: int | None) -> tuple[dict[str, Any], Tensor, Tensor]:
    """Return facts of a round, the weights before it and after it."""
    data = images(samples=50 * args.clients)
    settings = {
        "cohort": args.clients, "clients": args.clients, "rounds": 2, "local_steps": args.steps, "chunk": chunk,
        "batch_size": args.batch, "eval_every": 10**6, "device": args.device, "partition": "iid", "seed": 0,
        "precision": "fp32" if args.device == "cpu" else "bf16", "engine": "auto" if args.device != "cpu" else "vmap",
    }  # fmt: skip
    module = build(args.model, data, 0, live=False).module
    simulation, _ = assemble_objects(module, data, "fedavg", "cross_entropy", "uniform", None, settings)
    before = simulation.server.w.clone()
    if args.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    simulation.advance()
    facts: dict[str, Any] = {"chunk": simulation.clients_at_once, "engine": simulation.engine.name}
    facts["seconds_first_round"] = time.perf_counter() - begun
    if args.device != "cpu":
        facts["peak_memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
        facts["peak_reserved_gb"] = torch.cuda.max_memory_reserved() / 1e9
    facts["vectors_gb_a_client"] = bytes_per_client(simulation.setup) / 1e9
    facts["activations_gb_a_client"] = activation_bytes(simulation.setup, args.batch) / 1e9
    return facts, before, simulation.server.w.clone()


def work(args: argparse.Namespace) -> None:
    """Run the round, with the rule's chunk twice, and leave what came of it in a folder."""
    limit(args)
    kind, folder = args.work.name, args.work.parent
    facts, before, after = one_round(args, args.other if kind == "other" else None)
    torch.save((before.cpu(), after.cpu()), folder / f"{kind}.pt")
    if kind == "rule":
        again = one_round(args, facts["chunk"])[2]
        facts["same_bits_again"] = bool(torch.equal(after, again))
    (folder / f"{kind}.json").write_text(json.dumps(facts))


def compare(folder: Path) -> dict[str, Any]:
    """How far another chunk's round ends from the rule's, against how far the round went."""
    (before, rule), (_, other) = (torch.load(folder / f"{n}.pt") for n in ("rule", "other"))
    away, went = (rule - other).double(), (rule - before).double()
    return {"relative_to_weights": float(away.norm() / rule.double().norm()),
            "relative_to_update": float(away.norm() / went.norm())}  # fmt: skip


def sentence(report: dict[str, Any]) -> str:
    """A round of many clients below a limit of memory, in a sentence."""
    s, rule, other = report["settings"], report["rule"], report["other"]
    same = "the same bits" if rule["same_bits_again"] else "OTHER BITS"
    return (
        f"{s['clients']} clients of `{s['model']}`, batches of {s['batch']}, {s['steps']} steps, in at most "
        f"{s['gigabytes']:.0f} GB: the rule takes {rule['chunk']} clients at once, for which "
        f"{rule['peak_reserved_gb']:.1f} GB were reserved at most, captured graphs included (it counts "
        f"{rule['vectors_gb_a_client']:.2f} GB of a client's vectors and twice the "
        f"{rule['activations_gb_a_client']:.2f} GB that its loss keeps). A second run with that chunk gave {same}; "
        f"with {other['chunk']} at once ({other['peak_reserved_gb']:.1f} GB) the "
        f"weights differ by {report['difference']['relative_to_weights']:.1e} of their norm. {report['hardware']}, "
        f"torch {report['versions']['torch']}, commit {report['code']['commit'][:10]}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="resnet18_gn_cifar")
    parser.add_argument("--gigabytes", type=float, default=80)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--other", type=int, default=20, help="another chunk to compare with")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        return work(args)
    given = [w for n in ("device", "model", "gigabytes", "clients", "steps", "batch", "other")
             for w in (f"--{n}", str(getattr(args, n)))]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        begun = [
            subprocess.Popen([sys.executable, "-m", "benchmarks.gpu.memory", *given, "--work", str(Path(name, kind))])
            for kind in ("rule", "other")
        ]
        if [code for code in [process.wait() for process in begun] if code]:
            sys.exit("a process failed: see above")
        facts = {kind: json.loads(Path(name, f"{kind}.json").read_text()) for kind in ("rule", "other")}
        settings = {n: getattr(args, n) for n in ("model", "gigabytes", "clients", "steps", "batch")}
        report = {
            "code": code_facts(), "hardware": device_name(torch.device(args.device)),
            "versions": {"torch": torch.__version__}, "settings": settings, **facts, "difference": compare(Path(name)),
        }  # fmt: skip
    print(json.dumps(report, indent=1))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
