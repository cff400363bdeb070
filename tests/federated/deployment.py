"""A deployment on loopback: one SuperLink and some SuperNodes, each a process with a key."""

import contextlib
import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

BIN = Path(sys.executable).parent
APP = Path(__file__).parents[2] / "examples" / "flower_app"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def descendants(pid):
    """The process and its descendants, from /proc."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    tree = [pid]
    for known in tree:
        tree += [child for child, parent in parents.items() if parent == known]
    return tree


def write_certificates(folder):
    """A certificate for 127.0.0.1 and its authority: Flower authenticates SuperNodes over TLS."""
    today, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    names = {
        who: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, who)])
        for who in ("authority", "server")
    }
    keys = {who: ec.generate_private_key(ec.SECP256R1()) for who in names}
    for who, key in keys.items():
        certificate = (
            x509.CertificateBuilder()
            .subject_name(names[who])
            .issuer_name(names["authority"])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(today - day)
            .not_valid_after(today + day)
            .add_extension(
                x509.BasicConstraints(ca=who == "authority", path_length=None), critical=True
            )
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(keys["authority"].public_key()),
                critical=False,
            )
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
                critical=False,
            )
            .sign(keys["authority"], hashes.SHA256())
        )
        (folder / f"{who}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(
        keys["server"].private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


class Deployment:
    """``with Deployment(folder, nodes=3) as d``; everything it started is killed at the end."""

    def __init__(self, folder, nodes):
        self.folder, self.port, self.started = Path(folder), free_port(), []
        self.link, self.nodes = None, [None] * nodes
        (self.folder / "flwr").mkdir(parents=True)
        write_certificates(self.folder)
        self.authority = str(self.folder / "authority.pem")
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.authority}"\n'
        )
        self.environment = os.environ | {
            "FLWR_HOME": str(self.folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1", "PATH": f"{BIN}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1", "ANTIPHASE_CACHE": "off",
            "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8",
        }  # fmt: skip

    def __enter__(self):
        try:
            self.start_link()
            with ThreadPoolExecutor() as pool:
                list(pool.map(self.register, range(len(self.nodes))))
            for i in range(len(self.nodes)):
                self.start_node(i)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.started:
            self.kill(process)

    def kill(self, process):
        """SIGKILL, for the process and whatever it started."""
        for pid in reversed(descendants(process.pid)) if process.poll() is None else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(timeout=30)

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def start_link(self):
        self.link = self._start(
            "link", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port),
            "--ssl-ca-certfile", self.authority, "--ssl-certfile", str(self.folder / "server.pem"),
            "--ssl-keyfile", str(self.folder / "server.key"), "--enable-supernode-auth",
            "--disable-runtime-dependency-installation", "--database", str(self.folder / "link.db"),
        )  # fmt: skip
        self.wait(lambda: _listens(self.port), 60, "the SuperLink does not listen")

    def register(self, i):
        key = ec.generate_private_key(ec.SECP384R1())
        private, public = self.folder / f"node{i}", self.folder / f"node{i}.pub"
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.OpenSSH,
                serialization.NoEncryption(),
            )
        )
        private.chmod(0o600)
        public.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
            )
        )
        self.flwr("supernode", "register", str(public))

    def start_node(self, i):
        self.nodes[i] = self._start(
            f"node{i}", "flower-supernode", "--superlink", f"127.0.0.1:{self.port}",
            "--root-certificates", self.authority,
            "--auth-supernode-private-key", str(self.folder / f"node{i}"),
            "--host", "127.0.0.1", "--port", str(free_port()),
            "--node-config", f"partition-id={i} num-partitions={len(self.nodes)}",
        )  # fmt: skip

    def run(self, **config):
        """Start the app; the id of the run."""
        settings = " ".join(
            f"{k}={f'{chr(34)}{v}{chr(34)}' if isinstance(v, str) else v}"
            for k, v in config.items()
        )
        printed = self.flwr("run", str(APP), "here", "--run-config", settings)
        return printed.partition("started run ")[2].split()[0]

    def flwr(self, *arguments):
        done = subprocess.run(
            [BIN / "flwr", *arguments], capture_output=True, text=True, env=self.environment,
            timeout=120, check=False, encoding="utf-8",
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def wait(self, condition, seconds, otherwise):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, otherwise + "\n" + self.log("link")[-5000:]
            time.sleep(0.2)

    def _start(self, name, *command):
        with open(self.folder / f"{name}.log", "ab") as output:
            process = subprocess.Popen(
                [BIN / command[0], *command[1:]], stdout=output, stderr=subprocess.STDOUT,
                env=self.environment, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process


def _listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0
