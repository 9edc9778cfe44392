"""llm-comply's cases of the Open Responses specification, asked of several gateways.

    python -m tests.live.clients.responses.comply     (`make comply` installs what it needs)

One llama.cpp with a scripted model is asked by itself, and through wellspoken, LiteLLM's proxy and
llm-rosetta's gateway, each in front of it. Written is a table, a row a case, and after it why each
that is no pass of wellspoken's is none.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.judge.servers import PEERS
from tests.bench.process import Program, run
from tests.live.clients.conftest import CLIENT_SECONDS, client_environment
from tests.live.clients.pages.servers import serving_llamacpp
from tests.live.clients.serving import running_proxy
from tests.models.agent import write_model
from tests.ports import free_port

MODEL = "agent"
KEY = "unused"
CLIENTS = Path(__file__).parents[4] / ".venv-clients" / "bin" / "python"
DIRECT, OURS = "llama.cpp", "wellspoken"
WORDS = {"passed": "passes", "failed": "**fails**", "skipped": "skipped"}


@dataclass(frozen=True)
class Verdict:
    """What became of a case: "passed", "failed" or "skipped", and why."""

    status: str
    reasons: tuple[str, ...] = ()


Verdicts = dict[str, Verdict]
"""By the case's id, in llm-comply's order."""


def ask_cases(python: Path, url: str, folder: Path) -> Verdicts:
    """Run llm-comply against the server whose /v1 is at `url`, and return what it found."""
    command = [str(python), "-m", "llm_comply.cli", "--format", "open-responses", "--json"]
    done = subprocess.run(
        [*command, "--base-url", f"{url}/v1", "--api-key", KEY, "--model", MODEL],
        cwd=folder,
        env=client_environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CLIENT_SECONDS,
        check=False,  # its status says that some failed
    )
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    return {
        one["id"]: Verdict(one["status"], tuple(one.get("errors", ())))
        for one in json.loads(done.stdout)["results"]
    }


def run_litellm(backend: str, folder: Path) -> Program:
    """Return LiteLLM's proxy, told to translate: else it passes on what llama.cpp itself says."""
    port = free_port()
    path = folder / "litellm.yaml"  # which JSON is, too
    model = {
        "model": f"openai/{MODEL}",
        "api_base": f"{backend}/v1",
        "api_key": KEY,
        "use_chat_completions_api": True,
    }
    path.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": model}]}))
    command = [str(PEERS / "litellm"), "--host", "127.0.0.1", "--port", str(port)]
    environment = {
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
    }
    return Program([*command, "--config", str(path)], f"http://127.0.0.1:{port}", environment)


def run_rosetta(backend: str, folder: Path) -> Program:
    """Return llm-rosetta's gateway, which translates to chat completions."""
    port = free_port()
    path = folder / "rosetta.jsonc"
    provider = {"type": "openai_chat", "base_url": f"{backend}/v1", "api_key": KEY}
    settings = {
        "providers": {"llamacpp": provider},
        "models": {MODEL: "llamacpp"},
        "server": {"host": "127.0.0.1", "port": port, "open_on_no_keys": True},
    }
    path.write_text(json.dumps(settings))
    command = [str(PEERS / "llm-rosetta-gateway"), "--config", str(path)]
    return Program(command, f"http://127.0.0.1:{port}", {"HOME": str(folder)})


PEER_PROGRAMS = {"LiteLLM": run_litellm, "llm-rosetta": run_rosetta}


@contextmanager
def serving(folder: Path, *, peers: bool) -> Iterator[Mapping[str, str]]:
    """Run llama.cpp and what stands in front of it until the block ends; gives base URLs."""
    with ExitStack() as stack:
        model = write_model(folder / "agent.gguf", context=8192)
        llamacpp = stack.enter_context(serving_llamacpp(model, context=8192))
        config = folder / "wellspoken.toml"
        backend = f'[[backend]]\nurl = "{llamacpp}"\nadapter = "llamacpp"\n'
        config.write_text(f'[server]\nlisten = "127.0.0.1:0"\n{backend}')
        ours = ("--config", str(config))
        found = {
            DIRECT: llamacpp,
            OURS: stack.enter_context(running_proxy(ours, folder / "wellspoken.log", {})),
        }
        if peers:
            for name, program in PEER_PROGRAMS.items():
                log = folder / f"{name}.log"
                child = stack.enter_context(run(program(llamacpp, folder), None, log))
                found[name] = child.url
        yield found


def draw_table(columns: Mapping[str, Verdicts]) -> str:
    """Return the table of all columns, with how many pass, and the reasons of wellspoken's."""
    names = list(columns)
    cases = list(columns[OURS])
    lines = [f"| case | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for case in cases:
        words = [WORDS[columns[name][case].status] for name in names]
        lines.append(f"| `{case}` | {' | '.join(words)} |")
    counts = [sum(one.status == "passed" for one in columns[name].values()) for name in names]
    lines.append(f"| of {len(cases)} | {' | '.join(map(str, counts))} |")
    lines.append("")
    for case, verdict in columns[OURS].items():
        if verdict.status != "passed":
            lines.append(f"`{case}`: {'; '.join(verdict.reasons[:2])}")
    return "\n".join(lines)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(folder, peers=True) as urls:
            columns = {name: ask_cases(CLIENTS, url, folder) for name, url in urls.items()}
    print(draw_table(columns))


if __name__ == "__main__":
    main()
