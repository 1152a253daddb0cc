"""Every format of every source against small files made here: right ones, and every way of being wrong."""

import dataclasses
import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.catalog import SPECS, Remote
from fedsmoo.data.files import cache
from fedsmoo.data.files.safe_pickle import load_pickle
from fedsmoo.data.files.tree import archive_tree
from fedsmoo.data.forms.decoding.blocks import as_array
from fedsmoo.data.sources import load

from . import official


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def same(data, arrays):
    for part, want in zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True):
        assert np.array_equal(getattr(data, part).numpy(), want)
    assert data.y_train.dtype == torch.int64


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("form", ["folder", "parent", "archive", "archive folder", "home"])
def test_cifar_in_every_form(tmp_path, home, monkeypatch, name, form):
    spec, files, archive, arrays = official.cifar(name)
    monkeypatch.setitem(SPECS, name, spec)
    inner = put(tmp_path / "d" / spec.places[-1], files)
    put(tmp_path / "a", {spec.remotes[0].file: archive})
    put(home / name, {spec.remotes[0].file: archive})
    path = {
        "folder": inner,
        "parent": tmp_path / "d",
        "archive": tmp_path / "a" / spec.remotes[0].file,
        "archive folder": tmp_path / "a",
        "home": None,
    }[form]
    for _ in range(2):  # the second time from the decoded copy
        data = load(name, path)
        same(data, arrays)
        assert data.mean == spec.mean
        assert data.augment
        assert data.class_names[0] == ("airplane" if name == "cifar10" else "class0")
    assert len(list((home / "decoded").glob(f"{name}-*.safetensors"))) == 1


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_gzipped_or_not(tmp_path, monkeypatch, name, packed):
    spec, files, zipped, arrays = official.mnist(name)
    monkeypatch.setitem(SPECS, name, spec)
    data = load(name, put(tmp_path / "idx", zipped if packed else files))
    same(data, arrays)
    assert not data.augment
    assert len(data.class_names) == 10


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_tiny_imagenet(tmp_path, monkeypatch, form):
    spec, files, archive = official.tiny()
    monkeypatch.setitem(SPECS, "tiny-imagenet", spec)
    path = put(tmp_path / "t", files if form == "folder" else {"tiny-imagenet-200.zip": archive})
    data = load("tiny-imagenet", path)
    assert data.x_train.shape == (6, 64, 64, 3)
    assert data.y_train.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.y_test.tolist() == [0, 1]
    assert data.class_names == ("n01", "n02")
    levels = data.x_train.float().mean((1, 2, 3))
    assert torch.allclose(levels, torch.tensor([40.0, 41, 42, 100, 101, 102]), atol=2)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("test_folder", ["test", "val"])
def test_class_folders_of_any_name(tmp_path, channels, test_folder):
    x = official.pixels(12, 9, 7, channels)
    names = ["2", "10", "1"]
    files = {f"train/{names[i % 3]}/{i:02}.png": official.image(x[i]) for i in range(9)}
    files |= {f"{test_folder}/{names[i % 3]}/{i:02}.png": official.image(x[i]) for i in range(9, 12)}
    data = load("my-own", put(tmp_path / "own", files))
    assert data.class_names == ("1", "2", "10")  # numbers in their order
    by_file = {n: i for i, n in enumerate(sorted(files, key=lambda f: (f.split("/")[0] != "train", f)))}
    order = [int(Path(f).stem) for f in sorted(by_file, key=by_file.get)]
    assert torch.equal(data.x_train, torch.from_numpy(x[order[:9]]))
    assert torch.equal(data.x_test, torch.from_numpy(x[order[9:]]))
    number = {"1": 0, "2": 1, "10": 2}
    assert data.y_train.tolist() == [number[names[i % 3]] for i in order[:9]]
    assert data.mean == pytest.approx(x[order[:9]].reshape(-1, channels).mean(0) / 255)
    assert data.name == "my-own"
    assert not data.augment


def test_hidden_files_and_folders_are_no_images_and_no_classes(tmp_path):
    """Notebooks and file managers leave them: a folder of theirs was a class, with a second copy of its images."""
    picture = official.image(official.pixels(1, 4, 4, 3)[0])
    files = {f"{part}/{name}/1.png": picture for part in ("train", "test") for name in "ab"}
    files |= {"train/.ipynb_checkpoints/1.png": picture, "train/a/._1.png": b"no image", "test/.b/1.png": picture}
    data = load("own", put(tmp_path / "own", files))
    assert (data.class_names, data.y_train.tolist(), data.y_test.tolist()) == (("a", "b"), [0, 1], [0, 1])


def test_npz_of_images_and_of_floats(tmp_path):
    x, y = official.pixels(8, 5, 5, 3), np.arange(8) % 3
    np.savez(tmp_path / "i.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2], classes=["a", "b", "c"])
    data = load("mine", tmp_path / "i.npz")
    same(data, (x, y, x[:2], y[:2]))
    assert data.class_names == ("a", "b", "c")
    np.savez(tmp_path / "f.npz", x_train=x / 255, y_train=y, x_test=x[:2] / 255, y_test=y[:2])
    floats = load("mine", tmp_path / "f.npz")
    assert floats.mean is None
    assert floats.x_train.dtype == torch.float64


def test_npz_of_yes_and_no_is_of_numbers(tmp_path):
    x = np.arange(12).reshape(4, 3) % 2 == 0
    np.savez(tmp_path / "b.npz", x_train=x, y_train=[0, 1, 0, 1], x_test=x[:2], y_test=[0, 1])
    data = load("mine", tmp_path / "b.npz")
    assert torch.equal(data.x_train, torch.from_numpy(x).float())
    assert data.x_test.dtype == torch.float32


def test_npz_of_a_known_set_in_the_cache_folder(home):
    home.mkdir()
    x = official.pixels(4, 32, 32, 3)
    np.savez(home / "cifar10.npz", x_train=x, y_train=[0, 1, 2, 9], x_test=x, y_test=[0, 1, 2, 3])
    data = load("cifar10")
    assert data.classes == 10
    assert data.mean == SPECS["cifar10"].mean


def altered(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: {**f, "data_batch_3": altered(f["data_batch_3"])}, "data_batch_3 is not the official file"),
        (lambda f: {**f, "data_batch_3": f["data_batch_3"][:-9]}, "data_batch_3 is not the official file"),
        (lambda f: {**f, "test_batch": b""}, "test_batch is not the official file"),
        (lambda f: {n: b for n, b in f.items() if n != "data_batch_2"}, "data_batch_2 is missing"),
    ],
)
def test_a_damaged_official_file_is_named_and_not_used(tmp_path, monkeypatch, harm, message):
    spec, files, *_ = official.cifar()
    monkeypatch.setitem(SPECS, "cifar10", spec)
    with pytest.raises(FedsmooError, match=message):
        load("cifar10", put(tmp_path / "d", harm(files)))


@pytest.mark.parametrize("harm", [altered, lambda b: b[:-20], lambda b: b""])
def test_a_damaged_archive_is_not_opened(tmp_path, monkeypatch, harm):
    spec, _, archive, _ = official.cifar()
    monkeypatch.setitem(SPECS, "cifar10", spec)
    with pytest.raises(FedsmooError, match="not the official archive"):
        load("cifar10", put(tmp_path / "d", {spec.remotes[0].file: harm(archive)}))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda b: b[:-30], "truncated|damaged"),
        (lambda b: b"not gzip", "damaged"),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path, monkeypatch, harm, message):
    spec, _, packed, _ = official.mnist()
    monkeypatch.setitem(SPECS, "mnist", spec)
    first = next(iter(packed))
    with pytest.raises(FedsmooError, match=f"{first} .*({message})"):
        load("mnist", put(tmp_path / "d", {**packed, first: harm(packed[first])}))


def test_idx_headers_that_lie(tmp_path, monkeypatch):
    spec, files, *_ = official.mnist()
    first = next(iter(files))
    for wrong in (files[first][:-5], b"\0\0\x09\x03" + files[first][4:], files[first][:6], b""):
        lying = dataclasses.replace(spec, files={**spec.files, first: official.sha256(wrong)})
        monkeypatch.setitem(SPECS, "mnist", lying)
        with pytest.raises(FedsmooError, match=first):
            load("mnist", put(tmp_path / "d", {**files, first: wrong}))


class Bomb:
    """Writes a file when it is unpickled: what a hostile pickle could do."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


class Call:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_hostile_pickles_build_nothing(tmp_path, protocol):
    target = tmp_path / "written"
    for bad in (Bomb(target), Call(os.system, f"touch {target}"), Call(eval, "1"), Call(getattr, "a", "upper")):
        with pytest.raises(FedsmooError, match="it was not loaded"):
            load_pickle(pickle.dumps({"data": bad}, protocol), "batch")
    with pytest.raises(FedsmooError, match="a structured dtype"):
        load_pickle(pickle.dumps(np.zeros(2, [("a", object)]), 2), "batch")
    with pytest.raises(FedsmooError, match=r"damaged or truncated|it was not loaded"):
        load_pickle(b"\x80\x02garbage", "batch")
    assert not target.exists()


def test_a_forged_object_array_of_raw_pointers_is_not_followed():
    """NumPy would take these bytes for addresses of Python objects if the dtype's flags said so."""
    forged = pickle.dumps(np.array([1, 2], object), 2)
    assert load_pickle(forged, "batch") == [1, 2]
    raw = pickle.dumps(np.arange(2, dtype=np.int64), 2).replace(b"i8", b"O8")
    with pytest.raises(FedsmooError, match="dtype O8"):
        load_pickle(raw, "batch")


def test_older_names_of_numpys_are_known_and_codecs_are_not():
    old = pickle.dumps(np.arange(6, dtype=np.int16).reshape(2, 3), 2).replace(b"numpy._core.", b"numpy.core.")
    assert b"numpy.core.multiarray" in old
    assert load_pickle(old, "batch").tolist() == [[0, 1, 2], [3, 4, 5]]
    text = pickle.dumps(b"\xff\x00", 2)  # as text, to be encoded
    assert load_pickle(text, "batch") == b"\xff\x00"
    with pytest.raises(FedsmooError, match="it asks for codec 'utf-16'"):
        load_pickle(text.replace(b"X\x06\x00\x00\x00latin1", b"X\x06\x00\x00\x00utf-16"), "batch")


def test_plain_pickles_are_read_in_full():
    content = {
        "data": official.pixels(3, 7),
        "labels": [1, 2, 3],
        "b": b"bytes",
        "t": ("text", None, 1.5),
        "f": {1: True},
    }
    for protocol in (0, 1, 2, 3, 4):
        got = load_pickle(pickle.dumps(content, protocol), "batch")
        assert np.array_equal(got["data"], content["data"])
        assert {k: v for k, v in got.items() if k != "data"} == {k: v for k, v in content.items() if k != "data"}


def test_a_hostile_pickle_with_the_right_checksum_is_refused_too(tmp_path, monkeypatch):
    spec, files, *_ = official.cifar()
    bad = pickle.dumps({"data": Bomb(tmp_path / "written"), "labels": [0]}, 2)
    monkeypatch.setitem(
        SPECS, "cifar10", dataclasses.replace(spec, files={**spec.files, "data_batch_1": official.md5(bad)})
    )
    with pytest.raises(FedsmooError, match="not a plain data file"):
        load("cifar10", put(tmp_path / "d", {**files, "data_batch_1": bad}))
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize("make", [official.tar, official.zipped])
def test_archives_write_nowhere(tmp_path, monkeypatch, make):
    """Members that climb out of their folder, in an archive that even has the right checksum."""
    spec, files, *_ = official.cifar()
    inside = {f"{spec.places[-1]}/{n}": b for n, b in files.items()}
    archive = make({"../escaped": b"x", str(tmp_path / "absolute"): b"x", "a/../../escaped": b"x", **inside})
    monkeypatch.setitem(
        SPECS,
        "cifar10",
        dataclasses.replace(spec, remotes=(Remote("cifar-10-python.tar.gz", official.sha256(archive), ()),)),
    )
    folder = put(tmp_path / "deep" / "folder", {"cifar-10-python.tar.gz": archive})
    assert len(load("cifar10", folder).x_train) == 20
    assert {p.name for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".safetensors"} == {
        "cifar-10-python.tar.gz"
    }


def test_links_in_archives_are_not_followed(tmp_path):
    import io
    import tarfile

    secret = tmp_path / "secret"
    secret.write_text("secret")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            info = tarfile.TarInfo("link")
            info.type, info.linkname = kind, str(secret)
            archive.addfile(info)
    (tmp_path / "a.tar").write_bytes(out.getvalue())
    with pytest.raises(FedsmooError, match="link is missing"):
        archive_tree(tmp_path / "a.tar").read("link")
    with pytest.raises(FedsmooError, match="damaged or truncated"):
        archive_tree(put(tmp_path / "x", {"b.tar": out.getvalue()[:100]}) / "b.tar")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds none of"),
        ({"train/a/1.png": official.image(official.pixels(1, 4, 4, 3)[0])}, "the test part is needed"),
        (
            {"train/a/1.png": b"", "test/a/1.png": b""},
            "train/a/1.png is not a readable image: Pillow knows no such format$",
        ),
        ({"train/a/1.png": b"junk", "test/a/1.png": b"junk"}, "not a readable image"),
        (
            {
                "train/a/1.png": official.image(official.pixels(1, 4, 4, 3)[0]),
                "test/a/1.png": official.image(official.pixels(1, 5, 4, 3)[0]),
            },
            "images must be of one size, but train/a/1.png is 4x4 and test/a/1.png is 4x5",
        ),
        (
            {
                "train/a/1.png": official.image(official.pixels(1, 4, 4, 3)[0]),
                "test/b/1.png": official.image(official.pixels(1, 4, 4, 3)[0]),
            },
            "test/b/1.png is of a class that has no training images",
        ),
    ],
)
def test_bad_class_folders(tmp_path, files, message):
    folder = put(tmp_path / "own", files)
    folder.mkdir(exist_ok=True)
    with pytest.raises(FedsmooError, match=message):
        load("mine", folder)


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_images_that_bytes_cannot_hold_are_refused(tmp_path, kind):
    """Pillow cuts 16 bits off at 255: nearly every picture would be white, or, of floats from 0 to 1, black."""
    deep = np.linspace(0, 1 if kind is np.float32 else 60000, 16).astype(kind).reshape(4, 4)
    out = io.BytesIO()
    Image.fromarray(deep).save(out, "TIFF")
    files = {f"{part}/{c}/1.tif": out.getvalue() for part in ("train", "test") for c in "ab"}
    with pytest.raises(FedsmooError, match=r"train/a/1.tif has pixels of more than 8 bits .* scale them"):
        load("mine", put(tmp_path / "own", files))
    with pytest.raises(FedsmooError, match="an image has pixels of more than 8 bits"):
        as_array(Image.fromarray(deep), False, "data")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_images_of_other_modes_are_as_pillow_shows_them(mode):
    picture = Image.fromarray(official.pixels(1, 6, 5, 3)[0]).convert(mode)
    shown = np.asarray(picture.convert("L" if mode in ("1", "L", "LA") else "RGB")).reshape(6, 5, -1)
    assert np.array_equal(as_array(picture, False, "data"), shown)
    assert as_array(picture, True, "data").shape == (6, 5, 3)


def test_bad_npz(tmp_path):
    x, y = official.pixels(4, 5, 5, 3), np.arange(4)
    whole = tmp_path / "whole.npz"
    np.savez(whole, x_train=x, y_train=y, x_test=x, y_test=y)
    cases = {
        "truncated": (whole.read_bytes()[:-40], "not a readable .npz"),
        "altered": (whole.read_bytes().replace(x.tobytes()[:20], b"\0" * 20), "not a readable .npz"),
        "empty": (b"", "not a readable .npz"),
        "junk": (b"junk" * 50, "not a readable .npz"),
    }
    for name, (data, message) in cases.items():
        (tmp_path / f"{name}.npz").write_bytes(data)
        with pytest.raises(FedsmooError, match=message):
            load("mine", tmp_path / f"{name}.npz")
    np.savez(tmp_path / "missing.npz", x_train=x, labels=y)
    with pytest.raises(FedsmooError, match="y_train, x_test, y_test missing"):
        load("mine", tmp_path / "missing.npz")
    np.savez(tmp_path / "object.npz", x_train=np.array([Bomb(tmp_path / "w")]), y_train=y, x_test=x, y_test=y)
    with pytest.raises(FedsmooError, match=r"not a readable \.npz of plain arrays"):
        load("mine", tmp_path / "object.npz")
    np.savez(tmp_path / "small.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(FedsmooError, match="give your own data another name"):
        load("cifar10", tmp_path / "small.npz")
    big = official.pixels(4, 32, 32, 3)
    np.savez(tmp_path / "labels.npz", x_train=big, y_train=y + 7, x_test=big, y_test=y)
    with pytest.raises(FedsmooError, match="labels run from 7 to 10"):
        load("cifar10", tmp_path / "labels.npz")
    assert not (tmp_path / "w").exists()


def test_what_is_not_there_says_how_to_get_it():
    with pytest.raises(FedsmooError, match="fedsmoo data get cifar10"):
        load("cifar10")


def one_copy(home: Path) -> Path:
    (copy,) = (home / "decoded").glob("*.safetensors")
    return copy


@pytest.mark.parametrize("harm", [altered, lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\xff" * 100])
def test_a_damaged_decoded_copy_is_built_again(tmp_path, home, monkeypatch, harm):
    spec, files, _, arrays = official.cifar()
    monkeypatch.setitem(SPECS, "cifar10", spec)
    folder = put(tmp_path / "d", files)
    load("cifar10", folder)
    copy = one_copy(home)
    copy.write_bytes(harm(copy.read_bytes()))
    same(load("cifar10", folder), arrays)
    saved = []
    monkeypatch.setattr(cache, "save", lambda *a: saved.append(a))
    same(load("cifar10", folder), arrays)
    assert not saved  # the copy is whole again


def test_a_decoded_copy_is_used_until_its_source_changes(tmp_path, home, monkeypatch):
    x = official.pixels(3, 6, 6, 3)
    files = {f"{part}/a/{i}.png": official.image(x[i]) for part in ("train", "test") for i in range(3)}
    folder = put(tmp_path / "own", files)
    load("mine", folder)
    reads = []
    monkeypatch.setattr(cache, "save", lambda *a: reads.append(a))
    load("mine", folder)
    assert not reads
    (folder / "train/a/0.png").write_bytes(official.image(255 - x[0]))
    os.utime(folder / "train/a/0.png", ns=(1, 1))
    assert torch.equal(load("mine", folder).x_train[0], torch.from_numpy(255 - x[0]))
    assert len(reads) == 1


def test_a_cache_folder_that_cannot_be_written_only_costs_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path / "file"))
    spec, files, _, arrays = official.cifar()
    monkeypatch.setitem(SPECS, "cifar10", spec)
    same(load("cifar10", put(tmp_path / "d", files)), arrays)


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("FEDSMOO_DATA", "~/elsewhere")
    assert cache.user_cache() == Path.home() / "elsewhere"
    monkeypatch.delenv("FEDSMOO_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.user_cache() == Path("/somewhere/fedsmoo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.user_cache() == Path.home() / ".cache" / "fedsmoo"
