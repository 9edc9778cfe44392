"""A real vLLM in a process group of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.models.tiny_hf import CONTEXT, TEMPLATE
from tests.ports import free_port

READY_SECONDS = 600
END_SECONDS = 30
MODEL = "tiny"

CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Little memory, and no binding: all servers at work would share the first core."""

TOLD = (
    "{% if reasoning_effort %}[effort {{ reasoning_effort }}]{% endif %}"
    "{% if enable_thinking is defined %}[thinking {{ enable_thinking }}]{% endif %}"
    "{% if colour %}[colour {{ colour }}]{% endif %}"
)
"""What begins a prompt if its request sets these variables of the template."""


class Server:
    """`vllm serve FOLDER`, its log in `work`; everything it starts ends with `stop`."""

    def __init__(self, executable: Path, folder: Path, work: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = work / "vllm.log"
        template = work / "template.jinja"
        template.write_text(TOLD + TEMPLATE)
        argv = [
            str(executable), "serve", str(folder), "--host", "127.0.0.1", "--port", str(self.port),
            "--served-model-name", MODEL, "--dtype", "float32", "--max-model-len", str(CONTEXT),
            "--max-num-seqs", "8", "--enforce-eager", "--no-enable-prefix-caching",
            "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-scale-out",
            "--chat-template", str(template),
        ]  # fmt: skip
        environment = os.environ | quick_environment(executable) | {
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CONFIG_ROOT": str(work),
            **CPU,
        }  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                argv,
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Return once it answers; raise RuntimeError with the end of its log if it does not."""
        end = time.monotonic() + READY_SECONDS
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with opener.open(f"{self.url}/health", timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.5)
        tail = self.log.read_text(errors="replace")[-4000:]
        raise RuntimeError(f"vLLM did not start ({self.process.poll()}):\n{tail}")

    def engine_core(self) -> int:
        """Return the process id of its EngineCore, by the name it gives itself."""
        group = os.getpgid(self.process.pid)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and "EngineCore" in _title(entry):
                try:
                    if os.getpgid(int(entry.name)) == group:
                        return int(entry.name)
                except ProcessLookupError:
                    continue
        raise RuntimeError("vLLM has no EngineCore process")

    def stop(self) -> None:
        """End it and all its processes, gently first."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def quick_environment(executable: Path) -> dict[str, str]:
    """Return what lets a vLLM start and answer soon: caches in its venv, and no compiler.

    The first logprobs request to each server would have one function compiled, which takes longer
    than all requests of a file of tests.
    """
    caches = str(executable.parent.parent / "cache")
    return {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CACHE_ROOT": caches,
        "XDG_CACHE_HOME": caches,
    }


def _title(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
