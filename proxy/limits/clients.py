"""A client that the configuration names: which models it may use, how much of them, until when."""

from __future__ import annotations

import hmac
import re
from fnmatch import translate
from typing import Final

from wellspoken.proxy.config.auth_rules import expiry_of
from wellspoken.proxy.config.tables import AuthClient
from wellspoken.proxy.limits.quota import Quota

_LABEL: Final = b"wellspoken: owner of a named client's stored completions"


class KnownClient:
    """One [[auth.client]]: `owner` stands for it in the store, whichever of its keys is used.

    `expires`: in seconds since 1970, infinite where its keys do not end. `quota`: None without any
    limit.
    """

    __slots__ = ("_allowed", "expires", "name", "owner", "quota")

    def __init__(self, table: AuthClient) -> None:
        self.name = table.name
        self.owner = hmac.digest(table.name.encode(), _LABEL, "sha256").hex()[:32]
        limits = (table.requests_per_minute, table.tokens_per_minute, table.concurrent)
        self.quota = Quota(*(limit or 0 for limit in limits)) if any(limits) else None
        expires = expiry_of(table)
        self.expires = expires.timestamp() if expires is not None else float("inf")
        self._allowed: re.Pattern[str] | None = None  # None: every model
        if "*" not in table.models:
            self._allowed = re.compile("|".join(map(translate, table.models)))

    @property
    def is_confined(self) -> bool:
        """Whether there are models that it may not use."""
        return self._allowed is not None

    def may_use(self, model: str) -> bool:
        """Say whether it may use the model that clients call so."""
        return self._allowed is None or self._allowed.fullmatch(model) is not None
