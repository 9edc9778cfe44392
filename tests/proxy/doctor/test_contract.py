"""The doctor finds a fault where the Structs' own strict decoding fails, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.conforming import BODIES, USAGE
from tests.conforming_completions import BODIES as TEXT_BODIES
from tests.openapi.answer_schema import ErrorResponse
from tests.proxy.doctor.answers import EMBEDDED, FLAT, STREAM_SCORED
from wellspoken.adapters.answer_schema import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionUsage,
    CreateEmbeddingResponse,
)
from wellspoken.proxy.doctor.contract import find_faults

ODD: tuple[Any, ...] = (None, True, -1, 0.5, 10**12, "", "x", [], [None], {}, {"x": 1})
SWITCHED = "prompt_logprobs"  # what only a switch of the request adds, which no probe sets
ERROR = {"error": {"message": "No.", "type": "server_error", "param": None, "code": None}}
SAMPLES: list[tuple[type[msgspec.Struct], Any]] = [
    *((ChatCompletion, one.answer) for one in BODIES.values() if SWITCHED not in one.answer),
    *((Completion, sample.answer) for sample in TEXT_BODIES.values()),
    *((ChatCompletionChunk, chunk) for chunk in (*FLAT, *STREAM_SCORED)),
    (CompletionUsage, USAGE),
    (CreateEmbeddingResponse, EMBEDDED),
    (ErrorResponse, ERROR),
]


def is_decodable(value: Any, shape: type[msgspec.Struct]) -> bool:
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError:
        return False
    return True


def list_places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where something stands in a value, with its first item only of each list."""
    if isinstance(value, dict):
        for key in value:
            yield (*path, key)
            yield from list_places(value[key], (*path, key))
    elif isinstance(value, list) and value:
        yield from list_places(value[0], (*path, 0))


def mutants(value: Any) -> Iterator[Any]:
    """Yield the value with one place replaced, or missing, or with a key beside it."""
    packed = msgspec.msgpack.encode(value)  # to decode is the quickest copy
    for *path, last in list_places(value):
        for change in (*ODD, "missing", "beside"):
            changed = msgspec.msgpack.decode(packed)
            inner = changed
            for step in path:
                inner = inner[step]
            if change == "missing":
                del inner[last]
            elif change == "beside":
                inner["unheard_of"] = 1
            else:
                inner[last] = change
            yield changed


@pytest.mark.no_cover
@pytest.mark.parametrize(("shape", "sample"), SAMPLES)
def test_a_fault_is_found_where_strict_decoding_fails_and_nowhere_else(
    shape: type[msgspec.Struct], sample: Any
) -> None:
    assert is_decodable(sample, shape) == (not list(find_faults(sample, shape)))
    for mutant in mutants(sample):
        assert is_decodable(mutant, shape) == (not list(find_faults(mutant, shape))), mutant


def test_what_a_switch_of_the_request_adds_is_no_key_of_openais() -> None:
    answer = next(iter(BODIES.values())).answer | {"timings": {}, "prompt_logprobs": []}
    assert list(find_faults(answer, ChatCompletion)) == [
        "the answer has keys that are not OpenAI's: prompt_logprobs, timings"
    ]


def test_all_that_is_wrong_is_told_and_not_the_first_fault_alone() -> None:
    found = {"prompt_tokens": "5", "queue_time": 1, "prompt_tokens_details": None}
    assert list(find_faults(found, CompletionUsage, "usage")) == [
        "usage has keys that are not OpenAI's: queue_time",
        'prompt_tokens is "5", no whole number',
        "usage has no completion_tokens",
        "usage has no total_tokens",
        "usage has prompt_tokens_details null instead of leaving it out",
    ]
