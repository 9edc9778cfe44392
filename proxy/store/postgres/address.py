"""What errors of PostgreSQL mean for the store, in one line each and without any secret."""

from __future__ import annotations

import re
import ssl
from urllib.parse import parse_qs, unquote

import asyncpg

from wellspoken.proxy.store.database import StoreError, Unavailable, Unusable

_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.%-]*)(?::\d*)?"
_URL = re.compile(
    rf"postgres(?:ql)?://(?:[^:@/?#]*(?::(?P<password>[^@/?#]*))?@)?"
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)(?P<database>/[^@?#]*)?(?:\?(?P<settings>[^@#]*))?"
)
_AWAY = ("08", "40", "53", "55", "57", "58")
"""Classes of SQLSTATE that pass: the connection, a deadlock, resources, a lock, an operator's
intervention, the system (PostgreSQL 18, appendix A)."""
_LOST = ("08", "57P")
"""Those of a connection that is gone: broken, or ended by the server (its end, an operator,
idle_session_timeout)."""
_READ_ONLY = "25006"
_ADVICE = {
    "28000": "check the user in store.url and pg_hba.conf",
    "28P01": "check the user and the password in store.url",
    "3D000": "create the database, or name another in store.url",
    "3F000": "create the schema, or set search_path to one that is there",
    "42501": "grant the user CREATE on the schema and all on the tables in it",
    "42P01": "its tables are gone: start wellspoken again to make them anew",
}
_STARTUP = "unsupported startup parameter"


def is_loss(error: BaseException) -> bool:
    """Say whether an error is of a connection that is gone, whatever was to be done on it."""
    if isinstance(error, asyncpg.PostgresError):
        return str(getattr(error, "sqlstate", None)).startswith(_LOST)
    return isinstance(error, (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError))


class DatabaseAddress:
    """What a URL says of a database that may be shown, and what must not be.

    Raises Unusable for a URL that cannot be read for sure, since a part of a password could then
    pass for a host's name.
    """

    def __init__(self, url: str) -> None:
        read = _URL.fullmatch(url)
        if read is None:
            raise Unusable(
                "store.url cannot be read: write postgresql://user:password@host:5432/database, "
                "with what is special in a password as %40 (@), %2F (/), %3A (:), %23 (#), %3F (?)"
            )
        self.place = f"PostgreSQL at {read['hosts'] or 'localhost'}{read['database'] or ''}"
        settings = parse_qs(read["settings"] or "")
        named = [value for name in ("password", "sslpassword") for value in settings.get(name, ())]
        raw = read["password"] or ""
        self._secrets = sorted({raw, unquote(raw), *named} - {""}, key=len, reverse=True)
        self.settings = frozenset(settings)

    def explain_error(self, error: Exception) -> StoreError:
        """Return what an error of asyncpg, or of the system, means and what to do."""
        if isinstance(error, asyncpg.PostgresError):
            return self._explain_refusal(error)
        if isinstance(error, ssl.SSLCertVerificationError):
            return Unusable(f"{self.place}: {error.verify_message}: check sslmode and sslrootcert")
        if isinstance(error, TimeoutError):
            return Unavailable(f"{self.place} does not answer in time")
        if isinstance(error, OSError):
            return Unavailable(f"{self.place} cannot be reached: {self._line(error)}")
        if isinstance(error, ValueError):  # ClientConfigurationError is one
            return Unusable(
                f"{self.place}: asyncpg cannot use store.url, or a PG* variable or a file that it "
                f"reads ({type(error).__name__}): check what is behind the question mark"
            )
        return Unavailable(f"{self.place}: {self._line(error)}")

    def _explain_refusal(self, error: asyncpg.PostgresError) -> StoreError:
        state = str(getattr(error, "sqlstate", None) or "")
        # Not the detail: it may show what is in a row. What asyncpg itself says has neither.
        said = self._line(getattr(error, "message", None) or error)
        if _STARTUP in said:
            return Unusable(
                f"{self.place}: {said}: pgbouncer does not pass it on; set it with ALTER ROLE"
            )
        if state == _READ_ONLY:
            return Unavailable(f"{self.place} is read-only now: {said}")
        if state.startswith(_AWAY):
            return Unavailable(f"{self.place}: {said}")
        advice = _ADVICE.get(state, f"see SQLSTATE {state}" if state else "see its log")
        return Unusable(f"{self.place}: {said}: {advice}")

    def _line(self, error: object) -> str:
        said = " ".join(str(error).split())
        for secret in self._secrets:
            said = said.replace(secret, "***")
        return said or type(error).__name__
