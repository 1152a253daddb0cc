"""The known image data sets: where they are published, the checksums of their files, their mean and std.

Checksums are those that the publishers and the common libraries state. An IDX file is checked after decompression, so
that a repacked but equal copy is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Remote:
    """A file to download: its name, its checksum, and the addresses that serve it, best first."""

    file: str
    checksum: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Spec:
    """Everything known about one data set before any of it is on disk."""

    name: str
    about: str
    kind: str  # which reader: cifar, idx or tiny
    remotes: tuple[Remote, ...]
    files: dict[str, str] = field(repr=False)  # name -> checksum of the files the reader needs
    places: tuple[str, ...]  # folders, relative to the one given, in which these files may lie
    classes: int
    sizes: tuple[int, int]  # training and test images
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: bool
    class_names: tuple[str, ...] | None = None


def _toronto(file: str, checksum: str) -> tuple[Remote, ...]:
    urls = f"https://www.cs.toronto.edu/~kriz/{file}", f"https://cave.cs.toronto.edu/kriz/{file}"
    return (Remote(file, checksum, urls),)


CIFAR10 = Spec(
    name="cifar10",
    about="60,000 colour images of 32x32 in 10 classes (Krizhevsky, 2009)",
    kind="cifar",
    remotes=_toronto(
        "cifar-10-python.tar.gz", "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
    ),
    files={
        "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "md5:40351d587109b95175f43aff81a1287e",
    },
    places=("", "cifar-10-batches-py"),
    classes=10,
    sizes=(50_000, 10_000),
    shape=(32, 32, 3),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    augment=True,
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)

CIFAR100 = Spec(
    name="cifar100",
    about="60,000 colour images of 32x32 in 100 classes (Krizhevsky, 2009)",
    kind="cifar",
    remotes=_toronto(
        "cifar-100-python.tar.gz", "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"
    ),
    files={
        "train": "md5:16019d7e3df5f24257cddd939b257f8d",
        "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "md5:7973b15100ade9c7d40fb424638fde48",
    },
    places=("", "cifar-100-python"),
    classes=100,
    sizes=(50_000, 10_000),
    shape=(32, 32, 3),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    augment=True,
)


def _idx_remotes(checksums: dict[str, str], *folders: str) -> tuple[Remote, ...]:
    return tuple(Remote(file, sum_, tuple(f + file for f in folders)) for file, sum_ in checksums.items())


MNIST = Spec(
    name="mnist",
    about="70,000 grey images of 28x28, handwritten digits (LeCun et al., 1998)",
    kind="idx",
    remotes=_idx_remotes(
        {
            "train-images-idx3-ubyte.gz": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    files={
        "train-images-idx3-ubyte": "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    places=("", "MNIST/raw", "raw"),
    classes=10,
    sizes=(60_000, 10_000),
    shape=(28, 28, 1),
    mean=(0.1307,),
    std=(0.3081,),
    augment=False,
    class_names=tuple(str(d) for d in range(10)),
)

FASHION_MNIST = Spec(
    name="fashion-mnist",
    about="70,000 grey images of 28x28, articles of clothing (Xiao et al., 2017)",
    kind="idx",
    remotes=_idx_remotes(
        {
            "train-images-idx3-ubyte.gz": "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    files={
        "train-images-idx3-ubyte": "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    places=("", "FashionMNIST/raw", "raw"),
    classes=10,
    sizes=(60_000, 10_000),
    shape=(28, 28, 1),
    mean=(0.2860,),
    std=(0.3530,),
    augment=False,
    class_names=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
)

TINY_IMAGENET = Spec(
    name="tiny-imagenet",
    about="110,000 colour images of 64x64 in 200 classes of ImageNet (Stanford CS231n)",
    kind="tiny",
    remotes=(
        Remote(
            "tiny-imagenet-200.zip",
            "sha256:6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
            ("https://cs231n.stanford.edu/tiny-imagenet-200.zip", "http://cs231n.stanford.edu/tiny-imagenet-200.zip"),
        ),
    ),
    files={},  # 120,000 JPEG files: the archive has a checksum, a folder is checked by counting
    places=("", "tiny-imagenet-200"),
    classes=200,
    sizes=(100_000, 10_000),
    shape=(64, 64, 3),
    mean=(0.4802, 0.4481, 0.3975),
    std=(0.2764, 0.2689, 0.2816),
    augment=True,
)

SPECS: dict[str, Spec] = {s.name: s for s in (CIFAR10, CIFAR100, FASHION_MNIST, MNIST, TINY_IMAGENET)}

# What the publishers published, as ``Fingerprint.content`` of every sample and label whatever their order, so that the
# same images in another form (an .npz, class folders) count as the same data. A set that is missing here is official
# only when it is read from files with the checksums above.
OFFICIAL: dict[str, str] = {
    "cifar10": "4e844ee225db67d0698a154caaec2f785bb5653c093517581d1b1183411f499e",
    "cifar100": "e798db1aceead96925e625197c2608a5b539d84baa689fb85d210072a4b31ebd",
    "digits": "894d2d1949d8b86fa0a968f15bf0e3330eba0e061e622a10955373b2ec346cda",
    "fashion-mnist": "235f6a6620a1e1aa56595081193d79a677c76812e608bdd6cc11ed86298ecd8a",
    "mnist": "b4bcf4d31b15e76e943541a448454d2a19fada7b5fa5458949f98f6f9ee38734",
}
