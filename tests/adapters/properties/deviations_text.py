"""What can be wrong with a completions answer: each function spoils a `TextCase` in one way.

The shapes are those that real servers were seen to send; which ones is told in the contract.
"""

from __future__ import annotations

import math
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.adapters.properties.deviations_logprobs import byte_level
from tests.adapters.properties.deviations_logprobs import piece as raw_piece
from tests.adapters.properties.generators import Draw, Token, sometimes
from tests.adapters.properties.generators_text import (
    Answer,
    TextCase,
    TextDeviation,
    part,
    respell,
    spelled,
    usage_of,
)
from tests.conformance import Row

REASONS: dict[str, list[Any]] = {
    "stop": ["eos_token", "eos", "stop_sequence", {"type": "stop"}, "STOP", "word"],
    "length": ["max_tokens", "limit", "model_length", {"type": "length", "length": 7}],
    "content_filter": ["safety", "content_filtered", "Content-Filter"],
}
VENDOR = ["stop_reason", "matched_stop", "prompt_logprobs", "token_ids", "metrics", "timings"]
JUNK = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.just([1]), st.just({"a": None}))


def scored_choices(case: TextCase) -> list[dict[str, Any]]:
    """Return the choices that hold arrays."""
    return [choice for choice in case.choices() if choice.get("logprobs")]


# --- envelope, reasons, usage ----------------------------------------------------------------


def envelope(draw: Draw, case: TextCase) -> None:
    """Chat's id (llama.cpp), or none; another clock, a path for a model."""
    ids = st.sampled_from(["chatcmpl-B9MBs8CjcvOU2jLn", "", "0", "cmpl-A1", "k3XbG"])
    same, first = sometimes(draw), draw(ids)
    created = draw(st.sampled_from([518437, 0, 1_741_570_283_000, 1_741_570_284.5]))
    for one in case.parts:
        one["id"] = first if same else draw(ids)
        one["created"] = created
        one["model"] = draw(st.sampled_from(["_", "/models/x.gguf", ""]))
        one["object"] = draw(st.sampled_from(["text_completion", "chat.completion", ""]))


def strip_keys(draw: Draw, case: TextCase) -> None:
    """Keys that other servers leave out."""
    for one in case.parts:
        if sometimes(draw):
            del one["object"]
    for choice in case.choices():
        if len(case.answers) == 1 and sometimes(draw):
            del choice["index"]
        if choice["logprobs"] is None and sometimes(draw):
            del choice["logprobs"]
        if case.streamed and choice["finish_reason"] is None and sometimes(draw):
            del choice["finish_reason"]


def vendor_keys(draw: Draw, case: TextCase) -> None:
    """Keys nobody asked for, and nulls."""
    for place in [*case.parts, *case.choices()]:
        for key in draw(st.lists(st.sampled_from(VENDOR), max_size=2)):
            place[key] = draw(JUNK)
    for one in case.parts:
        for key in ("system_fingerprint", "service_tier"):
            if sometimes(draw):
                one[key] = None


def finish_spelling(draw: Draw, case: TextCase) -> None:
    """The reason in other words, stop_reason beside it."""
    for choice in case.choices():
        if choice["finish_reason"] is not None:
            choice["finish_reason"] = draw(st.sampled_from(REASONS[choice["finish_reason"]]))
            choice["stop_reason"] = draw(st.sampled_from([None, "###", 128009]))


def finish_blank(draw: Draw, case: TextCase) -> None:
    """A reason that is none on every chunk before the last (TGI)."""
    nothing = draw(st.sampled_from(["", "null", "none"]))
    for choice in case.choices():
        if choice["finish_reason"] is None:
            choice["finish_reason"] = nothing


def finish_missing(draw: Draw, case: TextCase) -> None:
    """No reason at all; the end is clean."""
    for choice in case.choices():
        ends = choice["finish_reason"] is not None
        choice["finish_reason"] = draw(st.sampled_from([None, "", "a new one"][: 2 + ends]))
    case.told = False


def finish_with_text(draw: Draw, case: TextCase) -> None:
    """The reason on the last chunk with text."""
    for index, answer in enumerate(case.answers):
        own = [p for p in case.parts if p["choices"] and p["choices"][0]["index"] == index]
        own[-2]["choices"][0]["finish_reason"] = answer.reason
        case.parts.remove(own[-1])


def usage_misplaced(draw: Draw, case: TextCase) -> None:
    """Usage per chunk, on the last chunk with a reason, or nowhere."""
    where = draw(st.sampled_from(["each", "finish", "never"]))
    case.parts = [one for one in case.parts if one["choices"]]
    for n, one in enumerate(case.parts):
        one.pop("usage", None)
        last = n == len(case.parts) - 1
        if where == "each" or (where == "finish" and last):
            one["usage"] = usage_of(case)
    if where == "never":
        case.usage = None


def done_missing(draw: Draw, case: TextCase) -> None:
    """No [DONE] behind the reasons."""
    case.done = False


def chunks_joined(draw: Draw, case: TextCase) -> None:
    """Chunks of several choices at once, each of them once in a chunk."""
    joined: list[dict[str, Any]] = []
    for one in case.parts:
        last = joined[-1] if joined else None
        if last and last["choices"] and one["choices"] and sometimes(draw):
            there = {choice["index"] for choice in last["choices"]}
            if one["choices"][0]["index"] not in there:
                last["choices"] += one["choices"]
                continue
        joined.append({**one, "choices": [*one["choices"]]})
    case.parts = joined


def choices_out_of_order(draw: Draw, case: TextCase) -> None:
    """Choices that come in any order."""
    if not case.streamed:
        case.parts[0]["choices"] = draw(st.permutations(case.parts[0]["choices"]))
        return
    order = draw(st.permutations(range(len(case.answers))))
    by_choice: dict[int, list[dict[str, Any]]] = {n: [] for n in order}
    for one in case.parts:
        if one["choices"]:
            by_choice[one["choices"][0]["index"]].append(one)
    rest = [one for one in case.parts if not one["choices"]]
    case.parts = [one for n in order for one in by_choice[n]] + rest


# --- logprobs --------------------------------------------------------------------------------


def entry(token: Token, **more: Any) -> dict[str, Any]:
    """Return a token as a chat entry."""
    top = [
        {"token": data.decode("utf-8", "backslashreplace"), "bytes": list(data), "logprob": value}
        for data, value in token.top
    ]
    name = token.data.decode("utf-8", "backslashreplace")
    own = {"token": name, "bytes": list(token.data), "logprob": token.logprob}
    return {**more, **own, "top_logprobs": top}


def chat_shaped(draw: Draw, case: TextCase) -> None:
    """Chat's logprobs and id on the completions endpoint (llama.cpp), perhaps with token ids."""
    at = [0] * len(case.answers)
    ids = sometimes(draw)
    for choice in scored_choices(case):
        n, size = choice["index"], len(choice["logprobs"]["tokens"])
        tokens = case.answers[n].all[at[n] : at[n] + size]
        more = [{"id": 100 + m} if ids else {} for m in range(size)]
        content = [entry(token, **m) for token, m in zip(tokens, more, strict=True)]
        choice["logprobs"] = {"content": content}
        at[n] += size
    for answer in case.answers:
        answer.rows = [
            Row(t.logprob, tuple(v for _, v in t.top), names=tuple(d for d, _ in t.top))
            for t in answer.all
        ]
    for one in case.parts:
        one["id"] = "chatcmpl-B9MBs8CjcvOU2jLn"


def offsets_from_zero(draw: Draw, case: TextCase) -> None:
    """text_offset counted from the answer's start, or from each chunk's, or none."""
    how = draw(st.sampled_from(["answer", "chunk", "absent"]))
    for choice in scored_choices(case):
        lp = choice["logprobs"]
        base = len(case.answers[choice["index"]].prompt) if not case.echo else 0
        if how == "chunk":
            base = lp["text_offset"][0]
        lp["text_offset"] = [offset - base for offset in lp["text_offset"]]
        if how == "absent":
            del lp["text_offset"]


def top_missing(draw: Draw, case: TextCase) -> None:
    """top_logprobs null, absent, or null at each token."""
    how = draw(st.sampled_from(["null", "absent", "nulls"]))
    for choice in scored_choices(case):
        lp = choice["logprobs"]
        lp["top_logprobs"] = [None] * len(lp["tokens"]) if how == "nulls" else None
        if how == "absent":
            del lp["top_logprobs"]
    for answer in case.answers:
        answer.rows = [Row(row.logprob) for row in answer.rows]


def sampled_missing(draw: Draw, case: TextCase) -> None:
    """A sampled token that is none of the best is not among the alternatives."""
    for choice in scored_choices(case):
        lp = choice["logprobs"]
        for name, top in zip(lp["tokens"], lp["top_logprobs"], strict=True):
            if top is not None and top[name] == min(top.values()):
                del top[name]
    for answer in case.answers:
        rows = []
        for row in answer.rows:
            values = [value or 0.0 for value in row.alternatives]
            if values and row.logprob == min(values):
                values.remove(row.logprob)
            rows.append(Row(row.logprob, tuple(values)))
        answer.rows = rows


def placeholders(draw: Draw, case: TextCase) -> None:
    """token_id:N for every text (vLLM with --return-tokens-as-token-ids), which says so nowhere."""
    assume(not any("token_id:" in answer.text for answer in case.answers))
    numbers: dict[bytes, int] = {}

    def name(data: bytes) -> str:
        return f"token_id:{numbers.setdefault(data, len(numbers))}"

    respell(case, lambda answer: [name(token.data) for token in answer.all], name)


def held_back(answer: Answer) -> list[str]:
    """Return the tokens' texts where a character comes with the last of its parts."""
    found, held = [], b""
    for token in answer.all:
        held += token.data
        try:
            text, held = held.decode(), b""
        except UnicodeDecodeError:
            text = ""
        found.append(text)
    return found


def replaced(draw: Draw, case: TextCase) -> None:
    """U+FFFD or "" for a part of a character, the whole of it with the last part (vLLM).

    Of the alternatives only one may be no text: their names are lost, and a name has one number.
    """
    part_of = draw(st.sampled_from(["\ufffd", ""]))
    respell(
        case,
        lambda answer: [text or part_of for text in held_back(answer)],
        lambda data: spelled(data) if spelled(data).startswith("bytes:") else data.decode(),
    )


def escapes(draw: Draw, case: TextCase) -> None:
    r"""The bytes of a part of a character as \xc3, without "bytes:"."""

    def name(data: bytes) -> str:
        return spelled(data).removeprefix("bytes:")

    respell(case, lambda answer: [name(token.data) for token in answer.all], name)


def raw_bpe(draw: Draw, case: TextCase) -> None:
    """Byte-level BPE's own spelling. "Ã" alone begins as its own raw spelling does."""
    assume(not any("Ã" in answer.text for answer in case.answers))
    respell(case, lambda answer: [byte_level(token.data) for token in answer.all], byte_level)


def sentencepiece(draw: Draw, case: TextCase) -> None:
    """Sentencepiece's own spelling (vLLM 0.3.3)."""
    respell(case, lambda answer: [raw_piece(token.data) for token in answer.all], raw_piece)


def eos_entry(draw: Draw, case: TextCase) -> None:
    """The end-of-text token's own entry behind the text."""
    names = ["</s>", "<|im_end|>"]
    if all(answer.reason != "length" for answer in case.answers):
        names.append("")  # else it may be a part of a character
    name = draw(st.sampled_from(names))
    for index, answer in enumerate(case.answers):
        last = [c for c in scored_choices(case) if c["index"] == index][-1]["logprobs"]
        last["tokens"].append(name)
        last["token_logprobs"].append(-0.5)
        last["top_logprobs"].append({name: -0.5})
        last["text_offset"].append(len(answer.prompt) + len(answer.text))
        answer.rows = [*answer.rows, Row(-0.5, (-0.5,))]
        answer.drops = {"logprobs_eos_entry": 1}


def probabilities(draw: Draw, case: TextCase) -> None:
    """exp(logprob) in its place; the sampled ones are above 0.001."""
    for choice in scored_choices(case):
        lp = choice["logprobs"]
        lp["token_logprobs"] = [v if v is None else math.exp(v) for v in lp["token_logprobs"]]
        lp["top_logprobs"] = [
            top and {name: math.exp(v) for name, v in top.items()} for top in lp["top_logprobs"]
        ]
    for answer in case.answers:
        answer.rows = [
            Row(
                None if row.logprob is None else math.exp(row.logprob),
                tuple(math.exp(v or 0.0) for v in row.alternatives),
            )
            for row in answer.rows
        ]


def unknown_values(draw: Draw, case: TextCase) -> None:
    """NaN, -Infinity, the lowest float32 among the values: unknown all."""
    odd = st.sampled_from([math.nan, -math.inf, -3.4028234663852886e38, -9999.0, "keep", "keep"])
    rows: dict[int, list[Row]] = {n: [] for n in range(len(case.answers))}
    for choice in scored_choices(case):
        lp = choice["logprobs"]
        for place, name in enumerate(lp["tokens"]):
            top = lp["top_logprobs"][place]
            if top is None:
                rows[choice["index"]].append(Row(None))
                continue
            before = rows[choice["index"]]
            opens = case.echo and all(row.logprob is None for row in before)  # test_reported.py's
            for one in top:
                value = "keep" if opens else draw(odd)
                top[one] = top[one] if value == "keep" else value
            lp["token_logprobs"][place] = top[name]
            rows[choice["index"]].append(Row(top[name], tuple(top.values())))
    for n, answer in enumerate(case.answers):
        answer.rows = rows[n]


def entries_early(draw: Draw, case: TextCase) -> None:
    """A chunk for each token: of a part of a character the entry comes without text."""
    parts = []
    for one in case.parts:
        choice = one["choices"][0] if one["choices"] else None
        if choice is None or not choice["logprobs"]:
            parts.append(one)
            continue
        lp, text, sent = choice["logprobs"], choice["text"], 0
        late = sometimes(draw)
        size = len(lp["tokens"])
        for n in range(size):
            single = {key: [column[n]] for key, column in lp.items()}
            # offsets count whole characters: what is whole before the next token is sent now
            whole = lp["text_offset"][n + 1] - lp["text_offset"][0] if n + 1 < size else len(text)
            now = "" if late and n + 1 < size else text[sent:whole]
            sent += len(now)
            parts.append(part([{**choice, "text": now, "logprobs": single}], **_beside(one)))
    case.parts = parts


def _beside(one: dict[str, Any]) -> dict[str, Any]:
    return {key: one[key] for key in ("usage",) if key in one}


TEXT_DEVIATIONS: dict[str, TextDeviation] = {
    "envelope": TextDeviation(envelope),
    "strip_keys": TextDeviation(strip_keys),
    "vendor_keys": TextDeviation(vendor_keys),
    "finish_spelling": TextDeviation(finish_spelling),
    "finish_blank": TextDeviation(finish_blank, streamed=True),
    "finish_missing": TextDeviation(finish_missing),
    "finish_with_text": TextDeviation(finish_with_text, streamed=True),
    "usage_misplaced": TextDeviation(usage_misplaced, streamed=True),
    "done_missing": TextDeviation(done_missing, streamed=True),
    "chunks_joined": TextDeviation(chunks_joined, streamed=True),
    "choices_out_of_order": TextDeviation(choices_out_of_order),
    "chat_shaped": TextDeviation(chat_shaped, scored=True, echo=False),
    "offsets_from_zero": TextDeviation(offsets_from_zero, scored=True),
    "top_missing": TextDeviation(top_missing, scored=True),
    "sampled_missing": TextDeviation(sampled_missing, scored=True),
    "placeholders": TextDeviation(placeholders, scored=True),
    "replaced": TextDeviation(replaced, scored=True),
    "escapes": TextDeviation(escapes, scored=True),
    "raw_bpe": TextDeviation(raw_bpe, scored=True),
    "sentencepiece": TextDeviation(sentencepiece, scored=True, plain=True, pieces=True),
    "eos_entry": TextDeviation(eos_entry, scored=True, echo=False),
    "probabilities": TextDeviation(probabilities, scored=True, low=-6.0),
    "unknown_values": TextDeviation(unknown_values, scored=True),
    "entries_early": TextDeviation(entries_early, scored=True, streamed=True),
}
# what may be wrong at once with what
TEXT_TOGETHER = [
    ("chat_shaped", "envelope", "finish_spelling"),
    ("offsets_from_zero", "sampled_missing", "vendor_keys"),
    ("replaced", "usage_misplaced", "finish_blank"),
    ("entries_early", "done_missing", "finish_spelling"),
    ("eos_entry", "finish_with_text", "strip_keys"),
    ("raw_bpe", "top_missing", "choices_out_of_order"),
    ("unknown_values", "chunks_joined", "envelope"),
]
