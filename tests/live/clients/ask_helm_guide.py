"""Loads a folder as HELM's prod_env and asks each of its deployments; prints one JSON line.

The line is {deployment: the answer's text, or the error}.
"""

from __future__ import annotations

import json
import sys

from helm.benchmark.config_registry import (  # type: ignore[import-not-found]
    register_configs_from_directory,
)
from helm.benchmark.model_deployment_registry import (  # type: ignore[import-not-found]
    ALL_MODEL_DEPLOYMENTS,
)
from helm.clients.auto_client import AutoClient  # type: ignore[import-not-found]
from helm.common.cache_backend_config import (  # type: ignore[import-not-found]
    BlackHoleCacheBackendConfig,
)
from helm.common.general import get_credentials  # type: ignore[import-not-found]
from helm.common.request import Request  # type: ignore[import-not-found]


def main() -> None:
    folder = sys.argv[1]
    register_configs_from_directory(folder)
    client = AutoClient(get_credentials(folder), folder, BlackHoleCacheBackendConfig())
    found = {}
    for deployment in ALL_MODEL_DEPLOYMENTS:
        asked = Request(
            model=deployment.model_name,
            model_deployment=deployment.name,
            prompt="Say this:\n",
            max_tokens=16,
            temperature=0.0,
        )
        result = client.make_request(asked)
        found[deployment.name] = result.completions[0].text if result.success else result.error
    print(json.dumps(found))


if __name__ == "__main__":
    main()
