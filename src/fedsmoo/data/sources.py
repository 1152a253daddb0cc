"""Data sets by name: embedded ones, the known image sets, anyone's own images, and text.

A ``path`` may be a folder of the official files, a folder of class folders, an ``.npz`` or an official archive. Without
one the folder ``$FEDSMOO_DATA`` or the user's cache is searched.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.core.user_code import user_object
from fedsmoo.data.catalog import SPECS, Spec
from fedsmoo.data.check import (
    as_images,
    channel_statistics,
    check,
    check_own_classes,
    tensor_of,
)
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.digits import digits
from fedsmoo.data.files.cache import cached, fingerprint, user_cache
from fedsmoo.data.files.download import fetch_dataset
from fedsmoo.data.files.readers import PARTS, Arrays, is_class_folders, read_class_folders, read_npz, read_official
from fedsmoo.data.files.tree import Tree, archive_tree, file_digest, file_tree, folder_tree
from fedsmoo.data.forms.leaf import LeafOptions, leaf
from fedsmoo.data.forms.published.federated import FEDERATED, federated
from fedsmoo.data.forms.tables import TABLE_OPTIONS, hint_of_table, table
from fedsmoo.data.names import LEAF, SYNTHETIC, TABLE, TEXT, is_drawn
from fedsmoo.data.own import KIND, OWN, OWN_NAME, is_own, own_data, takes_seed
from fedsmoo.data.synthetic import synthetic
from fedsmoo.data.targets import CLASSES, count_outputs, read_targets
from fedsmoo.data.text import text

__all__ = ["MADE", "SOURCES", "depends_on_seed", "fetch_dataset", "load"]


@dataclass(frozen=True)
class Source:
    """A data set that is made, not read from the files of images that ``path`` points to."""

    about: str
    names: re.Pattern[str]  # which names are its own
    make: Callable[[re.Match[str], int, Mapping[str, Any]], Dataset]  # from the name, a seed and options
    no_path: str  # what to say of a path beside the name
    options: Mapping[str, Any] = field(default_factory=dict)  # and their defaults


MADE: dict[str, Source] = {
    "digits": Source(
        "1,797 grey images of 8x8 from scikit-learn; needs no download",
        re.compile("digits"),
        lambda name, seed, options: digits(),
        "is made by the package and takes no path",
    ),
    "synthetic(alpha,beta)": Source(
        "logistic data with 30 natural clients that differ in model (alpha) and features (beta)",
        SYNTHETIC,
        lambda name, seed, options: _synthetic(name, seed),
        "is made by the package and takes no path",
    ),
    "text:PATH": Source(
        "next characters of a text file, one client per speaker or per chunk",
        TEXT,
        lambda name, seed, options: text(name[1]),
        "says itself where the text is",
    ),
    "leaf:PATH": Source(
        "LEAF's FEMNIST, Shakespeare or Sent140: train/*.json and test/*.json, one client per user",
        LEAF,
        lambda name, seed, options: leaf(name[1], options),
        "says itself where the files are",
        asdict(LeafOptions()),
    ),
    "table:PATH": Source(
        "a .csv or .parquet of numbers, of which the column y is learnt, or a folder with train.csv and test.csv",
        TABLE,
        lambda name, seed, options: table(name[1], options),
        "says itself where the table is",
        dict.fromkeys(TABLE_OPTIONS),
    ),
    OWN: Source(
        "a function of yours, of (seed) or of nothing: a Dataset, or x_train, y_train, x_test, y_test",
        OWN_NAME,
        lambda name, seed, options: own_data(name[0], seed, options),
        "is made by the function in the file and takes no path",
    ),
}

# What there is, in a line each; the function of a user's own is no name.
SOURCES: dict[str, str] = {
    **{name: source.about for name, source in MADE.items() if name != OWN},
    **{name: spec.about for name, spec in SPECS.items()},
    **{name: published.about for name, published in FEDERATED.items()},
}


def find_source(name: str) -> tuple[Source, re.Match[str]] | None:
    """Return the source that makes the data set of a name; ``None`` if it is read from files of images."""
    found = ((source, source.names.fullmatch(name)) for source in MADE.values())
    return next(((source, match) for source, match in found if match), None)


def load(name: str, path: str | Path | None = None, seed: int = 0, options: Mapping[str, Any] | None = None) -> Dataset:
    """Return the data set with a name, from a path or from the cache; refuse what is not there or not sound.

    Args:
        name: one of ``SOURCES``, or ``path/to/file.py:function``; with a path, any other name for images of your own.
        path: where the files are; see above.
        seed: for data that is drawn (synthetic, or by a function of yours) only.
        options: of a function of yours, or of a form of files (``leaf:``, ``table:``).

    >>> load("digits").x_train.shape
    torch.Size([1438, 1, 8, 8])
    """
    if not isinstance(name, str):
        raise FedsmooError(f"the name of a data set is {name!r}, but must be text, such as 'digits'")
    if name in FEDERATED:
        return check(federated(name, path, options or {}))
    found = find_source(name)
    if options and (found is None or (found[0] is not MADE[OWN] and not found[0].options)):
        raise FedsmooError(f"data set {name!r} has no options: leave out {', '.join(options)}")
    if found is None:
        data = check(_to_dataset(name, _find(name, path)))
        if name not in SPECS:
            check_own_classes(data)
        return data
    source, match = found
    if path is not None:
        raise FedsmooError(f"data set {name} {source.no_path}; leave out {path}")
    return check(source.make(match, seed, options or {}))


def form_options(name: str) -> Mapping[str, Any]:
    """Return the options, with their defaults, that data in files has by the form that its name says."""
    if name in FEDERATED:
        return FEDERATED[name].options
    found = find_source(name)
    return {} if found is None else found[0].options


def depends_on_seed(name: str) -> bool:
    """Return whether another seed may be another data set: a function of the user's decides by its arguments."""
    return is_drawn(name) or (is_own(name) and takes_seed(user_object(name, KIND)))


def _synthetic(name: re.Match[str], seed: int) -> Dataset:
    alpha, beta = name.groups()
    if alpha is None or beta is None:
        return synthetic(seed=seed)
    try:
        return synthetic(float(alpha), float(beta), seed=seed)
    except ValueError:
        raise FedsmooError(f"data set {name[0]!r}: alpha and beta must be numbers, as in synthetic(0.5,0.5)") from None


def _find(name: str, path: str | Path | None) -> Arrays:
    spec = SPECS.get(name)
    if path is not None:
        place = Path(path).expanduser()
        if not os.path.exists(place):
            raise FedsmooError(f"data set {name}: {place} does not exist")
        arrays = _open(name, spec, place)
        if arrays is None:
            raise FedsmooError(f"data set {name}: {place} holds none of {_forms(name, spec)}{hint_of_table(place)}")
        return arrays
    home = user_cache()
    for place in (home / name, home / f"{name}.npz", home):
        # Only a known set can lie in the common folder itself, and there only by its own file names.
        if os.path.exists(place) and (place != home or (spec is not None and spec.kind == "cifar")):
            arrays = _open(name, spec, place)
            if arrays is not None:
                return arrays
    if spec is None:
        raise unknown("data set", name, [*SOURCES, OWN, "or any name with a path to images"])
    raise FedsmooError(
        f"data set {name} is not in {home}; get it with 'fedsmoo data get {name}', or say where it is with --data PATH"
    )


def _forms(name: str, spec: Spec | None) -> str:
    own = "an .npz, or folders train/CLASS and test/CLASS with images"
    if spec is None:
        return own
    return f"the official files of {name} ({', '.join([*(r.file for r in spec.remotes), *spec.files])}), {own}"


def _open(name: str, spec: Spec | None, place: Path) -> Arrays | None:
    """Return the data at a place in whichever form it has there, or ``None`` if it has none."""
    if place.is_file():
        if place.suffix == ".npz":
            return read_npz(place)
        if spec is not None and any(place.name == r.file for r in spec.remotes):
            return mark_verified(_cached(name, file_tree(place), lambda _: _from_archive(spec, place)))
        return None
    if (place / f"{name}.npz").is_file():
        return read_npz(place / f"{name}.npz")
    if spec is not None:
        for inner in spec.places:
            folder = place / inner
            if _is_official(spec, folder):
                depth = 3 if spec.kind == "tiny" else 0
                arrays = _cached(name, folder_tree(folder, depth), lambda tree: read_official(tree, spec))
                return mark_verified(arrays) if spec.files else arrays
        archive = next((place / r.file for r in spec.remotes if (place / r.file).is_file()), None)
        if archive is not None and spec.kind != "idx":
            return _open(name, spec, archive)
    if (place / "train").is_dir():
        tree = folder_tree(place).visible()
        if is_class_folders(tree):
            return _cached(name, tree, read_class_folders)
    return None


def mark_verified(arrays: Arrays) -> Arrays:
    """Return arrays from files that had the publisher's checksums."""
    return dataclasses.replace(arrays, verified=True)


def _is_official(spec: Spec, folder: Path) -> bool:
    """Whether a folder has the names of the official files (any of them: a missing one is then said to be missing)."""
    if spec.kind == "tiny":
        return (folder / "val" / "val_annotations.txt").is_file()
    return any((folder / f).is_file() or (folder / f"{f}.gz").is_file() for f in spec.files)


def _from_archive(spec: Spec, place: Path) -> Arrays:
    """Return the official files inside the official archive, which is opened only if its checksum is right."""
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
        if parts[p].dtype == torch.bool:
            parts[p] = parts[p].float()
        if parts[p].dtype == torch.uint8 and len(parts[p]):
            parts[p] = as_images(parts[p], of[p])
    target = arrays.target if spec is None else CLASSES
    parts["y_train"], parts["y_test"], kind = read_targets(
        parts["y_train"], parts["y_test"], f"data set {name}", target
    )
    names = arrays.class_names or (spec.class_names if spec else None)
    most = count_outputs([parts["y_train"], parts["y_test"]], kind, name)
    classes = spec.classes if spec else max(most, len(names or ())) if kind == CLASSES else most
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
        target=kind,
    )


def plain_shape(shape: tuple[int, ...]) -> list[int]:
    """Return the sides and channels of an image in whichever order of axes; images stored as floats may have any."""
    return sorted(n for n in shape if n != 1)
