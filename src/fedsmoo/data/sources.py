"""Data sets by name: embedded ones, the known image sets, anyone's own images, and text.

A ``path`` may be a folder of the official files, a folder of class folders, an ``.npz`` or an official archive. Without
one the folder ``$FEDSMOO_DATA`` or the user's cache is searched.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import torch

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.data.catalog import SPECS, Spec
from fedsmoo.data.check import as_images, channel_statistics, check, count_classes, labels_of, tensor_of
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.digits import digits
from fedsmoo.data.files.cache import cached, fingerprint, user_cache
from fedsmoo.data.files.download import fetch_dataset
from fedsmoo.data.files.readers import PARTS, Arrays, is_class_folders, read_class_folders, read_npz, read_official
from fedsmoo.data.files.tree import Tree, archive_tree, file_digest, file_tree, folder_tree
from fedsmoo.data.synthetic import synthetic
from fedsmoo.data.text import text

__all__ = ["SOURCES", "fetch_dataset", "load"]

SOURCES: dict[str, str] = {
    "digits": "1,797 grey images of 8x8 from scikit-learn; needs no download",
    "synthetic(alpha,beta)": "logistic data with 30 natural clients that differ in model (alpha) and features (beta)",
    **{name: spec.about for name, spec in SPECS.items()},
    "text:PATH": "next characters of a text file, one client per speaker or per chunk",
}

_SYNTHETIC = re.compile(r"synthetic(?:\(\s*([^,()]+?)\s*,\s*([^,()]+?)\s*\))?")


def load(name: str, path: str | Path | None = None, seed: int = 0) -> Dataset:
    """The data set with a name, from a path or from the cache.

    Args:
        name: one of ``SOURCES``; with a path, any other name for images of your own.
        path: where the files are; see above.
        seed: for data that is drawn (synthetic) only.

    >>> load("digits").x_train.shape
    torch.Size([1438, 1, 8, 8])
    """
    if not isinstance(name, str):
        raise FedsmooError(f"the name of a data set is {name!r}, but must be text, such as 'digits'")
    if name.startswith("text:"):
        if path is not None:
            raise FedsmooError(f"data set {name} says itself where the text is; leave out {path}")
        return check(text(name.removeprefix("text:")))
    if name == "digits" or _SYNTHETIC.fullmatch(name):
        if path is not None:
            raise FedsmooError(f"data set {name} is made by the package and takes no path; leave out {path}")
        return check(digits() if name == "digits" else _synthetic(name, seed))
    data = check(_to_dataset(name, _find(name, path)))
    if name not in SPECS:
        refuse_untrained_classes(data)
    return data


def refuse_untrained_classes(data: Dataset) -> None:
    """Refuse data of one's own whose test part has classes that nobody trains on, as class folders are refused."""
    if data.y_train.dim() != 1 or data.y_test.dim() != 1:
        return
    strange = sorted(set(data.y_test.tolist()) - set(data.y_train.tolist()))
    if strange:
        raise FedsmooError(
            f"data set {data.name}: the test part has samples of class {strange[0]}, but the training part has none; "
            "add some, or leave those samples out"
        )


def drawn(name: str) -> bool:
    """Whether a data set is drawn from a run's seed, so that another seed is another data set."""
    return _SYNTHETIC.fullmatch(name) is not None


def has_natural_clients(name: str) -> bool:
    """Whether a data set comes with clients of its own: the speakers or chunks of a text, those of synthetic data."""
    return name.startswith("text:") or drawn(name)


def _synthetic(name: str, seed: int) -> Dataset:
    match = _SYNTHETIC.fullmatch(name)
    alpha, beta = match.groups() if match else (None, None)
    if alpha is None or beta is None:
        return synthetic(seed=seed)
    try:
        return synthetic(float(alpha), float(beta), seed=seed)
    except ValueError:
        raise FedsmooError(f"data set {name!r}: alpha and beta must be numbers, as in synthetic(0.5,0.5)") from None


def _find(name: str, path: str | Path | None) -> Arrays:
    spec = SPECS.get(name)
    if path is not None:
        place = Path(path).expanduser()
        if not place.exists():
            raise FedsmooError(f"data set {name}: {place} does not exist")
        arrays = _open(name, spec, place)
        if arrays is None:
            raise FedsmooError(f"data set {name}: {place} holds none of {_forms(name, spec)}")
        return arrays
    home = user_cache()
    for place in (home / name, home / f"{name}.npz", home):
        # Only a known set can lie in the common folder itself, and there only by its own file names.
        if place.exists() and (place != home or (spec is not None and spec.kind == "cifar")):
            arrays = _open(name, spec, place)
            if arrays is not None:
                return arrays
    if spec is None:
        raise unknown("data set", name, [*SOURCES, "or any name with a path to images"])
    raise FedsmooError(
        f"data set {name} is not in {home}; get it with 'fedsmoo data get {name}', or say where it is with --data PATH"
    )


def _forms(name: str, spec: Spec | None) -> str:
    own = "an .npz, or folders train/CLASS and test/CLASS with images"
    return own if spec is None else f"the official files of {name} ({', '.join(_markers(spec))}), {own}"


def _markers(spec: Spec) -> list[str]:
    return [*(r.file for r in spec.remotes), *spec.files]


def _open(name: str, spec: Spec | None, place: Path) -> Arrays | None:
    """The data at a place in whichever form it has there, or ``None`` if it has none."""
    if place.is_file():
        if place.suffix == ".npz":
            return read_npz(place)
        if spec is not None and any(place.name == r.file for r in spec.remotes):
            return verified(_cached(name, file_tree(place), lambda _: _from_archive(spec, place)))
        return None
    if (place / f"{name}.npz").is_file():
        return read_npz(place / f"{name}.npz")
    if spec is not None:
        for inner in spec.places:
            folder = place / inner
            if _is_official(spec, folder):
                depth = 3 if spec.kind == "tiny" else 0
                arrays = _cached(name, folder_tree(folder, depth), lambda tree: read_official(tree, spec))
                return verified(arrays) if spec.files else arrays
        archive = next((place / r.file for r in spec.remotes if (place / r.file).is_file()), None)
        if archive is not None and spec.kind != "idx":
            return _open(name, spec, archive)
    if (place / "train").is_dir():
        tree = folder_tree(place)
        if is_class_folders(tree):
            return _cached(name, tree, read_class_folders)
    return None


def verified(arrays: Arrays) -> Arrays:
    """Arrays from files that had the publisher's checksums."""
    return dataclasses.replace(arrays, verified=True)


def _is_official(spec: Spec, folder: Path) -> bool:
    """Whether a folder has the names of the official files (any of them: a missing one is then said to be missing)."""
    if spec.kind == "tiny":
        return (folder / "val" / "val_annotations.txt").is_file()
    return any((folder / f).is_file() or (folder / f"{f}.gz").is_file() for f in spec.files)


def _from_archive(spec: Spec, place: Path) -> Arrays:
    """The official files inside the official archive, which is opened only if its checksum is right."""
    remote = next(r for r in spec.remotes if r.file == place.name)
    found = file_digest(place, remote.checksum)
    if found != remote.checksum:
        raise FedsmooError(
            f"{place} is not the official archive ({found} instead of {remote.checksum}), so it was not opened; get it "
            f"again with 'fedsmoo data get {spec.name}'"
        )
    tree = archive_tree(place)
    return read_official(tree.below(spec.places[-1]), spec)


def _cached(name: str, tree: Tree, read: Callable[[Tree], Arrays]) -> Arrays:
    """Decoded data from the cache, or read (and checked against checksums) and then kept there."""
    place = hashlib.sha256(str(Path(tree.where).resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    file = user_cache() / "decoded" / f"{name}-{place}.safetensors"
    return cached(file, fingerprint(tree), lambda: read(tree))


def _to_dataset(name: str, arrays: Arrays) -> Dataset:
    spec = SPECS.get(name)
    of = {p: f"data set {name}: {p}" for p in PARTS}
    parts = {p: tensor_of(getattr(arrays, p), of[p]) for p in PARTS}
    for p in ("x_train", "x_test"):
        if parts[p].dtype == torch.uint8 and len(parts[p]):
            parts[p] = as_images(parts[p], of[p])
    for p in ("y_train", "y_test"):
        parts[p] = labels_of(parts[p], of[p])
    names = arrays.class_names or (spec.class_names if spec else None)
    most = count_classes([parts["y_train"], parts["y_test"]], name)
    classes = spec.classes if spec else max(most, len(names or ()))
    shape = tuple(parts["x_train"].shape[1:])
    if spec is not None and len(parts["x_train"]) and plain_shape(shape) != plain_shape(spec.shape):
        raise FedsmooError(
            f"data set {name}: samples of {list(shape)}, but {name} has images of {list(spec.shape)}; give your own "
            "data another name"
        )
    mean = std = None
    if parts["x_train"].dtype == torch.uint8 and len(parts["x_train"]):
        mean, std = (spec.mean, spec.std) if spec else channel_statistics(parts["x_train"])
    return Dataset(
        name=name,
        x_train=parts["x_train"],
        y_train=parts["y_train"],
        x_test=parts["x_test"],
        y_test=parts["y_test"],
        classes=classes,
        mean=mean,
        std=std,
        augment=bool(spec and spec.augment),
        class_names=names if names and len(names) == classes else None,
        verified=arrays.verified,
    )


def plain_shape(shape: tuple[int, ...]) -> list[int]:
    """The sides and channels of an image in whichever layout; images stored as floats may have any."""
    return sorted(n for n in shape if n != 1)
