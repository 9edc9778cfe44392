"""HELM's clients read what the proxy answers: each sequence's tokens, numbers and end."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.clients.serving import TOLERANCE, Rows, Served, check_rows
from tests.models.tiny import TEXT

HERE = Path(__file__).parent
PLAIN, SCORED, ECHOED = "Say this:\n", "hello world! tool", "hello world"  # as ask_helm.py has them
UNSCORED = 0.0  # what HELM takes for no number

Asked = tuple[Served, dict[str, Any]]


@pytest.fixture(scope="module", params=["served", "served_bpe"], ids=["spm", "bpe"])
def asked(
    request: pytest.FixtureRequest,
    client: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Asked:
    """A running proxy, and what HELM's clients made of its answers."""
    served: Served = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp("helm")
    out = client(folder, str(HERE / "ask_helm.py"), f"{served.proxy}/v1")
    return served, json.loads(out.splitlines()[-1])


def check(found: dict[str, Any], text: str, expected: Rows, count: int = 1) -> None:
    """Raise AssertionError unless HELM has `count` sequences of this text and these rows."""
    assert found.get("error", found) is None, found
    assert len(found["completions"]) == count
    for one in found["completions"]:
        assert one["text"] == text
        check_rows(one["tokens"], expected)
        total = sum(number for _, number in expected)
        assert math.isclose(one["logprob"], total, rel_tol=0, abs_tol=TOLERANCE * 10)


def test_chat_gives_the_text_and_how_it_ended(asked: Asked) -> None:
    """HELM asks for no logprobs in a chat, and gets null: it knows no tokens then."""
    _, found = asked
    for name, count in {"chat": 1, "vllm chat": 1, "chat of two": 2}.items():
        check(found[name], TEXT, [], count)
        assert [one["finish_reason"] for one in found[name]["completions"]] == ["stop"] * count


def test_logprobs_in_a_chat_fail_in_helm_alone(asked: Asked) -> None:
    """HELM 0.5.14 to 0.5.16 look for `logprobs.contents`; the contract's key is `content`.

    The day this fails, HELM reads them: check them then.
    """
    assert asked[1]["chat with logprobs"] == {"raised": "KeyError('contents')"}


def test_completions_have_the_models_own_logprobs(asked: Asked) -> None:
    served, found = asked
    expected = served.generated(PLAIN, 16)
    for name, count in {"legacy": 1, "vllm": 1, "top 5": 1, "legacy of two": 2}.items():
        check(found[name], TEXT, expected, count)
    check(found["short"], "Hello world!", expected[:3])
    check(found["stopped"], "Hello world!", expected[:3])


def unscored_first(rows: Rows) -> Rows:
    """Return a prompt's rows as `echo` has them: nothing precedes the first."""
    return [(rows[0][0], UNSCORED), *rows[1:]]


def test_echo_scores_the_prompt(asked: Asked) -> None:
    served, found = asked
    check(found["scored"], SCORED, unscored_first(served.scored(SCORED)))
    answer = served.generated(ECHOED, 2)
    text = ECHOED + "".join(text for text, _ in answer)
    check(found["echoed"], text, [*unscored_first(served.scored(ECHOED)), *answer])


def test_a_refusal_names_the_parameter(asked: Asked) -> None:
    refused = asked[1]["refused"]
    assert refused["completions"] == [] and "temperature" in refused["error"]


def test_the_check_sees_a_wrong_number_a_lost_token_and_an_exception(asked: Asked) -> None:
    served, found = asked
    expected = served.generated(PLAIN, 16)
    wrong, lost = copy.deepcopy(found["vllm"]), copy.deepcopy(found["vllm"])
    wrong["completions"][0]["tokens"][2][1] -= 1e-3
    del lost["completions"][0]["tokens"][-1]
    for mutant in (wrong, lost, found["refused"], found["chat with logprobs"]):
        with pytest.raises(AssertionError):
            check(mutant, TEXT, expected)
