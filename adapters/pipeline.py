"""The stages that an answer goes through, in their order."""

from __future__ import annotations

from collections.abc import Callable

from wellspoken.adapters.events import Event, Reasoning, Refusal, Text, ToolDelta
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.stages.echo import EchoStage
from wellspoken.adapters.stages.finish import FinishStage
from wellspoken.adapters.stages.order import OrderStage
from wellspoken.adapters.stages.recover import RecoverStage
from wellspoken.adapters.stages.stop import StopStage
from wellspoken.adapters.stages.tiling import EntryCounts, TilingStage
from wellspoken.adapters.stages.tool_calls import ToolCallStage
from wellspoken.adapters.stages.usage import UsageStage

Stage = Callable[[list[Event]], list[Event]]


def stages(exchange: Exchange) -> tuple[Stage, ...]:
    """Return the stages that this exchange needs, in order."""
    echo = (EchoStage(exchange),) if exchange.echo and not exchange.echoed else ()
    stop = (StopStage(exchange),) if exchange.stops else ()
    tiling = (TilingStage(exchange),) if exchange.logprobs else ()
    usage = UsageStage(exchange, tiling[0].counts if tiling else EntryCounts())
    leaks = exchange.kind == "chat" and (exchange.schemas or exchange.recover - {"tool_calls"})
    recover = (RecoverStage(exchange),) if leaks else ()
    return (
        *recover,
        ToolCallStage(exchange),
        *echo,
        *stop,
        *tiling,
        FinishStage(exchange),
        usage,
        OrderStage(exchange, merged=bool(echo)),
    )


def through(pipeline: tuple[Stage, ...], events: list[Event]) -> list[Event]:
    """Return what becomes of the events."""
    for stage in pipeline:
        events = stage(events)
    return events


def is_token(event: Event) -> bool:
    """Say whether an event brings something that the model said, or how likely that was."""
    if type(event) is Text or type(event) is Refusal:
        return bool(event.text or (event.lp is not None and event.lp.entries))
    if type(event) is Reasoning:
        return bool(event.text)
    return type(event) is ToolDelta and bool(event.arguments or event.name)
