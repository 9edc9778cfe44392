"""`wellspoken serve` with a vLLM of its own, as a process that a test may kill, and what it leaves.

On the CPU and on a GPU alike; tests/live/vllm and tests/live/gpu say what is expected.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openai

from tests.models.tiny_hf import CONTEXT, CONTROLS, Tokens
from tests.ports import free_port
from tests.waiting import block_until
from wellspoken.engine import shim

START_SECONDS = 400.0
"""For a start beside other work; alone it takes 30 to 60 s."""
GONE_SECONDS = 120.0
"""In which nothing may be left of an engine whose proxy was killed."""
MODEL = "tiny"
EVENTS = 5  # of a stream before something happens to it
TRIES = 10
"""To break an answer before it is whole: its server may hear of all tokens only at the last one,
the engine core keeping it from running (vLLM 0.32.0, two cores)."""

Json = dict[str, Any]


class Hosting:
    """A proxy with an engine. Everything that it makes lies in `work`, which is emptied by it."""

    def __init__(
        self,
        model: Path,
        executable: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        **engine: object,
    ) -> None:
        # Short, since sockets lie in it; a folder of pytest's is too deep.
        self.work = Path(tempfile.mkdtemp(prefix="wsp-", dir="/tmp"))
        self.places = self.work / "p"
        self.places.mkdir(mode=0o700)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = dict(environment)
        self._known: dict[int, int] = {}  # the processes below it: id, start
        self._memory: set[Path] = set()  # what they have shared; other engines may run meanwhile
        self._process: subprocess.Popen[bytes] | None = None
        settings = {
            "kind": "vllm",
            "model": str(model),
            "executable": str(executable),
            "arguments": list(arguments),
            "wait": START_SECONDS,
            "grace": 15,
            **engine,
        }
        self.config = self.work / "wellspoken.toml"
        lines = ["[server]", f'listen = "127.0.0.1:{self.port}"', "drain_timeout = 120", "[engine]"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        self.config.write_text("\n".join(lines) + "\n")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was not started"
        return self._process

    @property
    def log(self) -> str:
        return (self.work / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start the proxy, which starts the engine; nothing if it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self._known.clear()
        with (self.work / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "wellspoken.proxy.cli", "serve", "--config", self.config],
                cwd=self.work,
                env=os.environ | {"XDG_RUNTIME_DIR": str(self.places)} | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ready(self) -> None:
        """Start it if it does not run, and return once the engine answers."""
        self.start()
        block_until(lambda: self.state() == "ready", lambda: self.log[-4000:], START_SECONDS)
        self.processes()

    def state(self) -> str:
        """Return the state of the engine as /metrics tells it, "" while nobody listens."""
        try:
            status, _, data = self.get("/metrics")
        except OSError:
            self.process.poll()
            assert self.process.returncode is None, self.log[-4000:]
            return ""
        assert status == 200
        found = re.search(rb'wellspoken_engine_state\{[^}]*state="(\w+)"\} 1\.0', data)
        return found[1].decode() if found is not None else ""

    def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of a GET."""
        return self._ask("GET", path, None)

    def post(self, asked: Json) -> tuple[int, dict[str, str], Json]:
        """Return status, headers and decoded body of a chat completion."""
        status, headers, data = self._ask("POST", "/v1/chat/completions", json.dumps(asked))
        decoded: Json = json.loads(data)
        return status, headers, decoded

    def _ask(self, method: str, path: str, body: str | None) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, names, answer.read()
        finally:
            connection.close()

    def sdk(self) -> openai.OpenAI:
        """Return OpenAI's client, with strict validation of what it gets."""
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key="none",
            max_retries=0,
            timeout=START_SECONDS,
            _strict_response_validation=True,
        )

    # What it has made.

    def processes(self) -> list[shim.Process]:
        """Return the living processes that it started, by any way; also when it is dead itself."""
        table = shim.look_around()
        roots = {p.pid for p in table.values() if self._known.get(p.pid) == p.start}
        if self._process is not None and self._process.poll() is None:
            roots.add(self._process.pid)
        found = shim.below(table, roots, {self._process.pid if self._process is not None else 0})
        self._known.update({process.pid: process.start for process in found})
        self._memory.update(*(map(shared_memory, (process.pid for process in found))))
        return [process for process in found if process.state != "Z"]

    def pid(self, title: str) -> int:
        """Return the process whose command line holds `title`, as VLLM::EngineCore sets its own."""
        for process in self.processes():
            if title in _command(process.pid):
                return process.pid
        raise AssertionError(f"no {title} among {[_command(p.pid) for p in self.processes()]}")

    def left(self) -> list[str]:
        """Return what there is of it: processes, shared memory, folders and sockets."""
        found = [f"process {p.pid} {_command(p.pid)}" for p in self.processes()]
        found += [str(path) for path in self._memory if path.exists()]
        found += [str(path) for path in self.files() if path.name != "wellspoken"]
        return found

    def files(self) -> list[Path]:
        """Return what lies in the folders of its engines; unlike a glob, also while that goes."""
        walked = os.walk(self.places)
        return [Path(at, name) for at, folders, files in walked for name in (*folders, *files)]

    def check_gone(self, seconds: float = GONE_SECONDS) -> float:
        """Assert that nothing of it is left soon; return how many seconds that took."""
        began = time.monotonic()
        block_until(lambda: not self.left(), lambda: "left: " + "\n".join(self.left()), seconds)
        return time.monotonic() - began

    def clear(self) -> None:
        """End all that is left, so that no test leaves a vLLM behind, and remove its files."""
        self.end()
        shutil.rmtree(self.work, ignore_errors=True)

    def end(self) -> None:
        """End all that is left, gently first."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for process in self.processes():
            shim.kill(process)
        for path in self._memory:
            path.unlink(missing_ok=True)


class Stream(threading.Thread):
    """A streamed chat completion as it comes, read in a thread."""

    def __init__(self, hosting: Hosting, asked: Json) -> None:
        super().__init__(daemon=True)
        self.data = b""
        self.status = 0
        self.cut = ""
        self._body = json.dumps(asked | {"stream": True})
        self._hosting = hosting
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._hosting.port)
        connection.timeout = START_SECONDS
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", self._body, headers)
            answer = connection.getresponse()
            self.status = answer.status
            while piece := answer.read1(65_536):
                self.data += piece
        except (OSError, http.client.HTTPException) as error:
            self.cut = repr(error)
        finally:
            connection.close()

    def begun(self) -> Stream:
        """Return once some events with text have come; it may have ended since."""

        def has_text() -> bool:
            return self.data.count(b'"content"') > EVENTS

        block_until(lambda: has_text() or not self.is_alive(), lambda: repr(self), START_SECONDS)
        assert has_text(), self
        return self

    def end(self, seconds: float = START_SECONDS) -> Stream:
        """Return once it has ended."""
        self.join(seconds)
        assert not self.is_alive(), self
        return self

    def __repr__(self) -> str:
        return f"{self.status} {self.cut} {self.data[-1000:]!r}"

    @property
    def events(self) -> list[Json]:
        lines = [line[6:] for line in self.data.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(line) for line in lines if line != b"[DONE]"]

    @property
    def done(self) -> bool:
        return self.data.endswith(b"data: [DONE]\n\n")

    @property
    def reasons(self) -> set[str]:
        found = {c.get("finish_reason") for e in self.events for c in e.get("choices", ())}
        return {reason for reason in found if reason}

    def check_failed(self) -> Json:
        """Assert one error event at the end, neither a reason nor [DONE]; return the error."""
        assert not self.cut and self.status == 200, self
        assert self.reasons == set() and b"[DONE]" not in self.data, self
        assert [("error" in event) for event in self.events].count(True) == 1, self
        error: Json = self.events[-1]["error"]
        assert error["type"] == "server_error" and error["message"], self
        return error


def question(**more: Any) -> Json:
    """Return a request for a greedy answer with logprobs, which no control token ends or mars."""
    bias = {str(at): -100 for at in range(len(CONTROLS))}
    messages = [{"role": "user", "content": "Hello world"}]
    asked: Json = {"model": MODEL, "messages": messages, "logit_bias": bias, "temperature": 0}
    return asked | {"logprobs": True, "top_logprobs": 3, "max_tokens": 24} | more


def long(**more: Any) -> Json:
    """Return a request that takes seconds: to the end of the context, of two letters alone."""
    ids = Tokens().ids
    bias = question()["logit_bias"] | {str(ids[letter]): 100 for letter in (b"a", b"b")}
    asked = question(logit_bias=bias, temperature=1, seed=1, top_logprobs=20, ignore_eos=True)
    return asked | {"max_tokens": CONTEXT - 64} | more


def check_answers(hosting: Hosting) -> None:
    """Assert that body and stream come with logprobs, and say the same, to OpenAI's client."""
    asked: Any = question()
    with hosting.sdk() as sdk:
        body = sdk.chat.completions.create(**asked)
        choice = body.choices[0]
        assert choice.finish_reason == "length" and choice.message.content
        assert choice.logprobs is not None and choice.logprobs.content is not None
        rows = choice.logprobs.content
        text = b"".join(bytes(row.bytes or ()) for row in rows).decode("utf-8", "replace")
        assert text == choice.message.content
        assert all(-9999 <= row.logprob <= 0 and len(row.top_logprobs) == 3 for row in rows)
        assert body.usage is not None and body.usage.completion_tokens == 24
        parts, reasons = [], []
        for chunk in sdk.chat.completions.create(**asked, stream=True):
            parts.append(chunk.choices[0].delta.content or "")
            reasons.append(chunk.choices[0].finish_reason)
        assert "".join(parts) == choice.message.content
        assert [reason for reason in reasons if reason] == ["length"]


def phases_until_ready(hosting: Hosting) -> list[str]:
    """Start it, and assert that each request meanwhile is a 503 that names the phase.

    Returns what they said.
    """
    hosting.start()
    block_until(lambda: hosting.state() == "starting", lambda: hosting.log[-4000:])
    phases: list[str] = []
    while hosting.state() == "starting":
        status, headers, body = hosting.post(question())
        if status == 200:
            break
        assert status == 503, body
        assert body["error"]["code"] == "engine_not_ready"
        assert body["error"]["type"] == "server_error"
        assert 1 <= int(headers["retry-after"]) <= 30
        phases.append(body["error"]["message"])
        status, _, data = hosting.get("/readyz")
        assert status == 200 or (status == 503 and b"vLLM" in data)
        time.sleep(0.2)
    hosting.ready()
    assert hosting.get("/readyz")[0] == 200
    return phases


def core_killed(hosting: Hosting) -> None:
    """Kill EngineCore in the middle of a stream: an error event, and the next request waits."""
    for tries in range(1, TRIES + 1):
        hosting.ready()
        core = hosting.pid("VLLM::EngineCore")  # looked for while no answer is running to its end
        stream = Stream(hosting, long()).begun()
        kill(core)
        stream.end()
        block_until(lambda: hosting.state() != "ready", lambda: hosting.log[-4000:])
        status, _, body = hosting.post(question())
        assert status == 200, body
        _, _, metrics = hosting.get("/metrics")
        assert b'wellspoken_engine_restarts_total{backend="engine"} %d.0' % tries in metrics
        if not stream.done:
            break
    stream.check_failed()


def core_stopped(hosting: Hosting, seconds: float) -> float:
    """Stop EngineCore in the middle of a stream: an error event in so many seconds.

    Returns how many it took.
    """
    for _ in range(TRIES):
        core = hosting.pid("VLLM::EngineCore")
        stream = Stream(hosting, long()).begun()
        kill(core, signal.SIGSTOP)
        began = time.monotonic()
        stream.end(seconds)
        if not stream.done:
            break
        kill(core, signal.SIGCONT)
    stream.check_failed()
    return time.monotonic() - began


def proxy_killed(hosting: Hosting) -> None:
    """Kill the proxy in the middle of a stream: nothing of the engine is left after 5 s."""
    for _ in range(TRIES):
        hosting.ready()
        stream = Stream(hosting, long()).begun()
        kill(hosting.process.pid)
        hosting.process.wait()
        print(f"nothing left after {hosting.check_gone():.1f} s")
        stream.end()
        if not stream.reasons:
            break
    assert stream.reasons == set() and not stream.done, stream


def ended_in_order(hosting: Hosting) -> None:
    """Send SIGTERM in the middle of a stream: it finishes, and nothing is left."""
    stream = Stream(hosting, long()).begun()
    hosting.processes()
    hosting.process.send_signal(signal.SIGTERM)
    stream.end()
    assert stream.reasons == {"length"} and stream.done, stream
    assert hosting.process.wait(START_SECONDS) == 0, hosting.log[-4000:]
    hosting.check_gone()


def shared_memory(pid: int) -> set[Path]:
    """Return the files of /dev/shm that a process has mapped; none if it is gone."""
    try:
        mapped = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return set()
    return {Path(name) for name in re.findall(r" (/dev/shm/\S+)$", mapped, re.MULTILINE)}


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to one process."""
    os.kill(pid, number)


def _command(pid: int) -> str:
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return data.replace(b"\0", b" ").decode(errors="replace").strip()
