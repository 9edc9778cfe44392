"""What is compared: how each server is started in front of the upstream, and which version it is.

ours       wellspoken with all its defaults: access log, metrics, validation
bare       tests.bench.passthrough, the yardstick
nginx      the floor: it passes on, one process, no log, connections to the upstream kept
the peers  LiteLLM and vllm-router, of a venv of their own (`make bench ARGS=--peers` makes it)

None but ours translates anything.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench.process import Child, Program, StartError, run
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
PEERS = ROOT / ".venv-peers" / "bin"
FIRST = ("ours", "bare")
"""Without these there is nothing to compare; the others may be missing."""

_NGINX = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_body_buffer_size 1m;
    keepalive_requests 1000000000;
    upstream backend {{
        server {backend};
        keepalive 256;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {listen};
        location / {{
            proxy_pass http://backend;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""
_LITELLM = """\
model_list:
- model_name: "*"
  litellm_params: {{ model: "openai/*", api_base: {backend}/v1, api_key: none }}
"""


def ours(backend: str, *options: str, **environment: str) -> Program:
    """Return wellspoken in front of an old vLLM."""
    listen = f"127.0.0.1:{free_port()}"
    serve = ["-m", "wellspoken.proxy.cli", backend, "--adapter", "vllm", "--listen", listen]
    return Program([sys.executable, *serve, *options], f"http://{listen}", environment)


def bare(backend: str) -> Program:
    """Return the pass-through."""
    return Program([sys.executable, "-m", "tests.bench.passthrough", backend])


def nginx(backend: str, folder: Path) -> Program:
    """Return nginx, whose files lie in the folder."""
    listen = f"127.0.0.1:{free_port()}"
    path = folder / "nginx.conf"
    given = _NGINX.format(folder=folder, backend=urlsplit(backend).netloc, listen=listen)
    path.write_text(given)
    program = find_nginx() or "nginx"
    return Program([program, "-p", str(folder), "-c", str(path)], f"http://{listen}")


def find_nginx() -> str | None:
    """Return nginx's path; None where it is not installed."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def litellm(backend: str, folder: Path) -> Program:
    """Return LiteLLM's proxy; it wants to be told that it needs no key and no price list."""
    port = free_port()
    path = folder / "litellm.yaml"
    path.write_text(_LITELLM.format(backend=backend))
    command = [str(PEERS / "litellm"), "--host", "127.0.0.1", "--port", str(port)]
    environment = {
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
    }
    url = f"http://127.0.0.1:{port}"
    return Program([*command, "--config", str(path)], url, environment)


def vllm_router(backend: str) -> Program:
    """Return vLLM's router, which is written in Rust."""
    port, other = free_port(), free_port()
    command = [str(PEERS / "vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
    options = ["--policy", "round_robin", "--prometheus-port", str(other), "--log-level", "error"]
    url = f"http://127.0.0.1:{port}"
    return Program([*command, "--worker-urls", backend, *options], url)


@contextmanager
def serving(
    backend: str, where: set[int] | None, peers: bool
) -> Iterator[tuple[dict[str, Child], dict[str, str]]]:
    """Run all of them on these cores.

    Yields the servers by name, and why others are missing. Raises StartError for the first two.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        programs = {"ours": ours(backend), "bare": bare(backend)}
        missing = {}
        if find_nginx():
            programs["nginx"] = nginx(backend, folder)
        else:
            missing["nginx"] = "not installed"
        if peers:
            programs["vllm-router"] = vllm_router(backend)
            programs["LiteLLM"] = litellm(backend, folder)
        found = {}
        for name, program in programs.items():
            try:
                found[name] = stack.enter_context(run(program, where))
            except StartError as error:
                if name in FIRST:
                    raise
                missing[name] = str(error)
        yield found, missing


def versions(names: list[str]) -> dict[str, str]:
    """Return the versions of these servers, as far as they tell."""
    found = {}
    if "nginx" in names and (program := find_nginx()):
        said = subprocess.run([program, "-v"], capture_output=True, text=True).stderr
        found["nginx"] = said.strip().rpartition("/")[2]
    given = {"vllm-router": "vllm-router", "LiteLLM": "litellm"}
    wanted = {name: package for name, package in given.items() if name in names}
    if wanted and (PEERS / "python").exists():
        ask = "import json, sys, importlib.metadata as m; "
        ask += "print(json.dumps([m.version(name) for name in sys.argv[1:]]))"
        command = [str(PEERS / "python"), "-c", ask, *wanted.values()]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found |= dict(zip(wanted, json.loads(said), strict=True))
    return found
