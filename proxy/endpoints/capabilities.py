"""GET /v1/capabilities: for each model, what becomes of every parameter and what passes through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from wellspoken.adapters.answer_schema import (
    Capabilities,
    Capability,
    EngineState,
    ModelCapabilities,
)
from wellspoken.adapters.servers.parameters import Table
from wellspoken.adapters.servers.response_rows import response_rows
from wellspoken.proxy.http.responses import Reply
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.upstream.listing import list_models
from wellspoken.proxy.upstream.target import Target

if TYPE_CHECKING:
    from wellspoken.engine.supervisor import Supervisor

_encode = msgspec.json.Encoder().encode


async def capabilities(call: Call) -> Reply:
    """List what each model's backend does itself, what the proxy does, and what is refused.

    An engine is neither asked nor woken for it. Raises UpstreamError if a sole backend without
    configured names does not answer, RequestError 503 for such an engine that never was there.
    """
    found = []
    client = call.routing.client
    for name in await list_models(call.state.router.targets):
        if client is not None and not client.may_use(name):
            continue
        target = call.state.router.find(name).servers[0]
        await target.ready()
        found.append(of_model(name, target))
    return call.reply(200, _encode(Capabilities(data=found)))


def of_model(name: str, target: Target) -> ModelCapabilities:
    """Return the capabilities of one model."""
    backend, detected = target.backend, target.detected
    return ModelCapabilities(
        id=name,
        backend=target.name,
        adapter=backend.name,
        server=detected.described if detected is not None else backend.title,
        bounds=target.settings.bounds,
        vendor=target.settings.vendor,
        chat_completions=_rows(backend.chat_table if backend.chat else {}),
        completions=_rows(backend.completion_table if backend.completions else {}),
        responses=target.settings.responses,
        response_parameters=_rows(_response_table(target)),
        endpoints=sorted(target.passes),
        engine=of_engine(target.engine) if target.engine is not None else None,
    )


def of_engine(engine: Supervisor) -> EngineState:
    """Return what the engine of a model is, which it is not asked again for."""
    facts = engine.facts
    return EngineState(
        state=engine.state,
        version=facts.version or None,
        context_length=facts.context or None,
        tool_parser=facts.tool_parser or None,
        reasoning_parser=facts.reasoning_parser or None,
    )


def _response_table(target: Target) -> Table:
    if target.settings.responses == "pass" or not target.backend.chat:
        return {}
    return response_rows(target.backend.chat_table)


def _rows(table: Table) -> dict[str, Capability]:
    return {
        name: Capability(how=row.how, key=row.key, note=row.note)
        for name, row in sorted(table.items())
    }
