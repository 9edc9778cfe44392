"""What a backend is, as data alone."""

from __future__ import annotations

from re import Pattern
from typing import Final, Literal

from msgspec import Struct

from wellspoken.adapters.servers.parameters import Table
from wellspoken.adapters.tokens.tokenize import Tokenize

Dialect = Literal["chat", "completions", "llamacpp"]
"""What a server's answers are read as: OpenAI's two shapes, or llama.cpp's own /completion."""


GREEDY: Final = 1e-5
"""Below this vLLM takes a temperature for 0 (its _SAMPLING_EPS)."""


class Endpoint(Struct, frozen=True):
    """Where a server answers one kind of request, and what its answers are read as."""

    path: str
    dialect: Dialect


class Backend(Struct, frozen=True, kw_only=True):
    """One kind of server, as data; its module's docstring tells its deviations and their sources.

    `versions` are those its file was written for. `chat_table` and `completion_table` have a row
    for every parameter of the two requests (`parameters.py`), empty where there is no endpoint.

    `chat` and `completions` are its endpoints, None where it has none; `native` is the path of an
    endpoint of its own that `"oai_compat": false` may speak to. `together`: how many requests of
    one answer it gets at a time. `least_tokens`: the fewest that it can be asked for. `no_limit`:
    what it is told where the client sets no limit, if its own default would cut answers.

    `unstreamed`: keys whose part of the answer its streams lack, so that it is asked for a body.
    `apart`: sets of keys that it refuses together in a request for a stream, and takes for a body.
    `pairs_best`: an entry's value is that of its best alternative, whatever was sampled.
    `greedy_alone`: with a temperature of 0 it refuses `n` above 1, so each choice is asked for.
    `tops_up`: whether it heeds `n` shows in its answer, and what that lacks is asked for after it.
    `loses_entries`: with a stop string its logprobs lack entries, so stops are enforced here;
    `counting` then lets every chunk tell the counts so far. `withholds_text`: its streams hold text
    back that may begin a stop string, and never send it where the limit ends the answer.
    `one_system`: of system messages its templates take the first, and leave the others out.
    `detokenize`: where it tells the text of token ids; `tokenize`: where it counts them; `sizes`:
    where it tells how many token ids its models have (`data[].meta.n_vocab`); `lengths`: where it
    tells its models' context lengths if its list of models does not, all of which are asked;
    `shows`: where a POST of a model's name tells that model's; `routes`: where a GET does if it is
    loaded, the name at the path's end (`context_length.py`).
    `computes`: its endpoints let the proxy compute a prompt's logprobs (`prompt_scores.py`).
    `passes`: the paths that pass through to it (POST alone), as it spells them.
    `ui`: the paths of its web page and of what that may read (GET alone).
    """

    name: str
    title: str
    chat_table: Table = {}
    completion_table: Table = {}
    aliases: tuple[str, ...] = ()
    versions: str = ""
    chat: Endpoint | None = Endpoint("/v1/chat/completions", "chat")
    completions: Endpoint | None = Endpoint("/v1/completions", "completions")
    native: str | None = None
    together: int = 8
    least_tokens: int = 0
    no_limit: int | None = None
    unstreamed: frozenset[str] = frozenset()
    apart: tuple[frozenset[str], ...] = ()
    pairs_best: bool = False
    greedy_alone: bool = False
    tops_up: bool = False
    loses_entries: bool = False
    withholds_text: bool = False
    one_system: bool = False
    counting: str = ""
    detokenize: str = ""
    computes: bool = False
    tokenize: Tokenize | None = None
    sizes: str = ""
    lengths: tuple[str, ...] = ()
    shows: str = ""
    routes: str = ""
    passes: tuple[str, ...] = ()
    ui: Pattern[str] | None = None
    models_path: str = "/v1/models"

    @property
    def many(self) -> bool:
        """Whether its chat endpoint gives `n` choices."""
        return self.chat_table["n"].how == "native"

    @property
    def several(self) -> bool:
        """Whether its completions endpoint gives `n` choices, and takes several prompts."""
        return self.completion_table["n"].how == "native"

    def alone(self, temperature: float | None) -> bool:
        """Say whether a choice sampled so has to be asked for by itself."""
        return self.greedy_alone and temperature is not None and temperature < GREEDY

    @property
    def scores(self) -> Literal["backend", "proxy", "nobody"]:
        """Who gives a prompt's logprobs (`echo`, `prompt_logprobs`)."""
        if self.completion_table and self.completion_table["echo"].how == "native":
            return "backend"
        return "proxy" if self.computes else "nobody"
