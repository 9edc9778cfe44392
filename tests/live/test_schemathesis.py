"""The published document against the proxy that it describes, in front of a real llama.cpp.

schemathesis draws requests that the document allows, and requests that it does not, and holds the
answers to the document: no 5xx, every body and event of a stream in its schema, every header that
is promised, every invalid request refused. It runs in a virtual environment of its own, which
`make check` creates (tests/live/openapi-tools.txt), with a fixed seed.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.examples import examples
from tests.openapi.document import PASSED
from wellspoken.adapters.requests.embeddings import EMBEDDINGS

ROOT = Path(__file__).parents[2]
FILE = ROOT / "proxy" / "endpoints" / "openapi.json"
BIN = ROOT / ".venv-openapi" / "bin"
SECONDS = 1200  # that end a hang; a machine that is not busy needs 25

pytestmark = pytest.mark.skipif(
    not (ROOT / ".venv-openapi" / ".installed").exists(),
    reason="no schemathesis here: make .venv-openapi/.installed",
)

Document = dict[str, Any]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def proxy(storing: str) -> str:
    return storing


def described() -> Document:
    """Return the document without what answers as the backend does, whatever that is."""
    document: Document = json.loads(FILE.read_bytes())
    for path in {*PASSED, *EMBEDDINGS} & document["paths"].keys():
        del document["paths"][path]
    for schema in document["components"]["schemas"].values():
        schema.get("properties", {}).pop("oai_compat", None)
    return document


async def run(folder: Path, *argv: str) -> tuple[int, str]:
    """Run one of the tools; return its exit status and what it says."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode()


async def judged(proxy: str, folder: Path, document: Document, *options: str) -> tuple[int, str]:
    """Let schemathesis ask the proxy what `document` says."""
    (folder / "document.json").write_text(json.dumps(document))
    argv = (str(BIN / "schemathesis"), "run", "document.json", "--url", proxy, "--no-color")
    steady = ("--seed", "11", "--generation-database", "none", "--continue-on-failure")
    return await run(folder, *argv, *steady, *options)


async def test_the_document_is_valid(tmp_path: Path) -> None:
    validator = str(BIN / "openapi-spec-validator")
    broken = described()
    del broken["paths"][CHAT]["post"]["responses"]
    broken["paths"][TEXT]["post"]["parameters"][0] = {"in": "header"}
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    _, said = await run(tmp_path, validator, str(FILE), "broken.json")
    assert f"{FILE}: OK" in said and "broken.json: OK" not in said, said
    assert "broken.json: Validation Error" in said


async def test_the_proxy_does_what_the_document_says(proxy: str, tmp_path: Path) -> None:
    # What no schema can say, such as best_of >= n, is refused: hence no positive_data_acceptance.
    status, said = await judged(
        proxy, tmp_path, described(),
        "--phases", "examples,coverage,fuzzing", "--max-examples", str(examples(20)),
        "--exclude-checks", "positive_data_acceptance,ignored_auth",
    )  # fmt: skip
    assert status == 0, said[-20_000:]


async def test_what_the_document_allows_is_accepted(proxy: str, tmp_path: Path) -> None:
    document = described()
    schemas = document["components"]["schemas"]
    del schemas["CompletionRequest"]["properties"]["best_of"]  # not below n
    tools = schemas["ChatRequest"]["properties"]["tools"]["items"]
    tools["anyOf"] = tools["anyOf"][:1]  # llama.cpp has no custom ones
    for form in schemas["CompletionRequest"]["properties"]["prompt"]["anyOf"]:
        for items in (form.get("items", {}), form.get("items", {}).get("items", {})):
            if "maximum" in items:
                items["maximum"] = 400  # the model's vocabulary
    plain_responses(schemas)
    retrieval = document["paths"]["/v1/responses/{response_id}"]["get"]
    retrieval["parameters"] = [
        each for each in retrieval["parameters"] if each["name"] != "starting_after"
    ]  # not without stream
    status, said = await judged(
        proxy, tmp_path, document, "--phases", "examples,coverage", "--mode", "positive",
        "--checks", "positive_data_acceptance,not_a_server_error",
    )  # fmt: skip
    assert status == 0, said[-20_000:]


def plain_responses(schemas: dict[str, Any]) -> None:
    """Leave out of a request for a response what leads nowhere here, though it is well-formed.

    That is what is continued, a list without items, a call without its output, and what
    llama.cpp's small model cannot take.
    """
    request, items = schemas["ResponseRequest"], schemas["InputItem"]
    del request["properties"]["previous_response_id"]
    request["anyOf"] = request["anyOf"][:1]
    request["properties"]["input"]["anyOf"][1]["minItems"] = 1
    tools = request["properties"]["tools"]["items"]
    tools["anyOf"] = tools["anyOf"][:1]
    items["anyOf"] = items["anyOf"][:1]
    message = schemas["InputMessage"]
    for role in message["anyOf"]:
        content = role["properties"]["content"]
        content["anyOf"] = content["anyOf"][:1]
    del request["properties"]["tool_choice"]


def a_key_too_many(document: Document) -> None:
    document["components"]["schemas"]["ChatCompletion"]["required"].append("service_tier")


def a_header_that_is_not_there(document: Document) -> None:
    answer = document["paths"][CHAT]["post"]["responses"]["200"]
    answer["headers"]["x-nowhere"] = {"required": True, "schema": {"type": "string"}}


def an_event_of_another_shape(document: Document) -> None:
    document["components"]["schemas"]["CompletionChunk"]["required"].append("usage")
    content = document["paths"][TEXT]["post"]["requestBody"]["content"]
    content["application/json"]["example"]["stream"] = True


def a_bound_too_tight(document: Document) -> None:
    body = document["components"]["schemas"]["CompletionRequest"]
    body["properties"]["n"]["maximum"] = 5
    body["properties"] = {name: body["properties"][name] for name in ("model", "n")}
    body["properties"]["prompt"] = {"type": "string"}  # all that it may be takes long to draw
    del document["paths"][TEXT]["post"]["parameters"]
    del body["allOf"]


async def test_what_is_wrong_in_a_document_is_found_out(proxy: str, tmp_path: Path) -> None:
    """Each fault has words of its own, and one process, which takes seconds to start, says all."""
    document = described()
    for break_it in (a_key_too_many, a_header_that_is_not_there, an_event_of_another_shape):
        break_it(document)
    status, out = await judged(
        proxy, tmp_path, document, "--phases", "examples", "--include-path", CHAT,
        "--include-path", TEXT, "--exclude-checks", "positive_data_acceptance,ignored_auth",
    )  # fmt: skip
    assert status == 1, out[-5_000:]
    for said in ("Response violates schema", "x-nowhere", "SSE event violates schema"):
        assert said in out, out[-5_000:]


async def test_a_bound_that_the_proxy_does_not_hold_is_found_out(
    proxy: str, tmp_path: Path
) -> None:
    document = described()
    a_bound_too_tight(document)
    status, out = await judged(
        proxy, tmp_path, document, "--phases", "coverage", "--include-path", TEXT,
        "--checks", "negative_data_rejection",
    )  # fmt: skip
    assert status == 1 and "Schema-violating request accepted" in out, out[-5_000:]
