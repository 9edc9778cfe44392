"""The oracle refuses what is wrong, the generator reaches every kind, and the product is right."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest

from tests.adapters.properties.runs.__main__ import examine
from tests.adapters.properties.runs.draw import draw_case
from tests.adapters.properties.runs.model import Case, Form
from tests.adapters.properties.runs.oracle import check
from tests.adapters.properties.runs.product import Output, translate
from tests.adapters.properties.runs.show import tell
from tests.adapters.properties.runs.ways import WAYS
from tests.conformance import Violation
from wellspoken.adapters.alignment import costs, cover, parts, placement

Rows = list[dict[str, Any]]
KINDS = (
    "eos", "none", "stop", "length", "cut-shown", "cut-left", "think-hidden", "think-same",
    "think-shown", "CMC", "CM", "MC", "empty", "strip-one", "strip-all",
)  # fmt: skip


def right(*words: str) -> Iterator[tuple[Case, Output]]:
    """Give answers of a kind with three tokens of content or more, in which nothing is wrong."""
    for seed in itertools.count():
        case = draw_case(seed)
        own = [token for token in case.tokens if token.role == "C"]
        if set(words) <= set(case.tag.split("/")) and len(own) > 2 and not case.arrays:
            output = translate(case)
            if not check(case, output):
                yield case, output


def rows_of(output: Output) -> Rows:
    """Return the entries that the client got."""
    found: Rows = output.answer["choices"][0]["logprobs"]["content"]
    return found


def drop(rows: Rows) -> None:
    del rows[1]


def swap(rows: Rows) -> None:
    rows[0], rows[1] = rows[1], rows[0]


def change(rows: Rows) -> None:
    rows[1]["logprob"] -= 0.5


def change_alternative(rows: Rows) -> None:
    row = next(row for row in rows if row["top_logprobs"])
    row["top_logprobs"][0]["logprob"] -= 0.0005


def forget_alternative(rows: Rows) -> None:
    next(row for row in rows if row["top_logprobs"])["top_logprobs"].pop()


def take_another(rows: Rows) -> None:
    row = next(r for r in rows if any(x["logprob"] != r["logprob"] for x in r["top_logprobs"]))
    other = next(x for x in row["top_logprobs"] if x["logprob"] != row["logprob"])
    row["logprob"] = other["logprob"]


def shift(rows: Rows) -> None:
    rows[1]["bytes"] = [*rows[1]["bytes"], rows[2]["bytes"][0]]
    rows[2]["bytes"] = rows[2]["bytes"][1:]


def double(rows: Rows) -> None:
    rows.insert(1, copy.deepcopy(rows[0]))


def lengthen(rows: Rows) -> None:
    rows[0]["bytes"] = [*rows[0]["bytes"], 120]


MUTANTS: dict[str, tuple[Callable[[Rows], None], str]] = {
    "an entry left out": (drop, "lost"),
    "two entries swapped": (swap, "lost"),
    "a number changed": (change, "number"),
    "another token's number": (take_another, "number"),
    "an alternative's number changed": (change_alternative, "number"),
    "an alternative left out": (forget_alternative, "number"),
    "bytes moved to the neighbour": (shift, "bytes"),
    "one entry twice": (double, "doubled"),
    "bytes before a known token": (lengthen, "anchor"),
    "bytes that are not the content's": (lengthen, "tiling"),
}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.parametrize("form", ["body", "aligned"])
def test_a_mutant_of_the_entries_is_refused_by_name(name: str, form: str) -> None:
    mutate, wanted = MUTANTS[name]
    able = ((case, output) for case, output in right("openai", form) if case.k)
    for case, output in itertools.islice(able, 5):
        mutate(rows_of(output))
        assert wanted in {wrong.name for wrong in check(case, output)}, tell(case, output, [])


@pytest.mark.parametrize("kind", ["think-hidden", "think-shown", "CMC"])
def test_an_entry_that_is_no_content_is_refused(kind: str) -> None:
    for case, output in itertools.islice(right("openai", "aligned", kind), 3):
        n = next(n for n, token in enumerate(case.tokens) if token.role in "RM")
        row = {**rows_of(output)[0], "logprob": case.tokens[n].logprob}
        rows_of(output).insert(0 if case.tokens[n].role == "R" else 1, row)
        assert "extra" in {wrong.name for wrong in check(case, output)}


def put(key: str, value: Any) -> Callable[[Output], None]:
    """Return a change of the answer's only choice."""

    def change(output: Output) -> None:
        output.answer["choices"][0][key] = value

    return change


WHOLE: dict[str, Callable[[Output], None]] = {
    "null": put("logprobs", None),
    "content": put("message", {"role": "assistant", "content": "other", "refusal": None}),
    "fold": put("finish_reason", "other"),
    "raised": lambda output: setattr(output, "failed", "IndexError"),
    "conformance": lambda output: output.wrong.append(Violation("7.tiling", "", "")),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_mutant_of_the_answer_is_refused_by_name(name: str) -> None:
    for case, output in itertools.islice(right("openai", "body"), 2):
        WHOLE[name](output)
        assert name in {wrong.name for wrong in check(case, output)}


def test_the_generator_reaches_every_kind() -> None:
    cases = [draw_case(seed) for seed in range(2_000)]
    ways, forms = Counter(c.way for c in cases), Counter(c.form for c in cases)
    kinds = Counter(kind for case in cases for kind in case.kinds)
    assert ways.keys() == WAYS.keys() and min(ways.values()) > 40, ways
    assert set(forms) == set(get_args(Form)) and min(forms.values()) > 20, forms
    assert kinds.keys() == set(KINDS) and min(kinds.values()) > 20, kinds
    pairs = {(case.way, case.streamed, case.arrays) for case in cases}
    assert len(pairs) > 40
    assert Counter(case.shape for case in cases)["completions"] > 400
    assert {case.k for case in cases} == {0, 1, 2, 3}


def test_a_stream_brings_the_whole_answer() -> None:
    for case in (case for case in map(draw_case, range(1_000)) if case.streamed):
        assert "".join(chunk.text for chunk in case.chunks) == case.content
        assert ("".join(chunk.reasoning for chunk in case.chunks) or None) == case.reasoning
        entries = [n for chunk in case.chunks for n in chunk.entries]
        assert entries == list(range(len(case.tokens)))


def test_a_seed_is_one_answer() -> None:
    assert [draw_case(seed) for seed in range(50)] == [draw_case(seed) for seed in range(50)]


def test_nothing_is_wrong_with_these_answers() -> None:
    size, found = examine(range(400))
    assert (size, found) == (400, [])


PRICES = {
    "FRONT": 80006278,
    "FAR": 410020399,
    "PARTS": 80003679,
    "TAIL": 606992,
    "MARKED": 80003092,
    "SHOWN": 109727,
    "SPACES": 5043307,
}
"""price -> an answer that is ill without it"""


@pytest.mark.parametrize("name", PRICES)
def test_what_one_price_decides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = PRICES[name]
    assert examine(range(seed, seed + 1)) == (1, [])
    for module in (costs, cover, parts, placement):
        monkeypatch.setattr(module, name, 0, raising=False)
    assert examine(range(seed, seed + 1))[1]


WERE_ILL = (
    101117, 103018, 105274, 106257, 106293, 107308, 108376, 109909, 110167, 120190, 123153, 131098,
    134925, 138230, 145288, 153784, 158221, 160236, 164274, 206070, 211495, 400480, 403921, 501449,
    606992, 607328, 608062, 618316, 715372, 716392, 805829, 813551, 902697, 903958, 912283, 927398,
    927487, 1007346, 1024717, 1026744, 1108989, 1113868, 1216648, 2007350, 2009656, 2033153,
    2039864, 2041479, 2051832, 3010184, 3021744, 3022280, 4002386, 4015680, 4024076, 4060472,
    1209686, 5000432, 5002762, 5004969, 5038129, 5044400, 5088872, 8054628, 9001489, 1233120,
    5069434, 9006495, 20063697, 20079138, 20065927, 20088621, 30026289, 30087888, 20061476,
    20075917, 20007646, 30097973, 30145016, 30057766, 30079040, 30012693, 30098289, 30079704,
    30027926, 40026239, 40010038, 40043085, 40039667, 40066470, 50024557, 50045619, 50004624,
    50048699, 50061675, 50011412, 50033472, 50074896, 60087761, 130002624, 130027695, 110054162,
    90089106, 90050125, 140097120, 140016553, 140028988, 140022322, 140088464, 90073027, 150147798,
    150008059, 150049717, 150143397, 150054784, 160050052, 160082995, 160094140, 160006626,
    160026713, 160069245, 170030156, 70020845, 180000943, 190055509, 200010589, 210090196,
    210029819, 210032048, 220029225, 250060682, 250064315, 260031109, 270067562, 270080052,
    270080420, 250024237, 280086790, 290027129, 300092097, 310000913, 340055335, 380030552,
    350031234, 300035627, 310077185, 360011004, 360074487, 400006123, 410065677, 430096080,
)  # fmt: skip
"""Answers that came out wrong once, one of each kind."""


@pytest.mark.parametrize("seed", WERE_ILL)
def test_what_was_wrong_once_is_right(seed: int) -> None:
    assert examine(range(seed, seed + 1)) == (1, [])
