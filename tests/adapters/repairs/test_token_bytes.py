"""Contract rule 7: `token` and `bytes` of a row say the same, and nothing that is not known."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from msgspec.structs import replace

from tests.answers import ask, bare, body, choice, completion, entry, lp, scored
from tests.examples import examples
from tests.replay import body as translate
from tests.replay import exchange, tokens
from wellspoken.adapters.events import Alternative, Entry
from wellspoken.adapters.exchange import Notes
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.token_bytes import settle
from wellspoken.adapters.tokens.table import TokenTable, spell
from wellspoken.adapters.tokens.vocabulary import Vocabulary, from_tiktoken_file

E_ACUTE = [0xC3, 0xA9]


def vocabulary(**ids: int) -> Vocabulary:
    """A vocabulary of these few tokens, and two that are parts of characters."""
    tokens = {**{text.encode(): number for text, number in ids.items()}, b"\xc3": 90, b"\xa9": 91}
    lines = [base64.b64encode(token) + b" %d" % number for token, number in tokens.items()]
    return from_tiktoken_file(b"\n".join(lines), special={"<|end|>": 99})


def settled(
    token: str,
    given: Any = ...,
    *,
    known: int | None = None,
    vocab: Vocabulary | None = None,
    top: list[Alternative] | None = None,
    **request: Any,
) -> tuple[Entry, bool, dict[str, int]]:
    """Settle one entry; `given` is what stands in `bytes`, absent where it is left out."""
    asked = exchange(ask(**request))
    if vocab is not None:
        asked = replace(asked, tokens=TokenTable(vocab))
    raw = Raw() if given is ... else Raw(json.dumps(given).encode())
    row = Entry(token, -1.0, raw, top or [], known if known is not None else UNSET)
    context = Context(asked)
    plain = settle([row], context)
    return row, plain, context.notes.counts


def numbers(row: Entry | Alternative) -> list[int] | None:
    found: list[int] | None = json.loads(bytes(row.bytes))
    return found


CASES: dict[str, tuple[str, Any, str, list[int] | None, dict[str, int]]] = {
    "in order": ("Hi", [72, 105], "Hi", [72, 105], {}),
    "no bytes": ("Hi", ..., "Hi", [72, 105], {"logprobs_bytes_missing": 1}),
    "null": ("Hi", None, "Hi", [72, 105], {"logprobs_bytes_missing": 1}),
    "empty": ("Hi", [], "Hi", [72, 105], {"logprobs_bytes_missing": 1}),
    "mistral.rs: a string": ("Hi", "Hi", "Hi", [72, 105], {"logprobs_bytes_string": 1}),
    "signed": ("é", [-61, -87], "é", E_ACUTE, {"logprobs_bytes_signed": 1}),
    "not bytes at all": ("Hi", [300], "Hi", [72, 105], {"logprobs_bytes_missing": 1}),
    "an object": ("Hi", {"a": 1}, "Hi", [72, 105], {"logprobs_bytes_missing": 1}),
    "a part, spelled as OpenAI does": ("\\xc3", [0xC3], "\\xc3", [0xC3], {}),
    "a part, upper case": ("\\xC3", [0xC3], "\\xc3", [0xC3], {"logprobs_token_respelled": 1}),
    "a part as U+FFFD": ("\ufffd", [0xC3], "\\xc3", [0xC3], {"logprobs_token_respelled": 1}),
    "a part without text": ("", [0xC3], "\\xc3", [0xC3], {"logprobs_token_respelled": 1}),
    "bytes are right, not the text": (
        "Ġis",
        [32, 105, 115],
        " is",
        [32, 105, 115],
        {"logprobs_token_respelled": 1},
    ),
    "U+FFFD, its own bytes": (
        "\ufffd",
        [239, 191, 189],
        "\ufffd",
        None,
        {"logprobs_bytes_unknown": 1},
    ),
    "U+FFFD alone": ("\ufffd", None, "\ufffd", None, {}),
    "an id, its bytes": ("token_id:7", [72], "H", [72], {"logprobs_token_id_text": 1}),
    "an id alone": ("token_id:7", None, "token_id:7", None, {}),
    "an id, its placeholder's bytes": (
        "token_id:7",
        list(b"token_id:7"),
        "token_id:7",
        None,
        {"logprobs_bytes_unknown": 1},
    ),
    "a text, its placeholder's bytes": ("Hi", list(b"token_id:7"), "Hi", [72, 105], {}),
    "a text like a placeholder, with a part": (
        "token_id:\\xc3",
        list(b"token_id:\xc3"),
        "token_id:\\xc3",
        list(b"token_id:\xc3"),
        {},
    ),
    "an escape of a whole character": ("\\xc3\\xa9", E_ACUTE, "\\xc3\\xa9", E_ACUTE, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_token_and_bytes_agree(name: str) -> None:
    token, given, wanted, data, repairs = CASES[name]
    row, plain, counts = settled(token, given)
    assert (row.token, numbers(row)) == (wanted, data)
    assert counts == repairs
    assert plain <= (data is not None and bytes(data) == row.token.encode())


def test_an_entry_in_order_is_plain() -> None:
    assert settled("Hi", [72, 105])[1]
    assert settled("Hi")[1]
    assert not settled("\\xc3", [0xC3])[1]


@pytest.mark.parametrize("name", CASES)
def test_an_alternative_is_settled_alike(name: str) -> None:
    token, given, wanted, data, repairs = CASES[name]
    raw = Raw() if given is ... else Raw(json.dumps(given).encode())
    row, _, counts = settled("x", [120], top=[Alternative(token, -1.0, raw)])
    assert (row.top_logprobs[0].token, numbers(row.top_logprobs[0])) == (wanted, data)
    assert counts == repairs


def test_an_asked_for_placeholder_keeps_its_name() -> None:
    """vLLM's return_tokens_as_token_ids: the client wants the ids."""
    row, _, counts = settled("token_id:7", [72], return_tokens_as_token_ids=True)
    assert (row.token, numbers(row)) == ("token_id:7", [72])
    assert counts == {}


@pytest.mark.parametrize(
    ("token", "known", "wanted", "data"),
    [
        ("token_id:5", None, "Hi", [72, 105]),
        ("token_id:90", None, "\\xc3", [0xC3]),
        ("", 91, "\\xa9", [0xA9]),
        ("\ufffd", 90, "\\xc3", [0xC3]),
    ],
)
def test_the_vocabulary_knows_by_id(token: str, known: int | None, wanted: str, data: Any) -> None:
    row, _, counts = settled(token, None, known=known, vocab=vocabulary(Hi=5))
    assert (row.token, numbers(row)) == (wanted, data)
    assert row.id is UNSET
    assert counts["logprobs_bytes_from_vocabulary"] == 1


@pytest.mark.parametrize(("token", "known"), [("token_id:77", None), ("\ufffd", 77), ("", None)])
def test_what_the_vocabulary_does_not_know_stays_null(token: str, known: int | None) -> None:
    row, plain, counts = settled(token, None, known=known, vocab=vocabulary(Hi=5))
    assert (row.token, numbers(row), plain) == (token, None, False)
    assert "logprobs_bytes_from_vocabulary" not in counts


def test_the_entrys_own_bytes_come_before_the_vocabulary() -> None:
    row, _, counts = settled("token_id:5", [74], vocab=vocabulary(Hi=5))
    assert numbers(row) == [74]
    assert "logprobs_bytes_from_vocabulary" not in counts


def test_an_entrys_placeholder_among_its_alternatives_reads_as_it_does() -> None:
    top = [Alternative("token_id:5", -1.0), Alternative("token_id:6", -2.0)]
    row, _, _ = settled("token_id:5", [72, 105], top=top)
    assert [x.token for x in row.top_logprobs] == ["Hi", "token_id:6"]
    assert numbers(row.top_logprobs[0]) == [72, 105]


@pytest.mark.parametrize("token", ["<|im_end|>", "</s>", "<eos>"])
def test_a_control_tokens_null_bytes_stay_where_the_backend_says_so(token: str) -> None:
    row, _, counts = settled("x", [120], top=[Alternative(token, -1.0, Raw(b"null"))])
    assert (row.top_logprobs[0].token, numbers(row.top_logprobs[0])) == (token, None)
    assert counts == {}


@pytest.mark.parametrize("given", [..., None, list(b"<|end|>")])
def test_a_control_tokens_bytes_are_null_where_the_vocabulary_says_so(given: Any) -> None:
    raw = Raw() if given is ... else Raw(json.dumps(given).encode())
    top = [Alternative("<|end|>", -1.0, raw), Alternative("token_id:99", -2.0)]
    row, _, _ = settled("x", [120], vocab=vocabulary(Hi=5), top=top)
    assert [numbers(x) for x in row.top_logprobs] == [None, None]
    assert row.top_logprobs[0].token == "<|end|>"


def test_a_control_token_without_the_key_has_its_text() -> None:
    row, _, counts = settled("x", [120], top=[Alternative("</s>", -1.0)])
    assert numbers(row.top_logprobs[0]) == list(b"</s>")
    assert counts == {"logprobs_bytes_missing": 1}


def test_ids_go_and_order_comes() -> None:
    top = [Alternative("a", -3.0, id=1), Alternative("b", -1.0, id=2), Alternative("c", -2.0)]
    row, _, counts = settled("b", [98], known=2, top=top)
    assert [x.token for x in row.top_logprobs] == ["b", "c", "a"]
    assert row.id is UNSET and all(x.id is UNSET for x in row.top_logprobs)
    assert counts["logprobs_unordered"] == 1 and counts["logprobs_entry_id"] == 1


def test_equal_values_keep_their_order() -> None:
    top = [Alternative("a", -1.0), Alternative("b", -1.0), Alternative("c", -1.0)]
    row, _, counts = settled("x", [120], top=top)
    assert [x.token for x in row.top_logprobs] == ["a", "b", "c"]
    assert "logprobs_unordered" not in counts


def test_distinct_tokens_that_print_alike_are_both_kept() -> None:
    rows = [
        {"token": "\ufffd", "bytes": [0xC3], "logprob": -2.0},
        {"token": "\ufffd", "bytes": [0xE2], "logprob": -3.0},
    ]
    given = completion(
        choice(
            "x", logprobs={"content": [{**entry("x", -1), "top_logprobs": rows}], "refusal": None}
        )
    )
    said = body(given, scored(5))
    assert said.tops == [[("\\xc3", -2.0), ("\\xe2", -3.0)]]


def test_an_alternative_of_unknown_text_is_blank() -> None:
    top = [{"token": "\ufffd", "logprob": -2.0, "bytes": None}]
    lp = {"content": [{**entry("x", -1), "top_logprobs": top}], "refusal": None}
    said = body(completion(choice("x", logprobs=lp)), scored(5))
    assert said.entries[0]["top_logprobs"] == [{"token": "", "logprob": -2.0, "bytes": None}]
    assert said.repairs == {"logprobs_alternative_blank": 1}


@settings(max_examples=examples(200), deadline=None, database=None)
@given(
    st.text(max_size=6), st.one_of(st.none(), st.binary(max_size=6).map(list), st.text(max_size=3))
)
def test_any_row_ends_true_or_unknown(token: str, given: Any) -> None:
    try:
        token.encode()
    except UnicodeEncodeError:
        return
    row, plain, _ = settled(token, given)
    data = numbers(row)
    if data is None:
        assert not plain
        return
    assert "\ufffd" not in row.token or bytes(data).decode(errors="ignore").count("\ufffd")
    assert row.token in (spell(bytes(data)), "".join(f"\\x{byte:02x}" for byte in data))
    assert plain <= (bytes(data) == row.token.encode())


def test_notes_are_of_this_answer_alone() -> None:
    first, second = Context(exchange(ask())), Context(exchange(ask()))
    first.note("x")
    assert (first.notes.counts, second.notes.counts) == ({"x": 1}, {})
    assert isinstance(first.notes, Notes)


def test_asked_for_token_ids_stay_with_a_vocabulary() -> None:
    given = completion(choice("Paris", logprobs=lp(bare("token_id:1", -0.25))))
    request = scored(return_tokens_as_token_ids=True)
    raw = json.dumps(given).encode()
    outcome = translate(request, 200, "application/json", raw, tokens=tokens({"Paris": 1}))
    (row,) = json.loads(outcome.body)["choices"][0]["logprobs"]["content"]
    assert (row["token"], row["bytes"]) == ("token_id:1", list(b"Paris"))
