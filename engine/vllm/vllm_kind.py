"""vLLM as an engine: `vllm serve MODEL` of an installed vLLM, on a unix socket."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Final

from wellspoken.engine.environment import pass_environment
from wellspoken.engine.failure import EngineError, ending, lasting_error
from wellspoken.engine.kind import Command, Facts
from wellspoken.engine.unix_http import Client
from wellspoken.engine.vllm import hub_cache, vllm_check, vllm_log
from wellspoken.engine.vllm.vllm_arguments import forbidden, model_names_in, option

INSTALL: Final = 'pip install "vllm>=0.26"'
DRAINS: Final = (0, 18)
"""The first version with --shutdown-timeout."""
QUIET: Final = (0, 16)
"""The first version that can leave single paths out of its access log (vllm #30011)."""
LISTENS: Final = (0, 10, 1)
"""The first version with --uds."""
HANDSHAKE: Final = 86_400
"""Seconds that its API server waits for its own processes: the supervisor's limit shall count."""
ASK_SECONDS: Final = 30.0

_COUNTERS = (
    b"vllm:iteration_tokens_total_count",
    b"vllm:iteration_tokens_total_sum",
    b"vllm:generation_tokens_total",
    b"vllm:prompt_tokens_total",
)
_INTERPRETER = re.compile(rb"(/[^\n\"' ]*/)(?:python|pypy)[\d.]*")
_PACKAGES = ("lib", "lib64", "local/lib")


@dataclass(slots=True)
class VLLM:
    """`vllm serve MODEL ARGUMENTS`, with everything that it needs to run below a supervisor.

    `model`: ORG/NAME on the Hugging Face Hub, or a folder. `arguments` go to vLLM as they are; see
    `forbidden` for those that cannot. `executable`: a path, or a name that is looked for beside
    this Python and on PATH. `alias` names the model to clients unless the arguments do. `inherit`,
    `environment` and `own`: see `pass_environment`. `environ` is the proxy's own.
    """

    name = "vllm"
    title = "vLLM"
    start_timeout = 1800.0

    model: str
    _: KW_ONLY
    arguments: Sequence[str] = ()
    executable: str = "vllm"
    alias: str | None = None
    inherit: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    own: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def __post_init__(self) -> None:
        self.model = os.path.expanduser(self.model)

    def check(self) -> list[str]:
        """Return warnings; raise EngineError that names what is missing. May take 5 s."""
        reason = forbidden(self.arguments)
        if reason is not None:
            raise lasting_error(reason)
        number = version(self._find_executable())
        warnings = _check_version(number)
        environ = self._environment_in(Path("/tmp"))  # noqa: S108  in place of the run's folder; nothing is written
        return warnings + vllm_check.check(self.model, self.arguments, number, environ)

    def command(self, socket: Path, folder: Path, shutdown_timeout: float) -> Command:
        """Return `vllm serve` on `socket`. Raises EngineError where there is no vllm."""
        executable = self._find_executable()
        argv = [str(executable), "serve", self.model, *self.arguments]
        if self.alias is not None and not model_names_in(self.arguments):
            argv += ["--served-model-name", self.alias]
        number = version(executable)
        # Else the questions of the watchdog fill the log, one line for each.
        if _has(number, QUIET) and not any("access" in word for word in self.arguments):
            argv += ["--disable-access-log-for-endpoints", "/health,/metrics"]
        argv += ["--uds", str(socket)]
        if _has(number, DRAINS):
            argv += ["--shutdown-timeout", str(max(1, round(shutdown_timeout)))]
        return Command(tuple(argv), self._environment_in(folder))

    def phase(self, line: str) -> str | None:
        """Return what it does from this line of its log on, for people; else None."""
        return vllm_log.phase(line)

    def pulse(self) -> str | None:
        """Return how far the model's download is, which its log does not say; else None."""
        folder = option(self.arguments, "--download-dir")
        where = Path(folder) if folder else hub_cache.cache(self._environment_in(Path("/tmp")))  # noqa: S108  in place of the run's folder, likewise
        size = hub_cache.downloading(self.model, where)
        return None if size is None else f"downloading {self.model[-40:]}, {_size(size)}"

    def explain_report(self, report: Mapping[str, str], tail: Sequence[str]) -> EngineError:
        """Return what a report means; vLLM gives none."""
        return self.explain_end(1, [*tail, *report.values()])

    def explain_end(self, code: int, tail: Sequence[str]) -> EngineError:
        """Return why it ended during its start, by the first cause in its log."""
        why = vllm_log.diagnosis(code, tail)
        end = ending(self.title, code)
        return EngineError(f"{end} while it started {self.model}: {why.text}", lasting=why.lasting)

    def warm_up(self, facts: Facts) -> tuple[str, bytes]:
        """Return a completion with logprobs: the code for those is compiled at the first of them.

        A model for embeddings answers 404, and one run with --max-logprobs 0 answers 400.
        """
        asked = {
            "model": facts.models[0] if facts.models else self.model,
            "prompt": "Hello",
            "max_tokens": 1,
            "temperature": 1,
            "top_p": 0.9,
            "logprobs": 1,
        }
        return "/v1/completions", json.dumps(asked).encode()

    async def facts(self, client: Client, argv: Sequence[str], tail: Sequence[str]) -> Facts:
        """Return what GET /version and GET /v1/models say, and the parsers it was started with."""
        listed = (await client.json("/v1/models", ASK_SECONDS)).get("data")
        cards = [card for card in listed if isinstance(card, dict)] if listed else []
        models = tuple(card["id"] for card in cards if isinstance(card.get("id"), str))
        lengths = [card.get("max_model_len") for card in cards]
        told = (await client.json("/version", ASK_SECONDS)).get("version")
        return Facts(
            version=told if isinstance(told, str) else "",
            models=models,
            context=next((length for length in lengths if isinstance(length, int)), None),
            tool_parser=option(argv, "--tool-call-parser") or "",
            reasoning_parser=option(argv, "--reasoning-parser") or "",
        )

    def progress(self, metrics: bytes) -> bytes:
        """Return its counters of tokens; b"" with --disable-log-stats, which has none.

        The answer to GET /metrics alone proves nothing: it comes while EngineCore hangs.
        """
        return b"\n".join(line for line in metrics.split(b"\n") if line.startswith(_COUNTERS))

    def _find_executable(self) -> Path:
        """Return the path of the executable; raise EngineError where there is none."""
        if "/" in self.executable:
            path = Path(os.path.expanduser(self.executable))
            if os.access(path, os.X_OK) and path.is_file():
                return path.absolute()
            raise lasting_error(
                f"there is no executable {path}. Give the path of the command `vllm`, or install "
                f"it: {INSTALL}"
            )
        # Not resolved: the python of a venv is a link to one that has no vllm beside it.
        beside = Path(sys.executable).parent / self.executable
        if os.access(beside, os.X_OK) and beside.is_file():
            return beside
        found = shutil.which(self.executable, path=self.environ.get("PATH", os.defpath))
        if found is None:
            raise lasting_error(
                f"the command `{self.executable}` is neither beside {sys.executable} nor on PATH. "
                f"Install it: {INSTALL}"
            )
        return Path(found).absolute()

    def _environment_in(self, folder: Path) -> dict[str, str]:
        """Return its environment: its sockets and temporary files in `folder`, its caches not."""
        environ = pass_environment(self.environ, self.inherit, {}, self.own)
        kept = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        root = environ.get("VLLM_CACHE_ROOT") or f"{kept}/vllm"
        own = {
            "TORCHINDUCTOR_CACHE_DIR": f"{root}/inductor",
            # Else a Ray that runs already is looked for in our folder.
            "RAY_TMPDIR": environ.get("TMPDIR") or "/tmp",  # noqa: S108  Ray's own default
            "VLLM_ENGINE_READY_TIMEOUT_S": str(HANDSHAKE),
        }
        ours = {
            "TMPDIR": str(folder),
            "VLLM_RPC_BASE_PATH": str(folder),
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
        # vLLM names its processes (VLLM::EngineCore) over their argv, which it finds by where the
        # first variable lies: that must be one which nobody sets again before (setproctitle 1.3).
        first = {"PATH": environ["PATH"]} if "PATH" in environ else {}
        return first | own | environ | ours | dict(self.environment)


def version(executable: Path) -> str:
    """Return the version of the vLLM that a script starts, "" if that cannot be told.

    Read from the packages beside the script's interpreter: `vllm --version` takes half a minute.
    """
    try:
        with executable.open("rb") as script:
            begin = script.read(1024)
    except OSError:
        return ""
    prefixes = [executable.absolute().parent.parent, executable.resolve().parent.parent]
    interpreter = _INTERPRETER.search(begin) if begin.startswith(b"#!") else None
    if interpreter is not None:
        prefixes.insert(0, Path(os.fsdecode(interpreter[1])).parent)
    for prefix in prefixes:
        for folder in _PACKAGES:
            found = sorted((prefix / folder).glob("python3*/*-packages/vllm-*.dist-info"))
            if found:
                return found[-1].name.removeprefix("vllm-").removesuffix(".dist-info")
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a release; () for a build from source, which has none of its own."""
    if not version or "dev" in version:
        return ()
    begin = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in begin[0].split(".")) if begin is not None else ()


def _has(version: str, since: tuple[int, ...]) -> bool:
    """Say whether a version has what came with `since`; one that is not known has it."""
    return (_numbers(version) or since) >= since


def _check_version(version: str) -> list[str]:
    if not _has(version, LISTENS):
        raise lasting_error(
            f"vLLM {version} cannot listen on a unix socket: upgrade it to 0.10.1 or later "
            f"({INSTALL})"
        )
    if not _has(version, DRAINS):
        return [
            f"vLLM {version} cuts the answers that are under way when it is told to end: "
            "0.18 and later let them finish"
        ]
    return []


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
