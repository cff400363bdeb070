"""A local web server with the faults of real ones, and a tiny data set for it."""

import gzip
import hashlib
import io
import lzma
import tarfile
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from antiphase.data import formats
from antiphase.data.archives import SourceFile
from antiphase.data.packages import Address
from antiphase.data.registry import IDX, Archive, LabelledFileSet


def contents(seed=0):
    """The four files of a tiny MNIST. Its pixels are random, so that they hardly compress."""
    rng = np.random.default_rng(seed)
    files = {}
    for part, count in (("train", 300), ("t10k", 100)):
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        header = np.array([0x803, count, 28, 28], ">i4").tobytes()
        files[f"{part}-images-idx3-ubyte"] = header + pixels.tobytes()
        labels = np.arange(count, dtype=np.uint8) % 10
        files[f"{part}-labels-idx1-ubyte"] = (
            np.array([0x801, count], ">i4").tobytes() + labels.tobytes()
        )
    return {name: files[name] for name in IDX}


def dataset(*mirrors, **changes):
    """The tiny data set, to be downloaded from these mirrors."""
    files = tuple(
        SourceFile(name, len(c), hashlib.sha256(c).hexdigest()) for name, c in contents().items()
    )
    tiny = LabelledFileSet(
        name="tiny",
        files=files,
        read=formats.idx,
        classes=tuple("0123456789"),
        mean=(0.5,),
        std=(0.3,),
        mirrors=mirrors,
        layouts=("tiny", "raw"),
    )
    return replace(tiny, **changes)


def archived(url="http://127.0.0.1:9/", **changes):
    """The tiny data set, to be downloaded as an archive."""
    archive = Archive(
        name="all.tar.gz",
        address=Address(f"{url}all.tar.gz"),
        members=tuple(f"all/{name}" for name in IDX),
    )
    return dataset(archives=(replace(archive, **changes),))


def packed(files=None):
    """The files of a mirror: each as .gz."""
    return {f"{name}.gz": gzip.compress(content) for name, content in (files or contents()).items()}


def tarred(members=None, mode="w:gz"):
    """A tar archive: of these members, or of the tiny data set."""
    members = members or {f"all/{name}": content for name, content in contents().items()}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


class Site:
    """Serves ``files`` by name; ``fault(name)`` may name a fault for one request."""

    def __init__(self, files):
        self.files, self.requests = dict(files), []
        self.fault = lambda name: None

    def ranges(self, name):
        return [asked for path, asked in self.requests if path == name]


@contextmanager
def serving(files):
    site = Site(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name, asked = self.path.strip("/"), self.headers["Range"]
            site.requests.append((name, asked))
            fault = site.fault(name)
            if name not in site.files or fault == "missing":
                self.send_error(404)
                return
            body = site.files[name]
            start = (
                int(asked.removeprefix("bytes=").removesuffix("-"))
                if asked and fault != "no ranges"
                else 0
            )
            if start and start >= len(body):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                claimed = start + 1 if fault == "other range" else start
                self.send_header("Content-Range", f"bytes {claimed}-{len(body) - 1}/{len(body)}")
            if fault != "no length":
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            rest = body[start:]
            if fault == "drop":
                rest = rest[: len(rest) // 2]
            self.wfile.write(rest[:1000] if fault == "stall" else rest)
            if fault == "stall":
                self.wfile.flush()
                time.sleep(1.5)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}/"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()


def debian_package(tar):
    """An ar archive with the parts of a Debian package."""
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": lzma.compress(tar)}
    out = b"!<arch>\n"
    for name, content in parts.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        out += content + b"\n" * (len(content) % 2)
    return out
