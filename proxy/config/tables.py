"""The tables of a configuration file and their types; config.example.toml explains each key.

A file and variables may write a time as "15m", a size as "64MB" (config/units.py).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from wellspoken.adapters.exchange import Extensions, Recovered
from wellspoken.adapters.requests.caps import Caps
from wellspoken.adapters.requests.vendor import Policy
from wellspoken.adapters.servers.parameters import PastReasoning
from wellspoken.proxy.config.units import DURATION, SIZE

# At most some 30 years: an infinite time cannot be handed on as a number of seconds.
Seconds = Annotated[float, Meta(ge=0, le=1e9, extra={"unit": DURATION})]
Positive = Annotated[float, Meta(gt=0, le=1e9, extra={"unit": DURATION})]
# At most a pebibyte: what parses HTTP and what stores take no more than 64 bits.
Size = Annotated[int, Meta(ge=1, le=1 << 50, extra={"unit": SIZE})]
SizeOrNone = Annotated[int, Meta(ge=0, le=1 << 50, extra={"unit": SIZE})]
Count = Annotated[int, Meta(ge=1)]
Mode = Annotated[str, Meta(pattern=r"^0?[0-7]{3}$")]  # whom a file is for, as chmod has it
INT32: Final = (1 << 31) - 1  # the most that llama.cpp's own settings hold
Name = Annotated[str, Meta(min_length=1, max_length=200)]
NameOrPath = Annotated[str, Meta(min_length=1, max_length=4096)]  # a name, or a path


class Server(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the proxy listens and how it stops; times in seconds."""

    listen: str = "127.0.0.1:8010"
    admin: str | None = None
    socket_mode: Mode = "0660"
    hosts: tuple[str, ...] = ()
    cors: tuple[str, ...] | str = ()
    drain_delay: Seconds = 0.0
    drain_timeout: Seconds = 300.0
    workers: Annotated[int, Meta(ge=1, le=256)] = 1
    watch: bool = False


class Tls(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What secures the connections of clients, each the path of a PEM file; none: plain HTTP."""

    certificate: str | None = None
    key: str | None = None
    client_ca: str | None = None
    client_certificates: Literal["required", "optional"] = "required"


class Log(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said on stderr, and the banner on stdout."""

    format: Literal["auto", "text", "json"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"
    access: bool = True
    verbose: bool = False
    banner: bool = True
    bodies: bool = False


class Traces(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether spans go to an OpenTelemetry collector; where to, its own OTEL_* variables say."""

    enabled: bool = False


class Timeouts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long what may take, in seconds; 0 means no limit where that is allowed."""

    connect: Positive = 5.0
    client_header: Positive = 10.0
    client_body: Positive = 30.0
    client_write: Seconds = 60.0
    client_keep_alive: Positive = 75.0
    first_token_body: Seconds = 600.0
    first_token_stream: Seconds = 3600.0
    between_tokens: Seconds = 600.0
    between_chunks: Seconds = 120.0
    total: Seconds = 6 * 3600.0
    heartbeat: Positive = 15.0
    # vLLM (uvicorn) and llama.cpp (cpp-httplib) close an idle connection after 5 s; to drop ours
    # first leaves no moment in which a request is sent into a connection that is being closed.
    upstream_keep_alive: Positive = 4.0
    probe: Positive = 2.0


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of what, in bytes or requests."""

    header: Size = 64 * 1024
    body: Size = 32 * 1024 * 1024
    body_rate: SizeOrNone = 500
    response: Size = 64 * 1024 * 1024
    inflight: Count = 1000
    retries: Annotated[float, Meta(ge=0, le=1)] = 0.2
    per_client: Annotated[int, Meta(ge=0)] = 0
    connections: Annotated[int, Meta(ge=0)] = 0
    memory: Annotated[int, Meta(ge=0, le=1 << 50, extra={"unit": SIZE})] = 0
    scored_tokens: Count = 4096
    scoring: Count = 2


class Health(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When one of several servers of a model gets no requests for a while; times in seconds.

    `interval`: between two looks at a server, 0 for none. `failures`: so many in a row, of requests
    or of looks, and it is out for `pause`, which doubles up to `longest_pause` each time that it
    fails again soon.
    """

    interval: Seconds = 5.0
    failures: Count = 3
    pause: Positive = 1.0
    longest_pause: Positive = 60.0


Endpoints = Annotated[tuple[Name, ...], Meta(max_length=64)]
Headers = Annotated[tuple[Name, ...], Meta(max_length=64)]
System = Literal["auto", "fold", "user", "pass"]
Streams = Literal["both", "always", "never"]

FORWARDED: Final = (
    *("x-session-id", "x-session-affinity", "session_id", "x-data-parallel-rank"),
    *("x-request-priority", "baggage"),
)
"""A client's headers that go on by default: by which a router in front of several replicas finds
the one that has a session's cache, and by which vLLM and gateways choose a rank and an order."""


class BackendTls(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom an https backend's connections trust, and how they say who asks; paths of PEM files."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: Name | None = None


Urls = str | Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)]
Weight = Annotated[float, Meta(ge=0, le=1e6)]
Affinity = Annotated[str, Meta(pattern=r"^(none|prefix|header:[A-Za-z0-9_-]{1,64})$")]
Retry = Literal["unsent", "unstarted"]
Responses = Literal["translate", "pass"]


class Backend(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One upstream server, or several that are alike (`url` a list), and how to speak with it."""

    name: Name = "default"
    url: Urls
    weight: Weight = 1.0
    affinity: Affinity = "none"
    retry: Retry = "unsent"
    fallback: tuple[Name, ...] = ()
    health_path: Annotated[str, Meta(pattern=r"^/[!-~]*$", max_length=1000)] = "/health"
    adapter: str = "auto"
    models: tuple[Name, ...] = ()
    aliases: dict[Name, Name] = {}
    upstream_model: Name | None = None
    key: str | None = None
    auth: Literal["none", "pass"] = "none"
    tokenizer: str | None = None
    tokenizer_download: bool = False
    extensions: Extensions = "known"
    keep: tuple[Name, ...] = ()
    bounds: Literal["openai", "backend"] = "openai"
    vendor: Policy = "pass"
    past_reasoning: PastReasoning = "auto"
    recover: tuple[Recovered, ...] = ()
    system: System = "auto"
    streams: Streams = "both"
    responses: Responses = "translate"
    endpoints: Endpoints | None = None
    forward_headers: Headers = FORWARDED
    headers: dict[Name, str] = {}
    caps: Caps = Caps()
    ui: bool = False
    tls: BackendTls = BackendTls()

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of its servers."""
        return (self.url,) if isinstance(self.url, str) else self.url


class Engine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A local inference engine that the proxy starts itself and stands in front of.

    Times in seconds. `start_timeout` 0: what the kind of engine takes. What one kind alone has is
    refused with the other (config/engine_keys.py).
    """

    kind: Literal["llamacpp", "vllm"]
    model: NameOrPath
    name: Name = "engine"
    alias: Name | None = None
    # llamacpp
    context: Annotated[int, Meta(ge=0, le=INT32)] = 0
    parallel: Annotated[int, Meta(ge=1, le=256)] = 4  # LLAMA_MAX_SEQ of b11549
    threads: Annotated[int, Meta(ge=0, le=INT32)] = 0
    gpu_layers: Annotated[int, Meta(ge=-1, le=INT32)] = -1
    chat_template: str | None = None
    mmproj: str | None = None
    # vllm
    arguments: tuple[str, ...] = ()
    executable: NameOrPath = "vllm"
    # its process
    environment: dict[Name, str] = {}
    inherit: tuple[Name, ...] = ()
    start_timeout: Seconds = 0.0
    grace: Seconds = 15.0
    wait: Seconds = 60.0
    queue: Annotated[int, Meta(ge=0)] = 256
    idle_unload: Seconds = 0.0
    health_interval: Seconds = 10.0
    health_timeout: Positive = 5.0
    health_failures: Count = 6
    stall_timeout: Seconds = 300.0
    restarts: Count = 5
    on_failure: Literal["retry", "exit"] = "retry"
    # as any backend
    weight: Weight = 1.0
    affinity: Affinity = "none"
    retry: Retry = "unsent"
    fallback: tuple[Name, ...] = ()
    tokenizer: str | None = None
    tokenizer_download: bool = False
    extensions: Extensions = "known"
    keep: tuple[Name, ...] = ()
    bounds: Literal["openai", "backend"] = "openai"
    vendor: Policy = "pass"
    past_reasoning: PastReasoning = "auto"
    recover: tuple[Recovered, ...] = ()
    system: System = "auto"
    responses: Responses = "translate"
    endpoints: Endpoints | None = None
    forward_headers: Headers = FORWARDED
    caps: Caps = Caps()


ClientName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class AuthClient(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Somebody with keys of their own: which models they may use, how much, and until when.

    `models`: names as clients write them, in which * and ? stand for others. None: no limit. An
    `expires` without an offset is in UTC.
    """

    name: ClientName
    keys: tuple[str, ...] = ()
    models: tuple[Name, ...] = ("*",)
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    concurrent: Count | None = None
    expires: datetime | None = None


class Auth(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys that clients need, each as env:NAME or file:PATH; a file has one a line.

    `admin`: those for what is about the proxy itself. `client`: those of clients with a name, and
    `counters`: the URL of a Redis or Valkey that counts what they ask for, for several proxies.
    """

    keys: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    counters: str | None = None
    client: tuple[AuthClient, ...] = ()

    @property
    def needs_key(self) -> bool:
        """Whether clients need a key."""
        return bool(self.keys or self.client)

    @property
    def references(self) -> tuple[str, ...]:
        """Where keys stand, whosesoever."""
        return (*self.keys, *self.admin, *(one for client in self.client for one in client.keys))


class Store(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where completions with `store: true` are kept; nowhere unless `path` or `url` is set.

    Times in seconds, sizes in bytes.
    """

    path: str | None = None
    url: str | None = None
    missing: Literal["warn", "refuse"] = "warn"
    durability: Literal["async", "commit"] = "async"
    queue: Size = 64 * 1024 * 1024
    full: Literal["block", "drop", "refuse"] = "block"
    block: Seconds = 1.0
    required: bool = False
    spool: str | None = None
    spool_size: Size = 1024 * 1024 * 1024
    max_age: Seconds = 0.0
    max_size: SizeOrNone = 0

    @property
    def configured(self) -> bool:
        """Whether completions can be kept at all."""
        return self.path is not None or self.url is not None


REMOVED: Final[dict[tuple[str, ...], str]] = {
    ("store", "large_to"): (
        "answers in a directory or a bucket were removed, since SQLite and PostgreSQL hold large "
        "ones too. Take it out. If answers lie there, export them first with the version that put "
        "them there (wellspoken export --format full), and import them into a new store."
    ),
    ("store", "large"): (
        "it went with store.large_to: large answers stay in the database. Take it out."
    ),
}
"""Keys that there were, and what to do about them."""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration: at least one backend, or an engine.

    `auth` "none": everybody who can reach the proxy may use it.
    """

    server: Server = Server()
    tls: Tls = Tls()
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    health: Health = Health()
    backend: tuple[Backend, ...] = ()
    engine: Engine | UnsetType = UNSET
    auth: Auth | Literal["none"] = Auth()
    store: Store = Store()
    log: Log = Log()
    traces: Traces = Traces()
