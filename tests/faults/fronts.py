"""What stands in front of the servers, each as somebody who means well configures it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench.judge.servers import PEERS, find_nginx
from tests.bench.process import Program, run
from tests.bench.store_proxy import proxy
from tests.faults.clients import MODEL
from tests.faults.servers import Server
from tests.ports import free_port

# Without `keepalive`: llama.cpp closes the connection of each stream and does not say so before. To
# nginx a request that meets this is a failure of the server, and the first takes it out for 10 s.
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
    upstream servers {{
        least_conn;
        {servers}
    }}
    server {{
        listen {listen};
        location / {{
            proxy_pass http://servers;
            proxy_http_version 1.1;
            proxy_buffering off;
            proxy_next_upstream error timeout http_502 http_503{more};
            add_header x-served-by $upstream_addr always;
        }}
    }}
}}
"""

Head = str
"""The head of an answer."""


@dataclass(frozen=True)
class Running:
    """A front that runs; `name_server` reads off an answer's head which server gave it."""

    url: str
    name_server: Callable[[Head], str]


Run = Callable[[Sequence[Server], Path], AbstractContextManager[Running]]
"""Runs a front of these servers until the block ends, its files in the folder; StartError."""


@dataclass(frozen=True)
class Front:
    """One kind of front: `family` is what it is asked for by; `missing` says why it cannot run."""

    name: str
    family: str
    run: Run
    missing: Callable[[], str] = lambda: ""


def wellspoken(tables: Mapping[str, Mapping[str, object]] | None = None, **keys: object) -> Run:
    """Return what runs wellspoken, with more `tables`, and `keys` of its backend."""

    @contextmanager
    def start(servers: Sequence[Server], folder: Path) -> Iterator[Running]:
        backend = {"name": "llama", "url": [server.url for server in servers], **keys}
        given = {"server": {"listen": "127.0.0.1:0"}, **(tables or {}), "[backend]": backend}
        lines = []
        for name, table in given.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(table[key])}" for key in table)]
        path = folder / "wellspoken.toml"
        path.write_text("\n".join(lines) + "\n")
        names = {f"llama/{n}": server.name for n, server in enumerate(servers, 1)}
        with proxy(path, None) as running:
            yield Running(running.url, _header("x-wellspoken-backend", names))

    return start


def nginx(more: str = "") -> Run:
    """Return what runs nginx: the server with the fewest connections, then the next one."""

    @contextmanager
    def start(servers: Sequence[Server], folder: Path) -> Iterator[Running]:
        names = {urlsplit(server.url).netloc: server.name for server in servers}
        listen = f"127.0.0.1:{free_port()}"
        listed = " ".join(f"server {address};" for address in names)
        path = folder / "nginx.conf"
        path.write_text(_NGINX.format(folder=folder, servers=listed, listen=listen, more=more))
        program = [find_nginx() or "nginx", "-p", str(folder), "-c", str(path)]
        with run(Program(program, f"http://{listen}"), None) as child:
            yield Running(child.url, _header("x-served-by", names))

    return start


@contextmanager
def litellm(servers: Sequence[Server], folder: Path) -> Iterator[Running]:
    """Run LiteLLM's proxy, which looks at its servers each 5 s and tries again three times."""
    port = free_port()
    path = folder / "litellm.yaml"  # which JSON is, too
    deployments = [
        {
            "model_name": MODEL,
            "litellm_params": {
                "model": f"openai/{MODEL}",
                "api_base": f"{server.url}/v1",
                "api_key": "none",
            },
            "model_info": {"id": server.name},
        }
        for server in servers
    ]
    settings = {"num_retries": 3, "retry_after": 0, "allowed_fails": 3, "cooldown_time": 5}
    looks = {"background_health_checks": True, "health_check_interval": 5}
    given = {
        "model_list": deployments,
        "router_settings": {"routing_strategy": "least-busy", "timeout": 60, **settings},
        "general_settings": {**looks, "enable_health_check_routing": True},
    }
    path.write_text(json.dumps(given))
    environment = {
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "HEALTH_CHECK_TIMEOUT_SECONDS": "5",
    }
    command = [str(PEERS / "litellm"), "--host", "127.0.0.1", "--port", str(port)]
    program = Program([*command, "--config", str(path)], f"http://127.0.0.1:{port}", environment)
    names = {server.name: server.name for server in servers}
    with run(program, None, folder / "litellm.log") as child:
        yield Running(child.url, _header("x-litellm-model-id", names))


def _header(name: str, names: Mapping[str, str]) -> Callable[[Head], str]:
    """Return what finds the server's name by a header's value; where it lists several, the last."""
    pattern = re.compile(rf"(?im)^{name}: *(?:.*, )?(\S+?)\r?$")

    def find(head: Head) -> str:
        found = pattern.search(head)
        return names.get(found[1], "") if found else ""

    return find


def _no_nginx() -> str:
    return "" if find_nginx() else "nginx is not installed"


def _no_litellm() -> str:
    return (
        ""
        if (PEERS / "litellm").exists()
        else "LiteLLM is not installed (make .venv-peers/.installed)"
    )


FRONTS = (
    Front("wellspoken", "wellspoken", wellspoken()),
    Front('wellspoken, retry = "unstarted"', "wellspoken", wellspoken(retry="unstarted")),
    Front("nginx", "nginx", nginx(), _no_nginx),
    Front("nginx, non_idempotent", "nginx", nginx(" non_idempotent"), _no_nginx),
    Front("LiteLLM", "litellm", litellm, _no_litellm),
)
