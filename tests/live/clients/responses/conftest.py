"""OpenAI's clients ask /v1/responses of a proxy in front of llama.cpp; see `make live-clients`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import openai
import pytest

from tests.live.clients.conftest import CLIENTS
from tests.live.clients.responses.fronts import KEY, Fronts, serving_fronts

collect_ignore_glob = [] if os.environ.get(CLIENTS) else ["test_responses_*.py"]


@pytest.fixture(scope="session")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronts]:
    """The proxies, and what is behind them."""
    with serving_fronts(tmp_path_factory.mktemp("fronts")) as found:
        yield found


def connect(url: str, key: str = KEY) -> openai.OpenAI:
    """Return OpenAI's client, which is strict about what it gets."""
    return openai.OpenAI(
        base_url=f"{url}/v1",
        api_key=key,
        max_retries=0,
        timeout=60,
        _strict_response_validation=True,
    )


@pytest.fixture(params=["storing", "forgetting"])
def sdk(fronts: Fronts, request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    """The client of a proxy with a store, and of one that keeps responses in memory."""
    with connect(getattr(fronts, request.param)) as found:
        yield found


@pytest.fixture
def direct(fronts: Fronts) -> Iterator[openai.OpenAI]:
    """The client of llama.cpp itself."""
    with connect(fronts.llamacpp) as found:
        yield found
