"""promptfoo scores answers through the proxy that without it have no score, or a wrong one."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.live.clients.conftest import CLIENT_SECONDS, client_environment
from tests.live.clients.pages.conftest import shown
from tests.live.clients.pages.servers import Servers, serving_all
from tests.live.promptfoo.conftest import PROMPTFOO
from tests.models.tiny import TEXT

LEGACY, ABORTED = "vllm/0.3.3-legacy-stop", "vllm/0.32-finish-abort"
Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with serving_all(tmp_path_factory.mktemp("servers")) as found:
        yield found


@pytest.fixture(scope="module")
def results(
    servers: Servers, environment_as_given: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Results:
    """What the guide's command says of the guide's provider, and of others with its settings."""
    folder = tmp_path_factory.mktemp("promptfoo")
    [text] = shown("promptfoo.md", "yaml", servers.proxy)
    [command] = shown("promptfoo.md", "sh", servers.proxy, anywhere=True)
    configuration = yaml.safe_load(text)
    [provider] = configuration["providers"]
    for name, model in (("legacy", LEGACY), ("aborted", ABORTED)):
        for where, url in (("alone", servers.replay), ("behind", servers.proxy)):
            settings = provider["config"] | {"apiBaseUrl": f"{url}/v1"}
            other = {"id": f"openai:chat:{model}", "label": f"{name} {where}", "config": settings}
            configuration["providers"].append(other)
    (folder / "promptfooconfig.yaml").write_text(yaml.safe_dump(configuration))
    binaries = Path(environment_as_given[PROMPTFOO]) / "node_modules" / ".bin"
    environment = client_environment(folder)
    done = subprocess.run(
        [*shlex.split(command), "--output", "out.json"],
        cwd=folder,
        env=environment
        | {"PATH": f"{binaries}:{environment['PATH']}", "PROMPTFOO_CONFIG_DIR": str(folder)}
        | {"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CLIENT_SECONDS,
        check=False,  # its status says that some failed, as they should
    )
    assert (folder / "out.json").exists(), done.stdout + done.stderr
    found = json.loads((folder / "out.json").read_text())["results"]["results"]
    return {one["provider"].get("label") or one["provider"]["id"]: one for one in found}


def test_the_guides_configuration(results: Results) -> None:
    found = results["openai:chat:my-model"]
    assert found["success"] and found["response"]["output"] == TEXT
    assert len(found["response"]["logProbs"]) == 8
    assert [one["pass"] for one in found["gradingResult"]["componentResults"]] == [True, True]


def test_an_old_vllms_perplexity(results: Results) -> None:
    assert "do not return logProbs" in results["legacy alone"]["error"]
    behind = results["legacy behind"]
    assert behind["success"] and behind["response"]["logProbs"] == [-0.1, -4, -0.2]


def test_an_aborted_answer_is_no_answer(results: Results) -> None:
    assert "do not return logProbs" in results["aborted alone"]["error"]  # so it was taken
    assert "backend aborted the request" in results["aborted behind"]["error"]
