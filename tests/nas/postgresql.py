"""A PostgreSQL server for tests, on the loopback interface."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_OWNER = "postgres"  # the server refuses to run as root


def binaries() -> Path | None:
    """Return the folder of the server's programs, or None if it is not installed."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    result = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))  # Debian
    return result[-1].parent if result else None


@dataclass(frozen=True)
class Server:
    """A server that can be stopped and started."""

    programs: Path
    folder: Path
    port: int

    @property
    def server(self) -> str:
        """The URL of the server."""
        return f"postgresql://{_OWNER}@127.0.0.1:{self.port}"

    def new(self) -> str:
        """Return the URL of a new, empty database."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        command = ["createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", _OWNER, name]
        _run([str(self.programs / command[0]), *command[1:]])
        return f"{self.server}/{name}"

    def start(self, *options: str) -> None:
        """Start the server and wait until it accepts connections."""
        flags = [
            f"listen_addresses=127.0.0.1 -c port={self.port}",
            f"unix_socket_directories={self.folder}",
        ]
        settings = " ".join(f"-c {flag}" for flag in (*flags, "fsync=off", *options))
        self._control("start", "-w", "-o", settings, "-l", str(self.folder / "log"))

    def stop(self) -> None:
        """Stop the server without a clean shutdown."""
        self._control("stop", "-m", "immediate")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend all processes of the server, with connections open."""
        main = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        everything = [main, *map(int, children)]
        for pid in everything:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in everything:
                os.kill(pid, signal.SIGCONT)

    def _control(self, *arguments: str) -> None:
        _run([str(self.programs / "pg_ctl"), "-D", str(self.folder / "data"), *arguments])


@contextmanager
def running(programs: Path) -> Iterator[Server]:
    """Yield a server with an empty cluster."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="hwnas-postgresql-"))
    if getpass.getuser() == "root":
        shutil.chown(folder, _OWNER)
    server = Server(programs, folder, port)
    try:
        data = str(folder / "data")
        _run([str(programs / "initdb"), "-D", data, "-U", _OWNER, "-A", "trust", "--no-sync"])
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def _run(command: Sequence[str]) -> None:
    as_owner = ["runuser", "-u", _OWNER, "--"] if getpass.getuser() == "root" else []
    # No pipes: a started server would inherit them and keep them open.
    with tempfile.TemporaryFile() as output:
        full_command = [*as_owner, *command]
        done = subprocess.run(full_command, stdout=output, stderr=output, cwd="/", check=False)
        output.seek(0)
        assert done.returncode == 0, output.read().decode()
