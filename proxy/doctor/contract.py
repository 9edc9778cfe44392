"""The contract of a JSON answer: the Structs of what the proxy emits, and the rest of it.

`find_faults` holds a value against a Struct: keys, types and bounds. The other rules are what types
cannot say. Each yields what is wrong, in words for people. The sources are OpenAI's API reference
and what its SDKs and their users' code do with an answer; adapters/README.md lists who breaks
which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import UNSET, Struct, UnsetType, ValidationError, convert
from msgspec.structs import FieldInfo, fields

from wellspoken.adapters.answer_schema import CompletionUsage, ErrorBody
from wellspoken.proxy.doctor.probe import Lacks, ProbeContext, ProbeResponse, Wrong, plain, quote

REFUSALS = frozenset({400, 404, 405, 422, 501})
"""What a server answers to a request that it cannot do."""
DAY = 86_400
NOUNS = {
    "choices": "a choice",
    "message": "the message",
    "delta": "a delta",
    "content": "an entry of logprobs",
    "top_logprobs": "an alternative",
    "tool_calls": "a call",
    "data": "an item",
}
_KINDS: dict[Any, str] = {
    str: ", no text",
    int: ", no whole number",
    float: ", no number",
    list: ", no list",
    dict: ", no object",
}
_NOTHING: frozenset[str] = frozenset()


def find_faults(
    value: Any,
    shape: type[Struct],
    where: str = "the answer",
    *,
    unjudged: frozenset[str] = _NOTHING,
    optional: frozenset[str] = _NOTHING,
    extra: frozenset[str] | None = _NOTHING,
) -> Iterator[str]:
    """Yield how a JSON value differs from what the Struct allows, at any depth.

    `unjudged`: keys whose values may be anything; `optional`: those that may be missing, too.
    `extra`: more keys that may be there, None for any. A field of any type at all is what a switch
    of the request adds, and no probe sets one: it counts as a key that is not OpenAI's.
    """
    if not isinstance(value, dict):
        yield f"{where} is {quote(value)}{'' if value is None else _KINDS[dict]}"
        return
    known = _fields(shape)
    if extra is not None and (more := sorted(value.keys() - known.keys() - extra)):
        yield f"{where} has keys that are not OpenAI's: {plain(', '.join(more))}"
    for name, field in known.items():
        if name in optional:
            continue
        kinds = _alternatives(field.type)
        if name not in value:
            if _is_required(field):
                yield f"{where} has no {name}{', not even null' if None in kinds else ''}"
        elif (
            value[name] in (None, []) and not _is_required(field) and _mismatch(value[name], field)
        ):
            yield f"{where} has {name} {quote(value[name])} instead of leaving it out"
        elif name not in unjudged:
            more_rules: Any = {"unjudged": unjudged, "optional": optional, "extra": extra}
            yield from _faults_in(value[name], field, name, more_rules)


def check_field(answer: Mapping[str, Any], shape: type[Struct], name: str) -> Iterator[str]:
    """Yield how one field of an answer differs from the Struct's."""
    yield from _faults_in(answer.get(name), _fields(shape)[name], name, {})


@cache
def _fields(shape: type[Struct]) -> dict[str, FieldInfo]:
    return {field.name: field for field in fields(shape) if field.type is not Any}


def _faults_in(value: Any, field: FieldInfo, name: str, rules: Any) -> Iterator[str]:
    """Yield what is wrong with a field's value, and with the objects in it."""
    kinds = _alternatives(field.type)
    shapes = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Struct)]
    items = [get_args(kind)[0] for kind in kinds if get_origin(kind) is list]
    if value is None and None in kinds:
        return
    if shapes:
        yield from find_faults(value, shapes[0], NOUNS.get(name, name), **rules)
    elif isinstance(value, list) and items and issubclass(_base(items[0]), Struct):
        for item in value:
            yield from find_faults(item, items[0], NOUNS.get(name, f"an item of {name}"), **rules)
    elif error := _mismatch(value, field):
        yield f"{name} is {quote(value)}{_expectation(value, kinds) or error}"


def _alternatives(kind: Any) -> list[Any]:
    """Return the types of a union, None for null."""
    if get_origin(kind) is Annotated:
        return _alternatives(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [one for part in get_args(kind) for one in _alternatives(part)]
    return [None if kind is type(None) else kind]


def _base(kind: Any) -> type:
    found = _alternatives(kind)[0]
    return found if isinstance(found, type) else object


def _is_required(field: FieldInfo) -> bool:
    """Say whether an answer has to have the field: only what is UNSET may be left out."""
    return field.default is not UNSET


def _mismatch(value: Any, field: FieldInfo) -> str:
    """Return in brackets why a value is not of the field's type, "" where it is."""
    kinds = [kind for kind in get_args(field.type) if kind is not UnsetType]
    union = get_origin(field.type) in (Union, UnionType)
    try:
        convert(value, Union[tuple(kinds)] if union else field.type)  # noqa: UP007
    except ValidationError as error:
        return f" ({error})"
    return ""


def _expectation(value: Any, kinds: list[Any]) -> str:
    """Return in words what a field's value should be, "" where a bound is broken."""
    kind = next(one for one in kinds if one is not None)
    if get_origin(kind) is Literal:
        wanted = [str(one) for one in get_args(kind)]
        return f", not {wanted[0]}" if len(wanted) == 1 else f", none of {', '.join(wanted)}"
    base = get_origin(kind) or kind
    return "" if type(value) is base else _KINDS.get(base, "")


def is_int(value: object) -> bool:
    """Say whether a JSON value is a whole number, which true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def parse_object(data: bytes, what: str = "the answer") -> dict[str, Any]:
    """Return the JSON object in `data`. Raises Wrong, also for NaN and a key that is twice."""
    try:
        value = json.loads(
            data.decode(), parse_constant=_refuse_constant, object_pairs_hook=_refuse_repetition
        )
    except (ValueError, RecursionError) as error:
        raise Wrong(f"{what} is not JSON ({plain(str(error), 80)})") from error
    if not isinstance(value, dict):
        raise Wrong(f"{what} is no JSON object")
    return value


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _refuse_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def require_success(response: ProbeResponse, *, basic: bool = False) -> ProbeResponse:
    """Return a response of status 200 that is whole. Raises Wrong, and Lacks for a proper refusal.

    `basic`: what is asked for is no extra that a server may lack.
    """
    if response.failure:
        raise Wrong(response.failure)
    if response.status == 200:
        return response
    text = f"status {response.status}: {error_words(response.body)}"
    if basic or response.status not in REFUSALS:
        raise Wrong(text)
    wrong = list(check_error(response))
    if wrong:
        raise Wrong(f"{text} ({wrong[0]})")
    raise Lacks(text)


def read_body(response: ProbeResponse, *, basic: bool = False) -> dict[str, Any]:
    """Return the object of a response of status 200. Raises Wrong and Lacks."""
    return parse_object(require_success(response, basic=basic).body)


def error_words(data: bytes) -> str:
    """Return the words of an error, in whatever form, for people."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return plain(re.sub(rb"<[^>]*>", b" ", data).decode("utf-8", "replace")) or "an empty body"
    for key in ("error", "detail", "message"):
        if isinstance(value, dict) and value.get(key):
            value = value[key]
    return plain(value) if isinstance(value, str) else quote(value)


def list_choices(answer: Mapping[str, Any], kind: str = "message") -> list[dict[str, Any]]:
    """Return the choices, each an object with an object under `kind` ("": none). Raises Wrong."""
    choices = answer.get("choices")
    if not isinstance(choices, list):
        raise Wrong(f"choices is {quote(choices)}, no list")
    for choice in choices:
        if not isinstance(choice, dict):
            raise Wrong(f"a choice is {quote(choice)}, no object")
        if kind and not isinstance(choice.get(kind), dict):
            raise Wrong(f"{kind} is {quote(choice.get(kind))}, no object")
    return choices


def first_choice(response: ProbeResponse, kind: str = "message", *, basic: bool = False) -> Any:
    """Return the first choice of a body. Raises Wrong where there is none, and Lacks."""
    choices = list_choices(read_body(response, basic=basic), kind)
    if not choices:
        raise Wrong("there is no choice")
    return choices[0]


def content_of(choice: Mapping[str, Any]) -> str:
    """Return a choice's text, "" for none. Raises Wrong for what is no text."""
    content = choice["message"].get("content")
    if content is not None and not isinstance(content, str):
        raise Wrong(f"content is {quote(content)}, no text")
    return content or ""


def check_model(answer: Mapping[str, Any], context: ProbeContext) -> Iterator[str]:
    """Check that an answer names the model that was asked for."""
    if answer.get("model") != context.model:
        yield f"model is {quote(answer.get('model'))}, not the one that was asked for"


def check_created(
    answer: Mapping[str, Any], context: ProbeContext, key: str = "created"
) -> Iterator[str]:
    """Check that the time under this key is one, and now."""
    found = answer.get(key)
    if not isinstance(found, int) or not is_int(found) or abs(found - context.now) > DAY:
        yield f"{key} is {quote(found)}, not the present time in seconds since 1970"


def check_usage(found: Any, limit: int | None = None) -> Iterator[str]:
    """Check one usage object; `limit`: the most tokens that the answer may have."""
    yield from find_faults(found, CompletionUsage, "usage")
    counts: dict[str, Any] = found if isinstance(found, dict) else {}
    names = CompletionUsage.__struct_fields__[:3]
    numbers = [counts[name] for name in names if is_int(counts.get(name))]
    if len(numbers) < len(names):
        return
    prompt, completion, total = numbers
    if prompt < 1 or prompt + completion != total:
        yield f"usage does not add up: {prompt} + {completion} = {total}"
    elif limit is not None and completion > limit:
        yield f"usage counts {completion} tokens, but at most {limit} were asked for"


def check_error(response: ProbeResponse) -> Iterator[str]:
    """Check an error's body: OpenAI's envelope with its four keys."""
    if response.content_type != "application/json":
        yield f"the error's content type is {quote(response.content_type)}"
    try:
        value = parse_object(response.body, "the error")
    except Wrong as why:
        yield str(why)
        return
    if value.keys() != {"error"} or not isinstance(value["error"], dict):
        yield f"the error is not in {{'error': {{...}}}}: {quote(value)}"
        return
    for fault in find_faults(value["error"], ErrorBody, "the error"):
        yield fault if fault.startswith("the error") else f"the error's {fault}"
