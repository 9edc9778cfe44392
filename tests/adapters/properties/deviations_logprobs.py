"""What can be wrong with an answer's logprobs: other values, other entries, other shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.adapters.properties.generators import STOP, Case, Draw, sometimes
from tests.conformance import Row


def each_item(case: Case, change: Callable[[dict[str, Any]], None]) -> None:
    """Apply a change to every entry and alternative."""
    for item in case.entries():
        change(item)
        for other in item["top_logprobs"]:
            change(other)


def probabilities(draw: Draw, case: Case) -> None:
    """exp(logprob) in its place; the sampled ones are above 0.001."""

    def change(item: dict[str, Any]) -> None:
        item["logprob"] = math.exp(item["logprob"])

    each_item(case, change)
    case.rows = [
        Row(math.exp(row.logprob or 0.0), tuple(math.exp(v or 0.0) for v in row.alternatives))
        for row in case.rows
    ]


def unknown_values(draw: Draw, case: Case) -> None:
    """Null, NaN, -Infinity, the lowest float32: unknown all."""
    odd = st.sampled_from([None, math.nan, -math.inf, -3.4028234663852886e38, -9999.0, "keep"])
    rows = []
    for item in case.entries():
        own = draw(odd)
        for one in (item, *item["top_logprobs"]):
            value = own if one["bytes"] == item["bytes"] else draw(odd)
            if value != "keep":
                one["logprob"] = value
        rows.append(Row(item["logprob"], tuple(one["logprob"] for one in item["top_logprobs"])))
    case.rows = rows


def unordered(draw: Draw, case: Case) -> None:
    """Alternatives in any order, and one more than were asked for."""
    rows = []
    for item, row in zip(case.entries(), case.rows, strict=True):
        top = item["top_logprobs"]
        if len(top) == case.k and sometimes(draw):
            low = min([-1.0, *(one["logprob"] for one in top)]) - 1.0
            top.append({"token": "¬¬", "bytes": list("¬¬".encode()), "logprob": low})
        row = Row(row.logprob, tuple(one["logprob"] for one in top))
        item["top_logprobs"] = draw(st.permutations(top))
        rows.append(row)
    case.rows = rows


def eos_entry(draw: Draw, case: Case) -> None:
    """The end-of-text token's own entry after the text."""
    forms: list[tuple[str, list[int] | None]] = [("</s>", list(b"</s>")), ("<|im_end|>", None)]
    if case.reason != "length":  # where a token without text may be a part of a character
        forms.append(("", []))
    form = draw(st.sampled_from(forms))
    value = {"token": form[0], "bytes": form[1], "logprob": -0.5}
    scored = [c for c in case.choices() if c["logprobs"]]
    scored[-1]["logprobs"]["content"].append({**value, "top_logprobs": [dict(value)][: case.k]})
    case.rows = [*case.rows, Row(-0.5, (-0.5,)[: case.k])]
    case.drops = {"logprobs_eos_entry": 1}


def stop_entries(draw: Draw, case: Case) -> None:
    """A stop string in the content and in the entries; the tokens end in it."""
    case.stops = [STOP]
    keep = case.text.index(STOP)
    case.text = case.text[:keep]
    size, kept = 0, 0
    for token in case.tokens:
        if size < len(case.text.encode()):
            kept += 1
        size += len(token.data)
    case.drops = {"logprobs_stop_entries": len(case.tokens) - kept}
    case.reason = "stop"
    for choice in case.choices():
        if choice["finish_reason"] is not None:
            choice["finish_reason"] = "stop"


def early_entries(draw: Draw, case: Case) -> None:
    """A chunk per token: a part of a character comes with no text, its entry at once (vLLM)."""
    parts = []
    for part in case.parts:
        choice = part["choices"][0] if part["choices"] else None
        if choice is None or not choice["logprobs"]:
            parts.append(part)
            continue
        held = b""
        for item in choice["logprobs"]["content"]:
            held += bytes(item["bytes"])
            try:
                delta, held = {"content": held.decode()}, b""
            except UnicodeDecodeError:
                delta = {}
            one = {**choice, "delta": delta, "logprobs": {"content": [item]}}
            parts.append({**part, "choices": [one]})
    case.parts = parts


# --- logprobs in other shapes ----------------------------------------------------------------


def without_parts(case: Case) -> list[str]:
    """Return the tokens' texts as llama-cpp-python shows them: parts of characters are lost."""
    return [token.data.decode("utf-8", "ignore") for token in case.tokens]


def held_back(case: Case) -> list[str]:
    """Return the tokens' texts as vLLM shows them: "", and all at the character's last token."""
    found, held = [], b""
    for token in case.tokens:
        held += token.data
        try:
            text, held = held.decode(), b""
        except UnicodeDecodeError:
            text = ""
        found.append(text)
    return found


def arrays(case: Case, names: list[str], name: Callable[[bytes], str], only_top: bool) -> None:
    """Put completions-shaped arrays in place of each choice's logprobs."""
    place, rows = 0, []
    for choice in case.choices():
        if not choice["logprobs"]:
            continue
        size = len(choice["logprobs"]["content"])
        tops, own = [], names[place : place + size]
        for token, text in zip(case.tokens[place : place + size], own, strict=True):
            top: dict[str, float] = {}
            for data, value in token.top:
                if data == token.data:
                    top[text] = value
                elif name(data) != text:  # another token in this one's name would be its number
                    top.setdefault(name(data), value)
            if only_top:  # the sampled token is always among them, and nothing says which it is
                top[text] = token.logprob
            tops.append(top)
            rows.append(Row(token.logprob, tuple(top.values()), inferred=only_top))
        found: dict[str, Any] = {"top_logprobs": tops}
        if not only_top:
            numbers = [t.logprob for t in case.tokens[place : place + size]]
            found |= {"tokens": own, "token_logprobs": numbers, "text_offset": [0] * size}
        choice["logprobs"] = found
        place += size
    case.rows = rows


def legacy_arrays(draw: Draw, case: Case) -> None:
    """The completions shape in a chat answer."""
    names = without_parts(case) if sometimes(draw) else held_back(case)
    arrays(case, names, lambda data: data.decode("utf-8", "ignore"), only_top=False)


def top_only(draw: Draw, case: Case) -> None:
    """vLLM <= 0.4.2 streamed: only top_logprobs, one token a chunk."""
    early_entries(draw, case)
    arrays(case, held_back(case), lambda data: data.decode("utf-8", "ignore"), only_top=True)


def byte_level(data: bytes) -> str:
    """Write bytes in the alphabet of byte-level BPE vocabularies: a printable character a byte."""
    clean = [*range(33, 127), *range(161, 173), *range(174, 256)]
    odd = [b for b in range(256) if b not in clean]
    return "".join(chr(b) if b in clean else chr(256 + odd.index(b)) for b in data)


def raw_bpe(draw: Draw, case: Case) -> None:
    """Byte-level BPE's own spelling in `token`, and no bytes (mlx-lm).

    "Ã" alone begins as its own raw spelling does, so nothing could tell the two apart.
    """
    assume("Ã" not in case.text)

    def change(item: dict[str, Any]) -> None:
        item["token"] = byte_level(bytes(item.pop("bytes")))

    each_item(case, change)


def piece(data: bytes) -> str:
    """Spell a sentencepiece piece: text with U+2581 for a space, a lone byte as <0x0A>."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "".join(f"<0x{b:02X}>" for b in data)
    return f"<0x{data[0]:02X}>" if text == "\n" else text.replace(" ", "▁")


def sentencepiece(draw: Draw, case: Case) -> None:
    """Sentencepiece's own spelling, in arrays (vLLM 0.3.3) or entries."""
    if sometimes(draw):
        arrays(case, [piece(t.data) for t in case.tokens], piece, only_top=False)
        return

    def change(item: dict[str, Any]) -> None:
        item["token"] = piece(bytes(item.pop("bytes")))

    each_item(case, change)


def replaced(draw: Draw, case: Case) -> None:
    """U+FFFD and its bytes for parts of characters; the whole comes with the last (vLLM)."""
    names = iter(held_back(case))
    rows = []
    for item, token in zip(case.entries(), case.tokens, strict=True):
        text = next(names) or draw(st.sampled_from(["\ufffd", ""]))
        item |= {"token": text, "bytes": list(text.encode())}
        for other, (data, _) in zip(item["top_logprobs"], token.top, strict=True):
            seen = text if data == token.data else data.decode("utf-8", "replace")
            if seen == text and data != token.data:
                seen += "x"  # not the sampled token, whose text here may be that of several
            other |= {"token": seen, "bytes": list(seen.encode())}
        rows.append(Row(token.logprob, tuple(value for _, value in token.top)))
    case.rows = rows


def placeholders(draw: Draw, case: Case) -> None:
    """token_id:N for a text; true bytes only beside the sampled token, if at all (vLLM)."""
    true = sometimes(draw)
    for n, item in enumerate(case.entries()):
        for m, other in enumerate(item["top_logprobs"]):
            other["token"] = f"token_id:{n if other['bytes'] == item['bytes'] else 100 + m}"
            other["bytes"] = list(other["token"].encode())
        item["token"] = f"token_id:{n}"
        if not true:
            item["bytes"] = list(item["token"].encode())
