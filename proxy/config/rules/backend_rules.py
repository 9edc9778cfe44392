"""What types cannot say of one backend: its addresses, its TLS, its key, keys of a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from wellspoken.adapters.requests.caps import DANGEROUS, Caps
from wellspoken.proxy.config.backend_headers import header_rules
from wellspoken.proxy.config.places import Path
from wellspoken.proxy.config.problems import Problem, path_text, suggestion
from wellspoken.proxy.config.tables import Backend, BackendTls
from wellspoken.proxy.config.values import (
    UNIX,
    ConfigError,
    check_reference,
    find_endpoint,
    normal_url,
    parse_listen,
)


def backend_rules(backend: Backend, at: int, several: bool, listen: str) -> Iterator[Problem]:
    """Give what is wrong with a backend; `several`: it is not the only one."""
    path: Path = ("backend", at)
    where = path_text(path)
    yield from caps_rules(backend.caps, path)
    yield from header_rules(backend, path)
    if backend.ui and backend.vendor != "pass":
        yield Problem(
            (*path, "vendor"),
            f'{where}: ui = true needs vendor = "pass": llama.cpp\'s page sends keys of its own.',
        )
    yield from _urls(backend, path, listen)
    yield from _tls(backend, path)
    if backend.key is not None:
        try:
            check_reference(backend.key)
        except ConfigError as error:
            yield Problem((*path, "key"), f"{where}: {error}")
        if backend.auth == "pass":
            yield Problem(
                (*path, "key"),
                f'{where}: key and auth = "pass" exclude each other. '
                "Keep the one whose key the backend should see.",
                at_key=True,
            )
    if several and not backend.models and not backend.aliases:
        yield Problem(
            (*path, "models"),
            f"{where}: with several backends each needs models = [...] or aliases, "
            "since requests find their backend by the model's name.",
        )


def caps_rules(caps: Caps, path: Path) -> Iterator[Problem]:
    """Give the keys of caps.allow that are not kept back; `path`: the table around caps."""
    for at, name in enumerate(caps.allow):
        if name not in DANGEROUS:
            yield Problem(
                (*path, "caps", "allow", at),
                f"{path_text(path)}.caps.allow: {name!r} is none of the keys that are kept back, "
                f"so take it out.{suggestion(name, DANGEROUS)}",
            )


def doubtful_urls(backends: Sequence[Backend]) -> Iterator[Problem]:
    """Give the URLs of which an endpoint is taken off, since they may be meant otherwise."""
    for at, backend in enumerate(backends):
        for path, where, url in _each_url(backend, ("backend", at)):
            if endpoint := find_endpoint(url):
                yield Problem(
                    path,
                    f"{where}: {endpoint} is an endpoint and was taken off, since a backend "
                    f"is named by its base. Write it like {normal_url(url)}",
                )


def _each_url(backend: Backend, path: Path) -> Iterator[tuple[Path, str, str]]:
    """Give each URL with its path, and how messages name it."""
    if isinstance(backend.url, str):
        yield (*path, "url"), f"{path_text(path)}: url", backend.url
        return
    for number, url in enumerate(backend.url):
        here = (*path, "url", number)
        yield here, path_text(here), url


def _urls(backend: Backend, path: Path, listen: str) -> Iterator[Problem]:
    """Refuse what is no URL, the proxy's own address, and a server that is listed twice."""
    taken: dict[str, int] = {}
    for number, (here, where, given) in enumerate(_each_url(backend, path)):
        try:
            url = normal_url(given)
        except ConfigError as error:
            yield Problem(here, f"{where}: {str(error).removeprefix('url: ')}")
            continue
        if _is_here(url, listen):
            yield Problem(
                here,
                f"{where}: this is where the proxy itself listens, so it would ask itself. "
                "Write the server's address, or give the proxy another one with listen (--listen).",
            )
        if (first := taken.setdefault(url, number)) != number:
            yield Problem(
                here,
                f"{where}: this is url[{first}] once more. Take one out; more of the requests than "
                "another gets a server by the weight of a [[backend]] of its own.",
            )


def _is_here(url: str, listen: str) -> bool:
    """Say whether a backend's URL is certainly the address on which clients connect."""
    try:
        host, port = parse_listen(listen)
    except ConfigError:
        return False
    if host.startswith(UNIX):
        return url == host
    there = urlsplit(url)
    if there.scheme != "http" or (there.port or 80) != port:
        return False
    if host == "0.0.0.0":  # noqa: S104  compared, not bound
        return there.hostname in ("localhost", "127.0.0.1")
    own = ("localhost", "127.0.0.1") if host in ("localhost", "127.0.0.1") else (host.lower(),)
    return there.hostname in own


def _tls(backend: Backend, path: Path) -> Iterator[Problem]:
    """Refuse TLS for a backend that is not asked over it, and half a pair."""
    where = path_text(path)
    if backend.tls.key is not None and backend.tls.certificate is None:
        text = f"{where}.tls.key: it is the key of a certificate. Set certificate, too."
        yield Problem((*path, "tls", "key"), text, at_key=True)
    try:
        secured = any(normal_url(url).startswith("https:") for url in backend.urls)
    except ConfigError:
        return  # told already
    if backend.tls != BackendTls() and not secured:
        what = "the url is no" if isinstance(backend.url, str) else "none of the urls is an"
        text = f"{where}.tls: {what} https:// one, so this would do nothing. "
        text += "Write https://, or take it out."
        yield Problem((*path, "tls"), text, at_key=True)
