"""Inspect's evaluations have every choice and its logprobs; the servers alone make them fail."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.live.clients.conftest import CLIENT_SECONDS, CLIENTS, client_environment
from tests.live.clients.pages.conftest import shown
from tests.live.clients.pages.servers import Servers
from tests.models.tiny import TEXT

LEGACY, ABORTED = "vllm/0.3.3-legacy-stop", "vllm/0.32-finish-abort"
MODELS = {
    "local": ("my-model", LEGACY, ABORTED),  # behind the proxy
    "llamacpp": ("tiny",),
    "replay": (LEGACY, ABORTED),
}
Log = dict[str, Any]


@pytest.fixture(scope="module")
def logs(
    servers: Servers, environment_as_given: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Log]:
    """The logs that the guide's command wrote, by model; it is given all of MODELS at once."""
    folder = tmp_path_factory.mktemp("inspect")
    [program] = shown("inspect.md", "python", servers.proxy, anywhere=True)
    [command] = shown("inspect.md", "sh", servers.proxy)
    (folder / "greeting.py").write_text(program)
    models = [f"openai-api/{kind}/{name}" for kind, names in MODELS.items() for name in names]
    assert command.endswith(" --model openai-api/local/my-model\n")
    more = "--display none --log-format json --log-dir logs --max-retries 0 --temperature 0"
    line = command.replace("openai-api/local/my-model", f"{','.join(models)} {more}")
    binaries = Path(environment_as_given[CLIENTS]).parent
    environment = client_environment(folder)
    subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env=environment
        | {"PATH": f"{binaries}:{environment['PATH']}"}
        | {"LLAMACPP_BASE_URL": f"{servers.llamacpp}/v1", "LLAMACPP_API_KEY": "unused"}
        | {"REPLAY_BASE_URL": f"{servers.replay}/v1", "REPLAY_API_KEY": "unused"},
        stdin=subprocess.DEVNULL,
        timeout=CLIENT_SECONDS,
        check=False,  # its status says that some failed, as they should
    )
    found = [json.loads(file.read_text()) for file in (folder / "logs").glob("*.json")]
    return {log["eval"]["model"].removeprefix("openai-api/"): log for log in found}


def choices(log: Log) -> list[Log]:
    """Return the choices of the only sample's answer."""
    assert log["status"] == "success"
    [sample] = log["samples"]
    return list(sample["output"]["choices"])


def text_of(choice: Log) -> str:
    """Return the text that a choice's logprobs have the bytes of."""
    return b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]).decode()


def test_each_choice_has_its_text_and_logprobs(logs: dict[str, Log]) -> None:
    log = logs["local/my-model"]
    found = choices(log)
    assert [choice["message"]["content"] for choice in found] == [TEXT] * 3
    assert [text_of(choice) for choice in found] == [TEXT] * 3
    assert {len(entry["top_logprobs"]) for entry in found[0]["logprobs"]["content"]} == {2}
    assert log["samples"][0]["scores"]["includes"]["value"] == "C"


def test_llamacpp_alone_has_fewer_slots(logs: dict[str, Log]) -> None:
    log = logs["llamacpp/tiny"]
    assert log["status"] == "error"
    assert "1 <= value <= 2, but got 3" in log["error"]["message"]


def test_an_old_vllms_logprobs(logs: dict[str, Log]) -> None:
    alone, *_ = choices(logs[f"replay/{LEGACY}"])
    assert alone["message"]["content"] == " Hello world\n" and "logprobs" not in alone
    for choice in choices(logs[f"local/{LEGACY}"]):
        numbers = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert numbers == [-0.1, -4.0, -0.2] and text_of(choice) == " Hello world\n"


def test_an_aborted_answer_is_no_answer(logs: dict[str, Log]) -> None:
    [alone] = choices(logs[f"replay/{ABORTED}"])
    assert alone["message"]["content"] == "Paris"
    behind = logs[f"local/{ABORTED}"]
    assert behind["status"] == "error" and "InternalServerError" in behind["error"]["message"]
