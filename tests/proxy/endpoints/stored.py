"""What the tests of the API over stored completions share: captures, a proxy, and questions.

Constructed: the answer is a chat completion as `adapters/writers` writes it (numbers in every
spelling that JSON has), the request what openai-python 3.52 sends with `store=True`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from yarl import URL

from tests.fakes.upstream import Upstream
from tests.openapi.stored_schema import ChatCompletionList
from tests.postgres import Server
from tests.proxy.conftest import CHAT, Proxy, StartProxy, envelope
from wellspoken.proxy.store.rows import Capture, Row, row_of

Json = dict[str, Any]
Storing = Callable[..., Awaitable[Proxy]]
CREATED = 1_760_000_000
SQLITE = pytest.mark.parametrize("storing", ["sqlite"], indirect=True)
"""For what is the same whatever stores."""
ANSWER = (
    b'{"id":"%b","object":"chat.completion","created":%d,"model":"%b","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"%b","refusal":null},"logprobs":{"content":'
    b'[{"token":"a","logprob":-0.10000000000000000555,"bytes":[97],"top_logprobs":['
    b'{"token":"a","logprob":-1e-7,"bytes":[97]}]}],"refusal":null},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)


def id_of(number: int) -> str:
    return f"chatcmpl-{number:024x}"


def capture(
    number: int, *, owner: str = "", model: str = "m", text: str = "Hi", **request: Any
) -> Capture:
    """Return the capture of answer `number`, created so many seconds after the first."""
    id = id_of(number).encode()
    answer = ANSWER % (id, CREATED + number, model.encode(), text.encode())
    body = {"model": model, "messages": [{"role": "user", "content": f"say {number}"}], **request}
    return Capture(owner, f"req_{number}", answer, json.dumps({**body, "store": True}).encode())


def row(number: int = 1, **more: Any) -> Row:
    """Return what is stored of such a capture."""
    return row_of(capture(number, **more))


ONE = f"{CHAT}/{id_of(1)}"


@pytest.fixture(params=["sqlite", "postgres"])
def storing(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path, request: pytest.FixtureRequest
) -> Storing:
    """Start a proxy that stores: `await storing(capture(1), capture(2), limits={...})`.

    The captures are in its store, which is SQLite and PostgreSQL in turn.
    """
    table = {"path": str(tmp_path / "store.db")}
    if request.param == "postgres":
        server: Server = request.getfixturevalue("postgres")
        table = {"url": server.database(), "spool": str(tmp_path / "spool.db")}

    async def start(*captures: Any, **more: Any) -> Proxy:
        proxy = await start_proxy(upstream, store=table, **more)
        assert proxy.service.state.store is not None
        for one in captures:
            assert await proxy.service.state.store.add(one) == ""
        return proxy

    return start


async def ask(
    proxy: Proxy, method: str, path: str, body: Any = None, headers: Any = None
) -> tuple[int, Any]:
    """Return status and JSON of an answer to a path that is sent as it is spelled."""
    kind = {"Content-Type": "application/json"} if body is not None else {}
    data = None if body is None else json.dumps(body).encode()
    url = proxy.url("/").removesuffix("/") + path
    asked = proxy.session.request(
        method, URL(url, encoded=True), data=data, headers={**kind, **(headers or {})}
    )
    async with asked as response:
        return response.status, json.loads(await response.read())


async def refused(
    proxy: Proxy, status: int, method: str, path: str, body: Any = None, headers: Any = None
) -> Json:
    """Return the error object of an answer that has this status."""
    found, answer = await ask(proxy, method, path, body, headers)
    assert found == status, answer
    return envelope(json.dumps(answer))


async def ids(proxy: Proxy, query: str = "", headers: Any = None) -> list[int]:
    """Return the numbers of the completions on a page."""
    status, page = await ask(proxy, "GET", f"{CHAT}?{query}", headers=headers)
    assert status == 200, page
    msgspec.json.decode(json.dumps(page), type=ChatCompletionList)
    return [one["created"] - CREATED for one in page["data"]]


async def every_way_refused(proxy: Proxy, id: str, headers: Any = None) -> Json:
    """Check that a completion is a 404 for whoever asks, always the same; return its error."""
    path = f"{CHAT}/{quote(id)}"
    errors = [
        await refused(proxy, 404, method, path + more, body, headers)
        for method, more, body in (
            ("GET", "", None),
            ("GET", "/messages", None),
            ("POST", "", {"metadata": {}}),
            ("DELETE", "", None),
        )
    ]
    assert all(error == errors[0] for error in errors)
    assert errors[0]["code"] == "completion_not_found"
    return errors[0]
