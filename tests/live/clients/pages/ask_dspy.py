"""Asks servers for three choices through DSPy; each argument is "URL MODEL".

Prints a JSON list: for each, its choices' logprobs, or the failure, as text.
"""

from __future__ import annotations

import json
import logging
import sys

import dspy  # type: ignore[import-not-found]


def ask(url: str, model: str) -> str:
    lm = dspy.LM(
        f"openai/{model}",
        api_base=url,
        api_key="unused",
        engine="litellm",
        num_retries=0,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    try:
        answers = lm("Say hello.", n=3, cache=False)
    except dspy.utils.exceptions.LMError as error:
        return f"{type(error).__name__}: {error}"
    entries = [answer["logprobs"]["content"] for answer in answers]
    return str([each and [entry["logprob"] for entry in each] for each in entries])


def main(*servers: str) -> None:
    logging.disable(logging.CRITICAL)
    print(json.dumps([ask(*server.split()) for server in servers]))


if __name__ == "__main__":
    main(*sys.argv[1:])
