"""A scripted llama.cpp that tells logprobs: what a prompt's score is computed from.

Its tokens are characters, and the bytes of those that are not ASCII; the logprob of each is known.
The forms are those of llama.cpp b11549's /tokenize, /detokenize, /apply-template, /completion and
/v1/models; where a grammar names tokens, those of b7376 and b11549, and of builds before 2025-12.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tests.conforming import body as chat_body
from tests.conforming_completions import body
from tests.fakes.upstream import Script, Step, Upstream, whole

Json = dict[str, Any]
BEGIN = 1
BYTE = 1000  # ids of single bytes begin here
EOS = 2


def split(text: str) -> list[tuple[int, bytes]]:
    """Return the id and the bytes of each token."""
    tokens: list[tuple[int, bytes]] = []
    for character in text:
        if character.isascii():
            tokens.append((ord(character), character.encode()))
        else:
            tokens += [(BYTE + byte, bytes([byte])) for byte in character.encode()]
    return tokens


def spelled(token: int) -> bytes:
    return bytes([token - BYTE]) if token >= BYTE else bytes([token]) if token > EOS else b""


def logprob(place: int, token: int) -> float:
    """Return the logprob of a token at a place of a prompt."""
    return -place - token / 10_000


def listed(token: int, place: int) -> Json:
    data = spelled(token)
    text = data.decode(errors="replace")
    return {"id": token, "token": text, "bytes": list(data), "logprob": logprob(place, token)}


class LlamaCpp(Upstream):
    """Answers /tokenize, /detokenize, /apply-template, probes and requests for an answer.

    `odd` replaces the answer to a path, `probes` those to the first probes, in order. `forces`:
    whether a grammar may name tokens; `forced` changes what it then answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.odd: dict[str, Script] = {}
        self.probes: list[Script] = []
        self.held: list[list[Step]] = []  # steps that come before the answers to probes
        self.forces = False
        self.forced: Callable[[Json], object] = lambda answer: None

    def take(self, target: str) -> Script:
        if target == "/v1/models":
            return whole({"data": [{"id": "fake", "meta": {"n_vocab": BYTE + 256}}]})
        asked = json.loads(self.requests[-1].body or b"{}")
        probe = target == "/completion" and {"logit_bias", "n_probs"} <= asked.keys()
        if probe and self.probes:
            return self.probes.pop(0)
        if "grammar" in asked:
            return self.followed(asked)
        if target in self.odd and not probe:
            return self.odd[target]
        if probe:
            return [*(self.held.pop(0) if self.held else []), *whole(self.probed(asked))]
        return self.answer(target, asked)

    def answer(self, target: str, asked: Json) -> Script:
        if target == "/tokenize":
            begin = [(BEGIN, b"<s>")] if asked.get("add_special") else []
            tokens = [
                {"id": id, "piece": data.decode() if data.isascii() else list(data)}
                for id, data in begin + split(asked["content"])
            ]
            return whole({"tokens": tokens})
        if target == "/detokenize":
            data = b"".join(map(spelled, asked["tokens"]))
            return whole({"content": data.decode(errors="replace")})
        if target == "/apply-template":
            return whole({"prompt": "".join(x["content"] for x in asked["messages"]) + ">"})
        if target == "/v1/chat/completions":
            return whole(chat_body())
        return whole(native() if target == "/completion" else body(text_choice()))

    def probed(self, asked: Json) -> Json:
        place, forced = len(asked["prompt"]), asked["logit_bias"][0][0]
        answer: Json = {"content": spelled(forced).decode(errors="ignore"), "stop": True}
        if forced < BYTE or forced - BYTE < 0xC0:  # not the beginning of a character
            known = [*range(32, 127), *range(BYTE + 128, BYTE + 256)]
            rows = [listed(token, place) for token in known[: asked["n_probs"]]]
            own = {**listed(forced, place), "top_logprobs": rows}
            answer["completion_probabilities"] = [own]
        return answer

    def followed(self, asked: Json) -> Script:
        """Answer the tokens that a grammar names; at a part of a character b11549 cannot."""
        run = [int(token) for token in re.findall(r"<\[(\d+)\]>", asked["grammar"])]
        if not self.forces:
            return refused(400, "Failed to parse grammar")
        if any(token >= BYTE or token <= EOS for token in run):
            return refused(500, "got exception: Unexpected empty grammar stack")
        rows = []
        for place, token in enumerate(run[: asked["n_predict"]], len(asked["prompt"])):
            known = [listed(other, place) for other in range(32, 32 + asked["n_probs"])]
            rows.append({**listed(token, place), "top_logprobs": known})
        answer = {"content": "", "stop": True, "truncated": False, "completion_probabilities": rows}
        self.forced(answer)
        return whole(answer)

    def asked(self, path: str) -> list[Json]:
        return [x.json() for x in self.requests if x.target == path]

    @property
    def probed_prefixes(self) -> list[list[int]]:
        return [x["prompt"] for x in self.asked("/completion") if "logit_bias" in x]

    @property
    def forced_prefixes(self) -> list[list[int]]:
        return [x["prompt"] for x in self.asked("/completion") if "grammar" in x]


def refused(status: int, message: str) -> Script:
    return whole({"error": {"code": status, "message": message}}, status=status)


def text_choice() -> Json:
    choice: Json = {"index": 0, "text": "!", "finish_reason": "stop"}
    row = {"id": 33, "token": "!", "bytes": [33], "logprob": -0.5, "top_logprobs": []}
    return {**choice, "logprobs": {"content": [row]}}


def native() -> Json:
    row = {"id": 33, "token": "!", "bytes": [33], "logprob": -0.5, "top_logprobs": []}
    counts = {"tokens_evaluated": 3, "tokens_predicted": 1}
    ends = {"index": 0, "stop": True, "stop_type": "eos"}
    return {"content": "!", **ends, **counts, "completion_probabilities": [row]}
