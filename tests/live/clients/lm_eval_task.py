"""Documents for lm-evaluation-harness, what the model's weights say of them, and the comparison."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.live.clients.serving import TOLERANCE, Served
from tests.models.tiny import TEXT

CHOICES = 4
DOCUMENTS = 12

_WORDS = " tool", " time", "!", " you", " hello world", " what", "?", " is me", " naïve"
_CUTTING = " is", "]", " the", " assistant", " 5", "!"
_CONTEXTS = "hello world", "what time is it", "say hello", "you name the tool", "a b c", "Q: 1+1"


def choices(served: Served, words: Sequence[str] = _WORDS) -> list[dict[str, Any]]:
    """Return documents, three quarters of whose `gold` is the choice that the model prefers."""
    draw = random.Random(7)
    documents = []
    for number in range(DOCUMENTS):
        context = _CONTEXTS[number % len(_CONTEXTS)]
        if number >= len(_CONTEXTS):
            context = f"{draw.randrange(100)} {context}"
        document: dict[str, Any] = {"context": context, "choices": draw.sample(words, CHOICES)}
        best = preferred([likelihood(served, context, text) for text in document["choices"]])
        document["gold"] = best if number % 4 else (best + 1) % CHOICES
        documents.append(document)
    return documents


def likelihood(served: Served, context: str, continuation: str) -> tuple[float, bool]:
    """Return the model's own loglikelihood, the pair cut where lm-evaluation-harness cuts it.

    That is after as many tokens as the context alone has, and a final space is the continuation's.
    """
    bare = context.rstrip()
    whole = served.tokens(context + continuation)
    cut = len(served.tokens(bare))
    return served.direct.loglikelihood(whole[:cut], whole[cut:])


def preferred(scored: list[tuple[float, bool]]) -> int:
    """Return the index of the likeliest."""
    return max(range(len(scored)), key=lambda index: scored[index][0])


def rolling() -> list[dict[str, Any]]:
    return [{"text": text} for text in ("hello world! what is the time", "naïve 😀 a\nb")]


def generations(served: Served) -> list[dict[str, Any]]:
    """Return prompts for plain completion with the model's own greedy text of 12 tokens."""
    prompts = "say this:\nuser\n", "hello world", "what time is it"
    return [{"prompt": prompt, "answer": greedy(served, prompt, 12)} for prompt in prompts]


def greedy(served: Served, prompt: str, limit: int) -> str:
    tokens = served.direct.greedy(served.tokens(prompt)[-1], limit)
    return served.text(tokens)


def chats() -> list[dict[str, Any]]:
    return [
        {"prompt": "Say hello.", "answer": TEXT},
        {"prompt": "@loop", "answer": "la di da " * 4},
    ]


def write(folder: Path, served: Served) -> None:
    """Write every task's documents into `folder`."""
    for name, documents in {
        "choice": choices(served),
        "cut": choices(served, _CUTTING),
        "rolling": rolling(),
        "generate": generations(served),
        "chat": chats(),
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(documents), encoding="utf-8")


def check_choices(found: dict[str, Any], served: Served, task: str = "wellspoken_choice") -> None:
    """Raise AssertionError unless each choice's number, and the accuracy, are the model's own."""
    samples = found["samples"][task]
    assert len(samples) == DOCUMENTS
    correct = 0
    for sample in samples:
        document = sample["doc"]
        expected = [likelihood(served, document["context"], text) for text in document["choices"]]
        for (number, best), (own, own_best) in zip(
            map(scored, sample["filtered_resps"]), expected, strict=True
        ):
            assert math.isclose(number, own, rel_tol=0, abs_tol=TOLERANCE), (document, number, own)
            assert best == own_best, (document, number)
        right = preferred(expected) == document["gold"]
        assert sample["acc"] == float(right), document
        correct += right
    assert 0 < correct < DOCUMENTS
    assert metric(found, task, "acc") == correct / DOCUMENTS


def check_rolling(found: dict[str, Any], served: Served) -> None:
    """Raise AssertionError unless each text's number is the model's own, with BOS before it."""
    samples = found["samples"]["wellspoken_rolling"]
    assert len(samples) == len(rolling())
    bos = served.direct.vocabulary.ids["<s>"]
    for sample in samples:
        own = sum(served.direct.scores([bos, *served.tokens(sample["doc"]["text"])]))
        (number,) = sample["filtered_resps"]
        number = float(number[0] if isinstance(number, list) else number)
        assert math.isclose(number, own, rel_tol=0, abs_tol=TOLERANCE), (sample, own)


def check_generations(found: dict[str, Any], task: str, size: int) -> None:
    """Raise AssertionError unless every text is the document's answer."""
    samples = found["samples"][f"wellspoken_{task}"]
    assert len(samples) == size
    for sample in samples:
        assert sample["filtered_resps"] == [sample["doc"]["answer"]], sample["doc"]
    assert metric(found, f"wellspoken_{task}", "exact_match") == 1.0


def scored(answer: Any) -> tuple[float, bool]:
    """Return a logged loglikelihood answer typed; the command's log has both parts as text."""
    number, best = answer
    return float(number), str(best) == "True"


def metric(found: dict[str, Any], task: str, name: str) -> float:
    return float(found["results"][task][f"{name},none"])
