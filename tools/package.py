"""Build the sdist and the wheel, check them, and try the wheel where there is no checkout: ``make wheel``.

    python tools/package.py                       # into dist/; the wheel beside what this Python has installed
    python tools/package.py --full python3.13     # with everything it needs from the index, by pip and by uv
    python tools/package.py --full python3.13 --extra all --extra ''      # the same with every extra, and with none

The trial has a fresh virtual environment, an empty home and an empty folder to work in. Without ``--full`` the heavy
packages are those of the Python that runs this script, but ``fedsmoo`` is the wheel's: that is checked.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INSTALLERS = ("pip", "uv")
KEPT = ("PIP_", "UV_", "SSL_", "REQUESTS_")  # how to reach an index

# What is tried, and what must be in the answer. Plain, the page is what cannot be had; with all, every extra is used.
TRIALS = (
    (("--version",), "fedsmoo "),
    (("list",), "your own"),
    (("show", "fedsmoo"), "vectors"),
    (("doctor",), ": fedsmoo demo"),
    (("demo", "--rounds", "3", "--seeds", "0"), "look at"),
    (("table", "accuracy", "--no-run"), "the results shown came with fedsmoo"),
    (("report", "runs/demo", "--out", "page.html"), "5 runs: page.html"),
)
EVERY_EXTRA = (
    (("doctor",), "report, download, track, flower, privacy\n"),
    (("run", "--rounds", "2", "--out", "kept", "--track", "tensorboard", "--track", "mlflow"), "fedsmoo report kept"),
    (("run", "--rounds", "2", "--sampling", "bernoulli", "--privacy", "client", "--out", "private"), "private"),
    (("analyse", "privacy", "private"), "epsilon"),
    (("deploy", "init", "app", "--publisher", "somebody"), "next: flwr app publish app"),
)
REFUSED = "which is not installed: pip install 'fedsmoo[report]'"
MADE = {"runs/demo/curves.png": b"\x89PNG", "runs/demo/split-clients.png": b"\x89PNG", "page.html": b"<!doctype html>"}


class Broken(SystemExit):
    """What is wrong with the packages, in a line."""


def say(line: str) -> None:
    print(line, flush=True)


def sources(root: Path = ROOT) -> list[str]:
    """List the files of a checkout that git knows, or would if they were added; left-overs of builds are ignored."""
    words = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted({name for name in names if name and (root / name).is_file()})


def build(out: Path) -> tuple[Path, Path]:
    """Build both packages from a copy of the sources, the wheel from the sdist; returns sdist and wheel.

    A copy, because setuptools packs again what an older ``egg-info`` in a checkout lists.
    """
    with tempfile.TemporaryDirectory(prefix="fedsmoo-build-") as place:
        for name in sources():
            target = Path(place, "fedsmoo", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
        readme = Path(place, "fedsmoo", "README.md")
        readme.write_text(for_an_index(readme.read_text(encoding="utf-8")), encoding="utf-8")
        made = Path(place, "dist")
        quietly([sys.executable, "-m", "build", "--outdir", str(made), str(Path(place, "fedsmoo"))])
        out.mkdir(parents=True, exist_ok=True)
        found = [Path(shutil.copy(path, out)) for path in sorted(made.iterdir())]
    sdist, wheel = sorted(found, key=lambda p: p.suffix == ".whl")
    return sdist, wheel


def for_an_index(readme: str) -> str:
    """Return the README for readers without a checkout, to whom links to its files lead nowhere.

    Pictures are left out, and of their captions all but the first sentence; links become their text, and the table of
    links goes.
    """
    text = re.sub(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n\*([^*]*?\.)\s[^*]*\*\n", r"*\1*\n", readme, flags=re.M)
    text = re.sub(r"^## Where to go\n\n(?:\|.*\n)+\n", "", text, flags=re.M)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


def quietly(words: Sequence[str], status: int = 0, **more: object) -> str:
    """Run a command that has to end with a status; its output is returned, and shown only if it does not."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)  # type: ignore[call-overload]
    if done.returncode != status:
        raise Broken(f"{done.stdout}\n{' '.join(words)} ended with {done.returncode}")
    return str(done.stdout)


def check(sdist: Path, wheel: Path) -> None:
    """Check the packages' metadata as an index does, and that they hold what they should and nothing else."""
    with zipfile.ZipFile(wheel) as z:
        names = set(z.namelist())
        about = next(n for n in names if n.endswith(".dist-info/METADATA"))
        metadata = z.read(about)
    check_metadata(metadata, wheel, sdist)
    modules = {n.removeprefix("src/") for n in sources() if n.startswith("src/fedsmoo/")}
    tables = {Path(n).stem for n in modules if n.startswith("fedsmoo/paper/") and n.endswith(".toml")}
    runs = [n for n in sources() if n.startswith("results/") and re.search(r"-seed[^/]*\.json$", n)]
    results = {f"fedsmoo/paper/{n}" for n in runs if n.count("/") == 1 or n.split("/")[1] in tables}
    own = {n for n in names if ".dist-info/" not in n}
    compare_sets("the wheel", own, modules | results)
    needed = {"dist-info/licenses/LICENSE", "dist-info/entry_points.txt", "dist-info/RECORD"}
    if missing := [n for n in needed if not any(name.endswith(n) for name in names)]:
        raise Broken(f"the wheel has no {', '.join(missing)}")
    with tarfile.open(sdist) as t:
        packed = {m.name.partition("/")[2] for m in t if m.isfile()}
    top = {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "setup.py", "PKG-INFO"}
    wanted = top | {f"src/{n}" for n in modules} | {n.replace("fedsmoo/paper/", "") for n in results}
    compare_sets("the sdist", {n for n in packed if ".egg-info/" not in n}, wanted | {"setup.cfg", "MANIFEST.in"})


def compare_sets(what: str, found: set[str], wanted: set[str]) -> None:
    """Refuse a package that holds too little or too much."""
    for few, word in ((wanted - found, "lacks"), (found - wanted, "should not hold")):
        if few:
            shown = ", ".join(sorted(few)[:5])
            raise Broken(f"{what} {word} {shown}{' ...' if len(few) > 5 else ''}")


def check_metadata(content: bytes, wheel: Path, sdist: Path) -> None:
    """Check a package's metadata by the standard's own parser, and the names and versions of its files."""
    from packaging.metadata import Metadata
    from packaging.utils import parse_sdist_filename, parse_wheel_filename

    about = Metadata.from_email(content, validate=True)  # raises an exception that names every wrong field
    (name, version, _, tags), (same, again) = parse_wheel_filename(wheel.name), parse_sdist_filename(sdist.name)
    if (name, version) != (same, again) or (about.name, about.version) != (name, version):
        raise Broken(f"{wheel.name}, {sdist.name} and the metadata ({about.name} {about.version}) do not agree")
    if {str(tag) for tag in tags} != {"py3-none-any"}:
        raise Broken(f"{wheel.name} is for some machines only")
    if about.description_content_type != "text/markdown" or not about.description:
        raise Broken("the README is not the packages' description")
    if dead := re.findall(r"\]\((?!https?:)([^)]*)\)", about.description):
        raise Broken(f"the description links to {dead[0]}, which an index does not have")
    if "all" not in (about.provides_extra or []):
        raise Broken("there is no extra 'all'")


def environment(place: Path, python: Path) -> dict[str, str]:
    """Return the environment of a new user: an empty home, nothing of this checkout, only what an index needs."""
    kept = {k: v for k, v in os.environ.items() if k.startswith(KEPT) or k.lower().endswith("_proxy")}
    home = place / "home"
    home.mkdir(exist_ok=True)
    path = f"{python.parent}{os.pathsep}/usr/bin{os.pathsep}/bin"
    return {**kept, "HOME": str(home), "PATH": path, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def make_environment(place: Path, base: str, wheel: Path, installer: str, extra: str | None) -> Path:
    """Make a virtual environment with the wheel and an extra of it, or with borrowed packages; returns its Python."""
    venv = place / "venv"
    python = venv / "bin" / "python"
    if installer == "uv":
        quietly([uv(), "venv", "--quiet", "--python", base, str(venv)])
        install = [uv(), "pip", "install", "--quiet", "--python", str(python)]
    else:
        quietly([base, "-m", "venv", str(venv)])
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if extra is not None:
        quietly([*install, f"{wheel}[{extra}]" if extra else str(wheel)], cwd=place)
        return python
    quietly([*install, "--no-deps", str(wheel)], cwd=place)
    site = next(venv.glob("lib/python3.*/site-packages"))
    (site / "borrowed.pth").write_text("".join(f"{folder}\n" for folder in borrowed()))
    return python


def borrowed() -> list[str]:
    """Return where this Python has its packages: plain folders, whose own ``.pth`` files nobody reads."""
    import sysconfig

    return list(dict.fromkeys(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")))


def uv() -> str:
    """Return the program ``uv`` that came with this Python, or else with the machine."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise Broken("uv is not installed: pip install uv, or leave it out with --installer pip")
    return found


def trials(extra: str | None) -> list[tuple[Sequence[str], str, int]]:
    """Return the commands to try with an extra, what each must say, and the status it must end with."""
    plain = [(words, expected, 0) for words, expected in TRIALS]
    if extra == "":
        return [*plain[:-1], (TRIALS[-1][0], REFUSED, 2)]
    return [*plain, *((words, expected, 0) for words, expected in (EVERY_EXTRA if extra == "all" else ()))]


def try_out(wheel: Path, base: str, installer: str, extra: str | None) -> dict[str, object]:
    """Install the wheel for a new user and run what the README shows first; returns what was tried."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedsmoo-wheel-") as folder:
        place = Path(folder)
        python = make_environment(place, base, wheel, installer, extra)
        work, env = place / "work", environment(place, python)
        work.mkdir()
        where = quietly([str(python), "-c", "import fedsmoo; print(fedsmoo.__file__)"], cwd=work, env=env).strip()
        if not where.startswith(str(place)):
            raise Broken(f"fedsmoo was imported from {where}, not from the wheel")
        for words, expected, status in trials(extra):
            answer = quietly([str(python.with_name("fedsmoo")), *words], status, cwd=work, env=env)
            if expected not in answer:
                raise Broken(f"{answer}\nfedsmoo {' '.join(words)} does not say {expected!r}")
        for name, start in MADE.items():
            if (extra != "" or name != "page.html") and not (work / name).read_bytes().lower().startswith(
                start.lower()
            ):
                raise Broken(f"{name} is not what it should be")
        asked = "import platform, torch; print(platform.python_version(), torch.__version__, platform.machine())"
        version, torch, machine = quietly([str(python), "-c", asked]).split()
    seconds = round(time.monotonic() - began)
    tried = [" ".join(words) for words, *_ in trials(extra)]
    what = "borrowed packages" if extra is None else f"[{extra}]" if extra else "plain"
    say(f"wheel: Python {version}, {installer}, {what}: {len(tried)} commands in {seconds} s")
    return {"wheel": wheel.name, "python": version, "installer": installer, "extra": extra, "torch": torch,
            "machine": f"{sys.platform} {machine}", "commands": tried, "seconds": seconds}  # fmt: skip


def main() -> None:
    """Build, check and try."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="Pythons to try the wheel with")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the packages")
    parser.add_argument("--full", action="store_true", help="install everything from the index, and by every installer")
    parser.add_argument("--installer", choices=INSTALLERS, help="try this one alone")
    parser.add_argument("--extra", action="append", help="with --full: the extra to install, '' for none; repeatable")
    parser.add_argument("--keep", type=Path, help="add what was tried to this file, a line of JSON each")
    given = parser.parse_args()
    commit = quietly(["git", "-C", str(ROOT), "describe", "--always", "--dirty"]).strip()  # before it moves on
    sdist, wheel = build(given.out)
    check(sdist, wheel)
    sizes = " and ".join(f"{path.name} ({path.stat().st_size / 1e6:.1f} MB)" for path in (sdist, wheel))
    say(f"{sizes}: metadata and contents are as they should be")
    installers = [given.installer] if given.installer else INSTALLERS if given.full else INSTALLERS[:1]
    extras = (given.extra or ["report"]) if given.full else [None]
    for python, installer, extra in itertools.product(given.pythons, installers, extras):
        found = try_out(wheel, python, installer, extra)
        if given.keep:
            with given.keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"commit": commit, "day": time.strftime("%Y-%m-%d"), **found}) + "\n")


if __name__ == "__main__":
    main()
