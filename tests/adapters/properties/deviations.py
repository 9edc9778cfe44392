"""What can be wrong with an answer: each function spoils a conforming `Case` in one way.

The shapes are those that real servers were seen to send; which ones is told in the contract.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tests.adapters.properties.deviations_logprobs import (
    early_entries,
    eos_entry,
    legacy_arrays,
    placeholders,
    probabilities,
    raw_bpe,
    replaced,
    sentencepiece,
    stop_entries,
    top_only,
    unknown_values,
    unordered,
)
from tests.adapters.properties.generators import STOP, Case, Deviation, Draw, sometimes, usage_of

REASONS: dict[str, list[Any]] = {
    "stop": ["eos_token", "eos", "stop_sequence", {"type": "stop", "matched": 2}],
    "length": ["max_tokens", "repetition", {"type": "length", "length": 7}],
    "tool_calls": ["tool_call", "stop"],
}
JUNK = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.just([1]), st.just({"a": None}))
VENDOR = ["timings", "stop_reason", "matched_stop", "token_ids", "metrics", "x y", "prompt_text"]


def strip_keys(draw: Draw, case: Case) -> None:
    """Keys that other servers leave out."""
    for part in case.parts:
        if sometimes(draw):
            part.pop("object")
    for choice in case.choices():
        if sometimes(draw):
            del choice["index"]
        if choice["logprobs"] is None:
            if sometimes(draw):
                del choice["logprobs"]
        elif sometimes(draw):
            del choice["logprobs"]["refusal"]
        if case.streamed and choice["finish_reason"] is None and sometimes(draw):
            del choice["finish_reason"]
    for message in case.messages():
        for key in ("refusal", "role"):
            if key in message and sometimes(draw):
                del message[key]
    for item in case.entries():
        if not item["top_logprobs"] and sometimes(draw):
            del item["top_logprobs"]
        clean = bytes(item["bytes"] or ()).decode("utf-8", "ignore") == item["token"]
        if clean and sometimes(draw):
            del item["bytes"]


def nulls(draw: Draw, case: Case) -> None:
    """Null where the key should be left out, and calls that are none."""
    for message in case.messages():
        for key in ("tool_calls", "function_call", "audio", "annotations", "reasoning_content"):
            if key not in message and sometimes(draw):
                message[key] = draw(st.sampled_from([None, []])) if key == "tool_calls" else None
        if case.streamed:
            for key in ("role", "content", "refusal"):
                if key not in message and sometimes(draw):
                    message[key] = None
    for part in case.parts:
        for key in ("system_fingerprint", "service_tier", "usage"):
            if key not in part and sometimes(draw):
                part[key] = None
    for found in (part.get("usage") for part in case.parts):
        if found and sometimes(draw):
            found["prompt_tokens_details"] = None


def vendor_keys(draw: Draw, case: Case) -> None:
    """Keys nobody asked for, anywhere but in the logprobs."""
    for place in [*case.parts, *case.choices(), *case.messages()]:
        for key in draw(st.lists(st.sampled_from(VENDOR), max_size=2)):
            place[key] = draw(JUNK)


def reasoning(draw: Draw, case: Case) -> None:
    """Reasoning under either of its names, or both."""
    message = case.messages()[1 if case.streamed else 0]
    case.reasoning = "Hm, so."
    both = ["reasoning", "reasoning_content"]
    for name in draw(st.sampled_from([both[:1], both[1:], both])):
        message[name] = case.reasoning


def finish_spelling(draw: Draw, case: Case) -> None:
    """The reason in other words."""
    for choice in case.choices():
        if choice["finish_reason"] is not None:
            choice["finish_reason"] = draw(st.sampled_from(REASONS[case.reason]))


def finish_everywhere(draw: Draw, case: Case) -> None:
    """A reason that is no reason on every chunk, and perhaps the real one beside text."""
    nothing = draw(st.sampled_from(["", "null"]))
    for choice in case.choices():
        if choice["finish_reason"] is None:
            choice["finish_reason"] = nothing
    if sometimes(draw):
        last = next(c for c in reversed(case.choices()) if c["finish_reason"] == case.reason)
        before = case.choices()[-2]
        before["finish_reason"] = case.reason
        part = next(p for p in case.parts if last in p["choices"])
        case.parts.remove(part)


def finish_missing(draw: Draw, case: Case) -> None:
    """No reason at all; the end is clean."""
    for choice in case.choices():
        ends = choice.get("finish_reason") is not None
        choice["finish_reason"] = draw(st.sampled_from([None, "", "a new one"][: 2 + ends]))
    # usage says that the limit was reached, where there is usage
    case.told = case.reason != "length" or case.include_usage or not case.streamed


def usage_misplaced(draw: Draw, case: Case) -> None:
    """Usage per chunk, on the finish chunk, or nowhere."""
    where = draw(st.sampled_from(["each", "finish", "never"]))
    case.parts = [part for part in case.parts if part["choices"]]
    for part in case.parts:
        part.pop("usage", None)
        ends = part["choices"][0]["finish_reason"] is not None
        if where == "each" or (where == "finish" and ends):
            part["usage"] = usage_of(case)
            if where == "each" and not ends:
                part["usage"] |= {"completion_tokens": 1, "total_tokens": 12}
    if where == "never":
        case.usage = None


def role_repeated(draw: Draw, case: Case) -> None:
    """A role in every delta, null in some."""
    for message in case.messages():
        message["role"] = draw(st.sampled_from(["assistant", "assistant", None]))


def envelope(draw: Draw, case: Case) -> None:
    """Another id per chunk, another clock, a path for a model."""
    same = sometimes(draw)
    ids = st.sampled_from(["", "0", "chatcmpl-A1", "cmpl-0123456789ab", "k3XbG"])
    for part in case.parts:
        part["id"] = "Zq81a" if same else draw(ids)
        part["created"] = draw(st.sampled_from([518437, 0, 1_741_570_283_000, 1_741_570_284.5]))
        part["model"] = draw(st.sampled_from(["_", "/models/x.gguf", ""]))
        part["object"] = draw(st.sampled_from(["chat.completion", "text_completion", ""]))


# --- calls -----------------------------------------------------------------------------------


def each_call(case: Case) -> list[dict[str, Any]]:
    """Return every call of every message."""
    return [call for message in case.messages() for call in message.get("tool_calls") or ()]


def calls_bare(draw: Draw, case: Case) -> None:
    """Calls without an index, id or type, or with empty ones.

    Of calls that are alike only their ids tell that none is another one said again.
    """
    functions = [call["function"] for call in each_call(case)]
    alike = any(one in functions[:n] for n, one in enumerate(functions))
    no_index = sometimes(draw)
    for call in each_call(case):
        if no_index:
            call.pop("index", None)
        for key in ("type",) if alike else ("id", "type"):
            how = draw(st.sampled_from(["keep", "drop", "null", "empty"]))
            if how == "drop":
                del call[key]
            elif how != "keep":
                call[key] = None if how == "null" else ""


def arguments_object(draw: Draw, case: Case) -> None:
    """Arguments as an object."""
    for call in each_call(case):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])


def calls_in_pieces(draw: Draw, case: Case) -> None:
    """Arguments in pieces, each repeating what was said before, or saying null."""
    parts = []
    for part in case.parts:
        found = part["choices"][0]["delta"].get("tool_calls") if part["choices"] else None
        if not found:
            parts.append(part)
            continue
        call = found[0]
        text = call["function"]["arguments"]
        middle = draw(st.integers(0, len(text)))
        again = draw(st.sampled_from([{}, {"id": None}, {"id": ""}, {"id": call["id"]}]))
        name = draw(st.sampled_from([{}, {"name": None}]))
        first = {**call, "function": {**call["function"], "arguments": text[:middle]}}
        second = {"index": call["index"], **again, "function": {**name, "arguments": text[middle:]}}
        for one in (first, second):
            choice = {**part["choices"][0], "delta": {"tool_calls": [one]}}
            parts.append({**part, "choices": [choice]})
    case.parts = parts


DEVIATIONS: dict[str, Deviation] = {
    "strip_keys": Deviation(strip_keys),
    "nulls": Deviation(nulls),
    "vendor_keys": Deviation(vendor_keys),
    "reasoning": Deviation(reasoning),
    "finish_spelling": Deviation(finish_spelling),
    "finish_everywhere": Deviation(finish_everywhere, streamed=True),
    "finish_missing": Deviation(finish_missing),
    "usage_misplaced": Deviation(usage_misplaced, streamed=True),
    "role_repeated": Deviation(role_repeated),
    "envelope": Deviation(envelope),
    "probabilities": Deviation(probabilities, scored=True, low=-6.0),
    "unknown_values": Deviation(unknown_values, scored=True),
    "unordered": Deviation(unordered, scored=True),
    "eos_entry": Deviation(eos_entry, scored=True),
    "stop_entries": Deviation(stop_entries, scored=True, plain=True, tail=STOP.encode()),
    "early_entries": Deviation(early_entries, scored=True, streamed=True),
    "legacy_arrays": Deviation(legacy_arrays, scored=True),
    "top_only": Deviation(top_only, scored=True, streamed=True, plain=True),
    "raw_bpe": Deviation(raw_bpe, scored=True),
    "sentencepiece": Deviation(sentencepiece, scored=True, plain=True, pieces=True),
    "replaced": Deviation(replaced, scored=True),
    "placeholders": Deviation(placeholders, scored=True),
    "calls_bare": Deviation(calls_bare, calls=True),
    "arguments_object": Deviation(arguments_object, calls=True),
    "calls_in_pieces": Deviation(calls_in_pieces, calls=True, streamed=True),
}
# what may be wrong at once with what
TOGETHER = [
    ("strip_keys", "nulls", "vendor_keys"),
    ("legacy_arrays", "envelope", "finish_spelling"),
    ("raw_bpe", "role_repeated", "usage_misplaced"),
    ("eos_entry", "strip_keys", "finish_missing"),
    ("early_entries", "vendor_keys", "finish_everywhere"),
    ("calls_bare", "arguments_object", "finish_spelling"),
    ("unordered", "nulls", "envelope"),
]
