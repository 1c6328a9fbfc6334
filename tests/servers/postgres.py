"""A real PostgreSQL for tests: fetched with Maven as a package of programs, kept in the user's cache."""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.servers.http import wait_for
from tests.servers.processes import (
    cache_folder,
    free_port,
    from_maven,
    keep,
    wait_until_ended,
    wait_until_up,
)

VERSION = "16.6.0"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64v8"}
USER, PASSWORD = "tests", "tests-secret"
SETTINGS: Mapping[str, Any] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_replication_slots": 100,
    "max_connections": 60,
    "fsync": "off",
    "shared_buffers": "32MB",
    "log_statement": "none",
}


def fetch_programs() -> Path:
    """The archive with the server's programs; skips the test, saying why, if it cannot be had."""
    machine = MACHINES.get(platform.machine())
    if machine is None or platform.system() != "Linux":
        pytest.skip(f"there is no package of PostgreSQL for {platform.system()} on {platform.machine()}")
    archive = cache_folder() / f"postgres-{VERSION}-{machine}.txz"
    if not archive.exists():
        artifact = f"io.zonky.test.postgres:embedded-postgres-binaries-linux-{machine}:{VERSION}"
        with from_maven("PostgreSQL", archive, "copy", f"-Dartifact={artifact}") as fetched:
            (packed,) = fetched.iterdir()
            with zipfile.ZipFile(packed) as jar:
                (inner,) = [one for one in jar.namelist() if one.endswith(".txz")]
                keep(Path(jar.extract(inner, fetched)), archive)
    return archive


class PostgresServer:
    """A server on a free loopback port with its data in `folder`; it can be stopped and started again.

    PostgreSQL refuses to be run by root: then `nobody` runs it, and owns the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            try:
                nobody = pwd.getpwnam("nobody")
            except KeyError:
                pytest.skip("PostgreSQL does not run as root, and there is no user `nobody`")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        with tarfile.open(fetch_programs()) as archive:
            archive.extractall(folder / "programs", filter="data")
        self._give_away(folder)
        password = folder / "password"
        password.write_text(PASSWORD)
        # The programs run as another user, to whom the folders above are closed.
        options = ["-A", "scram-sha-256", "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync"]
        self._run("initdb", "-D", str(folder / "data"), f"--pwfile={password}", *options)

    def _give_away(self, folder: Path) -> None:
        folder.chmod(0o755)
        (folder / "home").mkdir()
        if self._as:
            for path in (folder, folder / "home"):
                os.chown(path, self._as["user"], self._as["group"])

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._folder / "programs" / "bin" / program), *arguments]
        done = subprocess.run(
            command, cwd=self._folder, env=self._environment, capture_output=True, check=False, **self._as
        )
        if done.returncode:
            pytest.fail(f"{program} failed:\n{(done.stdout + done.stderr).decode(errors='replace')}")

    @property
    def _environment(self) -> dict[str, str]:
        library = str(self._folder / "programs" / "lib")
        return {"HOME": str(self._folder / "home"), "LD_LIBRARY_PATH": library, "LC_ALL": "C", "TZ": "UTC"}

    def start(self) -> None:
        """Run the server and wait until it answers."""
        import psycopg

        command = [str(self._folder / "programs" / "bin" / "postgres"), "-D", str(self._folder / "data")]
        for name, value in {**SETTINGS, "port": self.port}.items():
            command += ["-c", f"{name}={value}"]
        log = self._folder / "server.log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, cwd=self._folder, env=self._environment, **self._as
            )

        def is_up() -> bool:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                return False
            return True

        wait_until_up("PostgreSQL", self._process, log, is_up)

    @contextlib.contextmanager
    def with_tls(self, certificate: Path, key: Path) -> Iterator[None]:
        """Let new connections use TLS until the block ends."""
        for source, name in ((certificate, "server.crt"), (key, "server.key")):
            target = self._folder / "data" / name
            shutil.copyfile(source, target)
            target.chmod(0o600)
            if self._as:
                os.chown(target, self._as["user"], self._as["group"])
        self._set_ssl("on")
        try:
            yield
        finally:
            self._set_ssl("off")

    def _set_ssl(self, value: str) -> None:
        with self.connect() as connection:
            connection.execute(f"ALTER SYSTEM SET ssl = {value}")
            connection.execute("SELECT pg_reload_conf()")
        wait_for(lambda: self._ssl() == value)

    def _ssl(self) -> str:
        with self.connect() as connection:
            return str(connection.execute("SHOW ssl").fetchone()[0])

    def stop(self, *, crash: bool = False) -> None:
        """End the server, or let it die as with its machine; its data stays."""
        process, self._process = self._process, None
        if process is None:
            return
        # SIGINT does not wait for clients; SIGQUIT lets all processes of the server die at once.
        process.send_signal(signal.SIGQUIT if crash else signal.SIGINT)
        wait_until_ended(process)

    def url(self, database: str = "postgres", *, user: str = USER, password: str = PASSWORD) -> str:
        """The address of a database."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> Any:
        """A new connection; each statement is a transaction."""
        import psycopg

        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=10)


class Database:
    """A database of its own for a test, and a connection to it."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name
        self.url = server.url(name)
        self._connection: Any = None

    @property
    def connection(self) -> Any:
        """A connection that stays."""
        if self._connection is None:
            self._connection = self.server.connect(self.name)
        return self._connection

    def run(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        for statement in statements:
            self.connection.execute(statement)

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        found: list[tuple[Any, ...]] = self.connection.execute(query, parameters).fetchall()
        return found

    def slots(self) -> list[str]:
        """The replication slots of the database."""
        query = "SELECT slot_name FROM pg_replication_slots WHERE database = %s ORDER BY 1"
        return [name for (name,) in self.rows(query, [self.name])]

    def restart(self, *, crash: bool = False) -> None:
        """Stop the server, or let it die, and start it again."""
        self.close()
        self.server.stop(crash=crash)
        self.server.start()

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextlib.contextmanager
def run_server() -> Iterator[PostgresServer]:
    """Run a server until the block ends."""
    # Not below pytest's own folder, which is closed to the user who runs the server.
    folder = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
    try:
        server = PostgresServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop(crash=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def new_database(server: PostgresServer) -> Iterator[Database]:
    """A new database until the block ends."""
    name = f"db_{uuid.uuid4().hex[:12]}"
    with server.connect() as admin:
        admin.execute(f"CREATE DATABASE {name} STRATEGY = FILE_COPY")
    database = Database(server, name)
    try:
        yield database
    finally:
        database.close()
        with server.connect() as admin:
            slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            admin.execute(f"{slots} WHERE database = %s AND NOT active", [name])
            admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of a run."""
    with run_server() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[Database]:
    """An empty database."""
    with new_database(postgres_server) as database:
        yield database
