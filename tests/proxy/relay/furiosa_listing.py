"""Prints a chat answer's two kinds of logprobs, those of its own tokens and those of the prompt's.

    python -m tests.proxy.relay.furiosa_listing BASE_URL [--stream]

It asks for a completion as the Furiosa SDK's documentation shows it, with the OpenAI client, and
reads `choices[0].logprobs`, `prompt_logprobs`, `prompt_token_ids` and `token_ids` where that
documentation finds them: on the response, or on the chunks of a stream.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from openai import OpenAI
from openai.types.chat import ChatCompletionTokenLogprob

QUESTION: Final = "Capital of France?"
EXTENSIONS: Final = {"prompt_logprobs": 3, "return_token_ids": True}


@dataclass
class Answer:
    """What the listing shows; a stream adds to it chunk by chunk."""

    text: str = ""
    entries: list[ChatCompletionTokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[dict[str, dict[str, Any]] | None] = field(default_factory=list)
    prompt_token_ids: list[int] = field(default_factory=list)

    def add(self, part: Any, text: str | None) -> None:
        """Add a response or a chunk whose message or delta says `text`."""
        self.text += text or ""
        choice = part.choices[0]
        if choice.logprobs is not None:
            self.entries += choice.logprobs.content or []
        self.token_ids += getattr(choice, "token_ids", None) or []
        self.prompt_logprobs += getattr(part, "prompt_logprobs", None) or []
        self.prompt_token_ids += getattr(part, "prompt_token_ids", None) or []


def ask(client: OpenAI, *, stream: bool) -> Answer:
    """Ask the first model that is served; raise openai.APIError for a refusal."""
    asked: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 7,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
        "extra_body": EXTENSIONS,
    }
    answer = Answer()
    if stream:
        for chunk in client.chat.completions.create(**asked, stream=True):
            if chunk.choices:
                answer.add(chunk, chunk.choices[0].delta.content)
    else:
        response = client.chat.completions.create(**asked)
        answer.add(response, response.choices[0].message.content)
    return answer


def listing(answer: Answer) -> Iterable[str]:
    """Yield the lines; numbers as they are, none rounded."""
    yield f"answer {answer.text!r}"
    for place, entry in enumerate(answer.entries):
        number = answer.token_ids[place] if place < len(answer.token_ids) else None
        yield f"token {place} {number} {entry.token!r} {entry.logprob!r}"
        for row in entry.top_logprobs:
            mark = " chosen" if row.token == entry.token else ""
            yield f"    {row.token!r} {row.logprob!r}{mark}"
    for place, rows in enumerate(answer.prompt_logprobs):
        actual = answer.prompt_token_ids[place]
        yield f"prompt {place} {actual}" + (" first" if rows is None else "")
        for name, told in (rows or {}).items():
            mark = " actual" if int(name) == actual else ""
            shown = f"{told['logprob']!r} {told['rank']!r} {told['decoded_token']!r}"
            yield f"    {name} {shown}{mark}"


def main() -> None:
    """Print the listing of one answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("base_url", help="such as http://127.0.0.1:8080/v1")
    parser.add_argument("--stream", action="store_true")
    given = parser.parse_args()
    client = OpenAI(base_url=given.base_url, api_key="unused", max_retries=0)
    for line in listing(ask(client, stream=given.stream)):
        print(line)


if __name__ == "__main__":
    main()
