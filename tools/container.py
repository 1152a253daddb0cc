"""Build the image of the Containerfile and run its demo: ``make container``, with ``VARIANT=cuda`` for NVIDIA GPUs.

    python tools/container.py            # by docker, podman or buildah
    sudo python tools/container.py --replay     # by neither: no image comes of it, but every instruction is tried

``--replay`` carries out the instructions one by one, each stage in a layer over this machine's own files that is thrown
away at the end. Its base is a fresh virtual environment of this Python in place of the base image's. It needs Linux and
root.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEMO = ["demo", "--rounds", "3", "--seeds", "0"]
BASE = "/usr/local/base"  # where the replay has its Python, as the base image has one below /usr/local
KEPT = ("PIP_", "SSL_", "REQUESTS_")  # how to reach an index


def instructions(text: str) -> list[tuple[str, str]]:
    """Read a Containerfile: every instruction with its words, continued lines joined, comments left out."""
    plain = "\n".join(line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    lines = plain.replace("\\\n", "").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def let_through(names: list[str], rules: list[str]) -> list[str]:
    """Return the files that a ``.dockerignore`` lets into the build; the last rule that matches a file decides.

    >>> let_through(["a.py", "src/b.py", "src/__pycache__/b.pyc"], ["*", "!src", "**/__pycache__"])
    ['src/b.py']
    """

    def kept(name: str) -> bool:
        parts, answer = name.split("/"), True
        above = ["/".join(parts[: k + 1]) for k in range(len(parts))]
        for rule in rules:
            pattern = rule.removeprefix("!").rstrip("/")
            whole = [p for p in above[:-1] if p.count("/") == pattern.count("/")] if rule.endswith("/") else above
            if pattern.startswith("**/"):
                whole, pattern = parts, pattern[3:]
            if any(fnmatch.fnmatch(p, pattern) and p.count("/") == pattern.count("/") for p in whole):
                answer = rule.startswith("!")
        return answer

    return [name for name in names if kept(name)]


def engine() -> str | None:
    """Return the program that builds images here, if there is one that answers."""
    for name in ("docker", "podman", "buildah"):
        if shutil.which(name) and not subprocess.run([name, "info"], capture_output=True).returncode:
            return name
    return None


class Stage:
    """A layer over this machine's files, and what the instructions so far have set."""

    def __init__(self, place: Path, arguments: dict[str, str]) -> None:
        self.root, self.folder, self.user = place / "root", "/", "0"
        for part in ("upper", "work", "root"):
            (place / part).mkdir(parents=True)
        layers = f"lowerdir=/,upperdir={place / 'upper'},workdir={place / 'work'}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(self.root)], check=True)
        for part in ("proc", "dev"):
            subprocess.run(["mount", "--rbind", f"/{part}", str(self.root / part)], check=True)
        self.arguments = dict(arguments)
        self.env = {k: v for k, v in os.environ.items() if k.startswith(KEPT) or k.lower().endswith("_proxy")}
        self.env |= {"PATH": f"{BASE}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        for above in [Path(sys.base_prefix), *Path(sys.base_prefix).parents]:  # the image's user has to reach it
            subprocess.run(["chmod", "a+rx", str(self.root) + str(above)], check=True)
        for name in ("passwd", "group"):  # as in a base image, nobody but the system's own
            lines = (self.root / "etc" / name).read_text(encoding="utf-8").splitlines()
            kept = [f"{line}\n" for line in lines if int(line.split(":")[2]) < 1000]
            (self.root / "etc" / name).write_text("".join(kept), encoding="utf-8")
        self.run([os.path.realpath(sys.executable), "-m", "venv", BASE])

    def run(self, words: list[str]) -> None:
        """Run a command in this layer, as its user."""
        users = [line.split(":") for line in (self.root / "etc/passwd").read_text(encoding="utf-8").splitlines()]
        home = next((user[5] for user in users if user[2] == self.user), "/")
        inside = f'cd "$0" && exec {shlex.join(words)}'
        chroot = ["chroot", f"--userspec={self.user}:{self.user}", str(self.root), "/bin/sh", "-c", inside, self.folder]
        subprocess.run(chroot, check=True, env={**self.arguments, **self.env, "HOME": home})

    def copy(self, words: list[str], context: Path, stages: dict[str, Stage]) -> None:
        """Copy files of the build, or of another stage, as ``COPY`` does."""
        source = words.pop(0).partition("=")[2] if words[0].startswith("--from=") else ""
        *names, target = words
        into = self.root / (target if target.startswith("/") else f"{self.folder}/{target}").lstrip("/")
        for name in names:
            path = stages[source].root / name.lstrip("/") if source else context / name
            if path.is_dir():
                shutil.copytree(path, into, dirs_exist_ok=True)
            else:
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, into)


def replay(place: Path, variant: str) -> None:
    """Carry out all instructions, and at last the demo as the image's user."""
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    listed = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "ls-files"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines()
    for name in let_through(names, rules):
        (place / "context" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / "context" / name)
    stages: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    stage: Stage | None = None
    said: dict[str, list[str]] = {}
    for word, rest in instructions((ROOT / "Containerfile").read_text(encoding="utf-8")):
        print(f"{word} {rest}"[:120], flush=True)
        if word == "FROM":
            name = rest.rpartition(" AS ")[2] if " AS " in rest else "last"
            stage = stages[name] = Stage(place / name, arguments)
        elif stage is None:
            arguments |= dict(pair.split("=", 1) for pair in shlex.split(rest))
        elif word == "ARG":
            stage.arguments |= dict(pair.split("=", 1) for pair in shlex.split(rest)) | {"VARIANT": variant}
        elif word == "ENV":
            stage.env |= dict(pair.split("=", 1) for pair in shlex.split(rest))
        elif word == "WORKDIR":
            stage.folder = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "USER":
            stage.user = rest
        elif word == "COPY":
            stage.copy(shlex.split(rest), place / "context", stages)
        elif word == "RUN":
            stage.run(["/bin/sh", "-c", rest])
        elif word in ("ENTRYPOINT", "CMD"):
            said[word] = json.loads(rest)
        else:
            sys.exit(f"container: the replay does not know {word}")
    assert stage is not None
    stage.run(["id"])
    stage.run([*said["ENTRYPOINT"], *DEMO])


def build_and_run(name: str, variant: str, python: str | None) -> None:
    """Build the image with a program, and run the demo in it."""
    tag = "fedsmoo" if variant == "cpu" else f"fedsmoo:{variant}"
    arguments = [f"VARIANT={variant}", *([f"PYTHON={python}"] if python else [])]
    words = [word for argument in arguments for word in ("--build-arg", argument)]
    subprocess.run([name, "build", "--file", "Containerfile", *words, "--tag", tag, "."], cwd=ROOT, check=True)
    if name != "buildah":
        subprocess.run([name, "run", "--rm", tag, *DEMO], check=True)
        return
    # It runs commands in a container that it makes first, and looks at no entry point.
    made = subprocess.run([name, "from", tag], check=True, capture_output=True, text=True).stdout.strip()
    try:
        subprocess.run([name, "run", made, "--", "fedsmoo", *DEMO], check=True)
    finally:
        subprocess.run([name, "rm", made], check=True, capture_output=True)


def main() -> None:
    """Build and run by what there is, or replay."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--variant", choices=("cpu", "cuda"), default="cpu", help="where torch comes from")
    parser.add_argument("--python", help="the Python of the base image (default: the Containerfile's)")
    parser.add_argument("--replay", action="store_true", help="try every instruction without docker or podman")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        replay(Path(given.inside), given.variant)
    elif given.replay:
        with tempfile.TemporaryDirectory(prefix="fedsmoo-container-") as folder:
            again = [sys.executable, str(Path(__file__).resolve()), "--variant", given.variant, "--inside", folder]
            status = subprocess.run(["unshare", "--mount", "--propagation", "private", *again]).returncode
        sys.exit(status)
    elif (name := engine()) is None:
        sys.exit("container: no docker, podman or buildah here; as root, --replay tries the instructions without them")
    else:
        build_and_run(name, given.variant, given.python)


if __name__ == "__main__":
    main()
