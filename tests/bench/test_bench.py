"""The benchmark's data, checks and measurements at their smallest, so that it cannot rot.

Nothing here looks at how long anything took.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.bench import kernels, load, table
from tests.bench.data import SIZE, Answer, Source, vocabulary
from tests.bench.forms import FORMS, MODEL, Form
from tests.bench.kernels import WrongAnswer
from wellspoken.adapters.tokens.table import TokenTable, is_plain

TINY = kernels.Effort(rounds=1, streams=1, events=30, bodies=2, large=())


@pytest.fixture(scope="module")
def source() -> Source:
    return Source()


def test_the_vocabulary_is_large_distinct_plain_and_the_same_every_time() -> None:
    tokens = vocabulary()
    assert len(tokens) == len(set(tokens)) == SIZE
    assert all(map(is_plain, tokens))
    assert tokens == vocabulary()
    assert sum(token.startswith(" ") for token in tokens) > SIZE / 3
    assert sum(not token.isascii() for token in tokens) > SIZE / 10


def test_a_third_is_out_of_order_and_some_stand_outside_the_top_k(source: Source) -> None:
    answer = source.answer(3000, 5)
    pairs = [((position.token, position.logprob), position.top) for position in answer.positions]
    best = sum(own == top[0] for own, top in pairs)
    outside = sum(own not in top for own, top in pairs)
    assert 0.62 < best / 3000 < 0.71
    assert 0.06 < outside / 3000 < 0.11
    assert len({position.token for position in answer.positions}) > 1000
    for position in answer.positions:
        values = [value for _, value in position.top]
        assert values == sorted(values, reverse=True)
        assert len({name for name, _ in position.top}) == 5
    assert Source().answer(20, 5) == Source().answer(20, 5)


@pytest.mark.parametrize("k", kernels.KS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_is_translated_right_and_measured(form: Form, k: int, source: Source) -> None:
    answer = source.answer(TINY.events, k)
    cost = kernels.event_cost(form, [answer], TINY)
    assert min(cost.single, cost.burst, cost.typed, cost.generic, cost.over_typed) > 0
    assert (cost.form, cost.k) == (form.name, k)
    speed = kernels.body_speed("b", form, [answer], TINY)
    assert speed.size == len(form.body(answer))
    assert min(speed.ours, speed.typed, speed.generic, speed.over_typed) > 0
    assert table.events([cost]).splitlines()[-1].split()[1:4:2] == [form.name, str(k)]
    assert table.bodies([speed]).splitlines()[-1].split()[1:4:2] == [form.name, "100"]


def test_the_bodies_have_the_sizes_that_are_spoken_of(source: Source) -> None:
    form = FORMS["vllm-0.4.2"]
    small, large = (form.body(source.answer(*kernels.BODIES[name])) for name in "bc")
    assert 15_000 < len(small) < 25_000
    assert 2_000_000 < len(large) < 3_000_000


def test_only_the_conforming_form_passes_unchanged(source: Source) -> None:
    answer = source.answer(20, 5)
    for form in FORMS.values():
        events = form.stream(answer).events
        out = kernels.translated(kernels.exchange(answer, TokenTable(), True), events)
        assert (out == b"".join(events)) == (form.name == "openai")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_lost_number_or_token_is_seen(form: Form, source: Source) -> None:
    answer = source.answer(10, 5)
    events = form.stream(answer).events
    out = kernels.translated(kernels.exchange(answer, TokenTable(), True), events)
    kernels.verify_stream(form, answer, out)
    position = answer.positions[4]
    wrong = replace(position, logprob=position.logprob - 1.0)
    for others in ((), (wrong,), (replace(wrong, top=position.top[:1]),)):
        changed = (*answer.positions[:4], *others, *answer.positions[5:])
        with pytest.raises(WrongAnswer, match=form.name):
            kernels.verify_stream(form, Answer(5, changed), out)


def test_an_answer_of_another_kind_is_no_success() -> None:
    job = load.Job("b", b"{}", events=3)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    load.check(job, head + b"data: {}\n\n" * 3)
    with pytest.raises(load.LoadError, match="2 events, not 3"):
        load.check(job, head + b"data: {}\n\n" * 2)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    framed = b"3\r\ndat\r\n8\r\na: {}\n\nd\r\n13\r\nata: {}\n\ndata: {}\n\n\r\n0\r\n\r\n"
    load.check(job, head + framed)
    with pytest.raises(load.LoadError, match="3 events, not 4"):
        load.check(replace(job, events=4), head + framed)
    with pytest.raises(load.LoadError, match="502"):
        load.check(job, b"HTTP/1.1 502 Bad Gateway\r\n\r\n")


def test_a_request_asks_for_what_its_answer_holds() -> None:
    asked = json.loads(load.asking(MODEL, 5, True))
    assert (asked["model"], asked["top_logprobs"], asked["stream"]) == (MODEL, 5, True)
    assert "logprobs" not in json.loads(load.asking(MODEL, 0, False))
    assert json.loads(load.asking(MODEL, 0, False, oai_compat=False))["oai_compat"] is False


def test_a_table_is_markdown_with_numbers_to_the_right() -> None:
    made = table.markdown(["what", "many"], [["a b", "1,000"], ["c", "~ 2"]])
    assert made.splitlines() == [
        "| what |  many |",
        "| ---- | ----: |",
        "| a b  | 1,000 |",
        "| c    |   ~ 2 |",
    ]
