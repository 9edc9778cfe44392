"""What the values of a response's request may be: OpenAI's bounds, and those that protect backends.

Source: OpenAI's types (openai-python 3.57, `response_create_params`). `strict` is a route's
`bounds = "openai"`. What chat requests have too is bounded alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wellspoken.adapters.requests import chat_bounds, errors
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.responses.input_items import check_lengths
from wellspoken.adapters.requests.responses.response_request import FormatOptions, ResponseRequest
from wellspoken.adapters.requests.responses.response_tools import check_names

INTEGERS: Final[tuple[tuple[str, int, int | None], ...]] = (
    ("top_logprobs", 0, 20),
    ("max_output_tokens", 16, None),
    ("max_tool_calls", 1, None),
)
SEED: Final = (("seed", -chat_bounds.INT64, chat_bounds.INT64 - 1),)
TRUNCATIONS: Final = ("auto", "disabled")
VERBOSITIES: Final = ("low", "medium", "high")
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SUMMARIES: Final = ("auto", "concise", "detailed")
CONTEXTS: Final = ("auto", "all_turns")
MODES: Final = ("standard",)


def check_response(request: ResponseRequest, strict: bool) -> None:
    """Raise `RequestError` 400 for the first value out of bounds; none with oai_compat false."""
    if request.oai_compat is False:
        return
    if strict and not request.model:
        raise errors.no_model()
    chat_bounds.numbers(request, "integer", SEED)
    chat_bounds.metadata(request.metadata, strict=strict)
    chat_bounds.stop(request, chat_bounds.MAX_STOPS if strict else chat_bounds.MAX_STOPS_ANY)
    for param, value, known, always in _words(request):
        if value is not None and (strict or always) and value not in known:
            raise errors.wrong_value(param, value, known)
    _format(request, strict)
    if strict:
        _openai(request)


def find_refusal(request: ResponseRequest) -> RequestError | None:
    """Return what OpenAI would refuse a request for."""
    try:
        check_response(request, strict=True)
    except RequestError as error:
        return error.with_traceback(None)  # which would hold the whole request
    return None


def _openai(request: ResponseRequest) -> None:
    chat_bounds.numbers(request, "integer", INTEGERS)
    chat_bounds.numbers(request, "decimal", chat_bounds.DECIMALS)
    if request.stream_options is not None and not request.stream:
        raise errors.not_allowed("stream_options", "'stream' is true")
    if request.logit_bias is not None:
        chat_bounds.logit_bias(request.logit_bias)
    identifier = request.safety_identifier
    if identifier is not None and len(identifier) > chat_bounds.MAX_KEY:
        raise errors.too_long("safety_identifier", "string", chat_bounds.MAX_KEY, len(identifier))
    check_names(request.offer)
    check_lengths(request.items)


def _words(request: ResponseRequest) -> Iterator[tuple[str, str | None, tuple[str, ...], bool]]:
    """Yield each value that is one of a few words: `param`, value, the words, whether always."""
    yield "truncation", request.truncation, TRUNCATIONS, True
    if request.text is not None:
        yield "text.verbosity", request.text.verbosity, VERBOSITIES, False
    given = request.reasoning
    if given is not None:
        yield "reasoning.effort", given.effort, EFFORTS, False
        yield "reasoning.summary", given.summary, SUMMARIES, True
        yield "reasoning.generate_summary", given.generate_summary, SUMMARIES, True
        yield "reasoning.context", given.context, CONTEXTS, True
        yield "reasoning.mode", given.mode, MODES, True


def _format(request: ResponseRequest, strict: bool) -> None:
    wanted: FormatOptions | None = request.text.format if request.text is not None else None
    if wanted is None:
        return
    known = chat_bounds.FORMATS
    if wanted.type is None:
        raise errors.missing("text.format.type", f"It is one of {', '.join(known)}.")
    if wanted.type not in known:
        raise errors.wrong_value("text.format.type", wanted.type, known)
    if wanted.type != "json_schema":
        return
    if strict or not wanted.name:
        chat_bounds.check_name(wanted.name, "text.format.name")
    if wanted.schema is None:
        raise errors.missing("text.format.schema", "Send a JSON schema.")
