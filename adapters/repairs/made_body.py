"""Repairs of the bodies that cortex makes itself, known by their constant `system_fingerprint` "_".

Sources: CreateFullReturnJson in src/llama_engine.cc of cortex.llamacpp (2024-11 to 2025-05), and in
engine/extensions/local-engine/local_engine.cc of cortex.cpp (1.0.13, 2025-04, and later).
"""

from __future__ import annotations

from wellspoken.adapters.events import Event, Fault, Finish, Start, Text, Usage
from wellspoken.adapters.repairs.context import Context

_NO_FINGERPRINT = "_"
_ANSWER_LOST = Fault(
    400,
    "The 'logprobs' parameter is not supported by this version of the backend: it lost the "
    "answer, as cortex.cpp from 1.0.13 on does. Leave the parameter out, or set the backend's "
    "URL to the llama-server that it runs.",
    "invalid_request_error",
    "logprobs",
    "unsupported_parameter",
    retry=False,
)


def repair_made_body(events: list[Event], context: Context) -> list[Event]:
    """Return the events of a whole answer, put right if cortex made it; changes the list.

    It says "stop" however an answer ended. A count that has reached the limit is "length"
    (`finish_reason_stop_at_limit`), which is true too where the last token allowed was the end's. A
    stop string that is found in the text is a stop all the same, since its stage comes later. Asked
    for logprobs, cortex.cpp 1.0.13 reads llama-server's answer by keys that it has not, which
    leaves no text and no counts: a failure (`error_answer_lost`).
    """
    if not any(type(x) is Start and x.system_fingerprint == _NO_FINGERPRINT for x in events):
        return events
    usages = [x for x in events if type(x) is Usage]
    ends = [at for at, x in enumerate(events) if type(x) is Finish]
    if len(usages) != 1 or len(ends) != 1:
        return events
    usage, end = usages[0], events[ends[0]]
    said = any(type(x) is Text and x.text for x in events)
    if context.exchange.logprobs and usage.prompt == usage.completion == 0 and not said:
        context.note("error_answer_lost")
        return [_ANSWER_LOST]
    limit, count = context.exchange.max_tokens, usage.completion
    if limit is None or count is None or count < limit:
        return events
    if type(end) is Finish and end.reason == "stop":
        context.note("finish_reason_stop_at_limit")
        events[ends[0]] = Finish(end.choice, "length", end.alone)
    return events
