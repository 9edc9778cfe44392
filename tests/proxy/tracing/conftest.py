"""A traced proxy, as most of these tests begin."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import Sampler

from tests.proxy.conftest import Proxy, StartProxy
from tests.proxy.tracing.traced import StartTraced, Traced


@pytest.fixture
def start_traced(start_proxy: StartProxy) -> StartTraced:
    """Start proxies with what they trace; the settings are those of `start_proxy`."""

    async def start(
        upstream: Any, sampler: Sampler | None = None, **settings: Any
    ) -> tuple[Proxy, Traced]:
        proxy = await start_proxy(upstream, **settings)
        return proxy, Traced(proxy, sampler)

    return start
