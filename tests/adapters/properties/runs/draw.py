"""One whole answer, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.adapters.properties.runs.chunks import cut_chunks, is_thought
from tests.adapters.properties.runs.model import Case, Form, Shape, Shown, Token
from tests.adapters.properties.runs.texts import PROMPTS, cut_anywhere
from tests.adapters.properties.runs.tokens import Made, Plan, make, score
from tests.adapters.properties.runs.ways import WAYS, is_whole, show

STREAMS: tuple[Form, ...] = ("aligned", "early", "held", "grouped", "split")
TELLING = frozenset({"openai", "escaped", "bytes", "llamacpp", "llamacpp-replaced"})
"""Ways that tell each token's bytes, and need nothing undone for it."""
LOOSE = (
    "finish-with-text", "eos-with-finish", "empty-lists", "no-refusal", "no-role", "offset-zero",
    "offset-absent", "bytes-split", "content-null",
)  # fmt: skip
"""Habits of servers that are other rules' subjects."""
SHORT = 32  # bytes of reasoning
FINISH = {"eos": "stop", "none": "stop", "stop": "stop"}


def draw_case(seed: int) -> Case:
    """Draw the answer of a seed: always the same."""
    dice = random.Random(seed)
    while True:
        plan = draw_plan(dice)
        made = make(dice, plan)
        tokens = score(dice, plan, made)
        shown = show(dice, plan.way, tokens, whole=made.whole)
        tokens, content = _place(tokens, shown, made)
        if is_decidable(plan, tokens, shown):
            break
    if plan.arrays:
        shown = [_distinct(token, one) for token, one in zip(tokens, shown, strict=True)]
    tokens = _forgive(plan, tokens, shown)
    if made.reasoning is not None:
        mine = [t.data for n, t in enumerate(tokens) if is_thought(tokens, n)]
        made.reasoning = b"".join(mine).decode() or None
    loose = tuple(name for name in LOOSE if dice.random() < 0.15)
    finish = FINISH.get(plan.end, "length")
    if made.call is not None and finish == "stop":
        finish = "tool_calls"
    chunks = () if plan.form == "body" else cut_chunks(dice, plan, made, tokens, content)
    return Case(
        seed=seed,
        way=plan.way,
        shape=plan.shape,
        form=plan.form,
        arrays=plan.arrays,
        k=plan.k,
        tokens=tuple(tokens),
        shown=tuple(shown),
        content=content,
        reasoning=made.reasoning,
        call=made.call,
        finish=finish,
        stops=made.stops,
        prompt=dice.choice(PROMPTS),
        chunks=tuple(chunks),
        kinds=plan.kinds,
        loose=loose,
    )


def draw_plan(dice: random.Random) -> Plan:
    """Draw what kind of answer it is, of kinds that can be told from what the server shows."""
    way = dice.choices(list(WAYS), [found.weight for found in WAYS.values()])[0]
    found = WAYS[way]
    shape: Shape = "completions"
    if found.shapes == ("chat",) or (len(found.shapes) == 2 and dice.random() < 0.7):
        shape = "chat"
    form: Form = dice.choice(STREAMS) if dice.random() < 0.6 else "body"
    if way in TELLING and dice.random() < 0.05:
        form = "late"
    arrays = shape == "completions" or (len(found.shapes) == 2 and dice.random() < 0.25)
    reasoning = markup = "none"
    if shape == "chat" and way != "placeholders" and form != "late":
        reasoning = dice.choices(("none", "hidden", "same", "shown"), (6, 2, 1, 2))[0]
        markup = dice.choices(("none", "CMC", "CM", "MC"), (7, 2, 1, 1))[0]
    # A token without text that is more than parts of a character owns text of which nothing tells
    # where it ends, among others of its kind.
    mixed = way in ("blank", "ignored")
    ends = ("eos", "none") if markup != "none" else tuple(ENDINGS)
    empty = markup == "none" and form != "late" and dice.random() < 0.06
    end = dice.choices(ends, [ENDINGS[name] for name in ends])[0]
    strip = dice.choices(("none", "one", "all"), (8, 1, 1))[0]
    return Plan(
        way=way,
        shape=shape,
        form=form,
        arrays=arrays,
        k=dice.randint(0, 3),
        cut=dice.choice([x for x in found.cuts if not mixed or x is not cut_anywhere]),
        most=dice.choices((3, 10, 25, 150), (6, 6, 2, 0.1))[0],
        reasoning=reasoning,
        markup=markup,
        end="eos" if empty and end in ("stop", "none", "length") else end,
        empty=empty,
        strip="none" if empty or form == "late" else strip,
        parts=shape == "chat" and not arrays,
    )


ENDINGS = {"eos": 5, "none": 4, "stop": 3, "length": 2, "cut-shown": 1, "cut-left": 1}


def is_decidable(plan: Plan, tokens: list[Token], shown: list[Shown]) -> bool:
    """Say whether the wire tells hidden reasoning from the content, and that text is held back.

    It does where a token closes the reasoning, or where one of each run of content can be no
    other's. Where text may be held back, that must be the first one: the text that comes first may
    be any token's that reads alike.
    """
    pairs = list(zip(tokens, shown, strict=True))
    if plan.form == "held" and not any(
        x.told and is_whole(x.told) for t, x in pairs if t.role == "C"
    ):
        return False  # nothing tells that it is
    if plan.form != "body" and plan.strip != "none" and _is_like_space(pairs):
        return False
    if plan.reasoning not in ("hidden", "same") or any(t.data == b"</think>" for t in tokens):
        return True
    held = plan.form == "held" or (plan.form != "body" and plan.end == "stop")
    if (held or _is_short(plan, pairs)) and not _is_alone(pairs):
        return False
    call = next((n for n, token in enumerate(tokens) if token.role == "M"), len(tokens))
    for run in (pairs[:call], pairs[call:]):
        told = [x.told for t, x in run if t.role == "C"]
        if told and not any(data is not None and is_whole(data) for data in told):
            return False
    return True


def _is_like_space(pairs: list[tuple[Token, Shown]]) -> bool:
    """Say whether white space that was stripped, and then the content, begin with parts alone.

    What of them the first text of a stream is, only its end would tell.
    """
    first = next((n for n, (token, _) in enumerate(pairs) if token.role == "C"), 0)
    before = [one.told is None for token, one in pairs[:first] if token.role == "P"]
    return any(before) and pairs[first][1].told is None


def _is_short(plan: Plan, pairs: list[tuple[Token, Shown]]) -> bool:
    """Say whether a stream's reasoning is no more than text that is held back."""
    return plan.form != "body" and sum(len(t.data) for t, _ in pairs if t.role == "R") <= SHORT


def _is_alone(pairs: list[tuple[Token, Shown]]) -> bool:
    """Say whether no other token reads like the content's first, or begins so."""
    told = next((one.told for token, one in pairs if token.role == "C"), None)
    if told is None or not told.strip():
        return False
    first = told.lstrip()[:1]
    if not first.isascii() and any(one.told is None for _, one in pairs):
        return False
    return sum((one.told or b"").lstrip().startswith(first) for _, one in pairs) == 1


def _distinct(token: Token, shown: Shown) -> Shown:
    """Leave one alternative of each name, as a map has, the sampled token's own before all."""
    top: dict[str, tuple[str, list[int] | str | None, float]] = {}
    for row in shown.top:
        if row[0] not in top or row[2] == token.logprob:
            top[row[0]] = row
    own = top.get(shown.name)
    if own is not None and own[2] != token.logprob:
        del top[shown.name]
    kept = tuple(row for row in shown.top if top.get(row[0]) is row)
    return replace(shown, top=kept)


def _place(tokens: list[Token], shown: list[Shown], made: Made) -> tuple[list[Token], str]:
    """Return the tokens with what they own of the content, and the content."""
    low, high = made.window
    data = b"".join(t.data for t in tokens if t.role in "CPE" and not t.control)
    content = data[low:high].decode("utf-8", "replace")
    found, at, real = [], 0, 0
    for token, one in zip(tokens, shown, strict=True):
        if token.role in "RM" or token.control:
            found.append(token)
            continue
        end = at + len(one.share)
        front, back = max(at, low), min(end, high)
        owned = one.share[front - at : back - at] if front < back else b""
        inside = max(real, low) < min(real + len(token.data), high)
        role = token.role if inside or token.role != "C" else "P"
        found.append(replace(token, owned=owned, start=max(front - low, 0), role=role))
        at, real = end, real + len(token.data)
    return found, content


def _forgive(plan: Plan, tokens: list[Token], shown: list[Shown]) -> list[Token]:
    """Let tokens be left out whose part of the content nothing on the wire shows.

    "###" in a server's answer that leaves out parts of characters may be b"\\xa9###", whose first
    byte ends the content's last character: who reads it takes it for the stop string alone.
    """
    if plan.way != "ignored":
        return tokens
    found = list(tokens)
    for n, (token, one) in enumerate(zip(tokens, shown, strict=True)):
        if token.role == "C" and len(token.owned) < len(token.data) and one.told is None:
            seen = token.owned.decode("utf-8", "ignore")
            if one.name and not seen:
                found[n] = replace(token, role="P")
    return found
