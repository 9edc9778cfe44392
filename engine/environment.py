"""The environment an engine gets: what it may need, and none of the proxy's secrets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

NAMES: Final = frozenset(
    (
        "PATH HOME USER LOGNAME SHELL LANG TZ TMPDIR LD_LIBRARY_PATH LD_PRELOAD CONDA_PREFIX "
        "VIRTUAL_ENV PYTHONHASHSEED DO_NOT_TRACK NO_COLOR MASTER_ADDR MASTER_PORT MAX_JOBS CC CXX "
        "http_proxy https_proxy no_proxy all_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY "
        "SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HUGGING_FACE_HUB_TOKEN NETRC "
        "CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH LIBRARY_PATH"
    ).split()
)
"""Variables that pass by name: the machine's, its compiler's, the user's, certificates, proxies."""

PREFIXES: Final = tuple(
    (
        "LC_ XDG_ CUDA_ NVIDIA_ CUDNN_ CUBLAS_ NCCL_ UCX_ UCC_ GLOO_ TP_SOCKET_ FI_ NVSHMEM_ VLLM_ "
        "HF_ TRANSFORMERS_ TOKENIZERS_ TIKTOKEN_ SAFETENSORS_ TORCH TRITON_ PYTORCH_ FLASHINFER_ "
        "FLASH_ATTENTION_ DG_ OMP_ KMP_ MKL_ GOMP_ NUMEXPR_ NUMBA_ RAY_ LMCACHE_ MOONCAKE_ NIXL_ "
        "HIP_ ROCR_ HSA_ ROCM_ AITER_ RCCL_ MIOPEN_ AMD_ GPU_ ONEAPI_ ZE_ SYCL_ CCL_ XPU_ TPU_ "
        "LIBTPU_ JAX_ XLA_ PJRT_ HABANA_ PT_HPU_ GGML_"
    ).split()
)
"""What begins the names of those that pass for a GPU, a maths library, vLLM or its helpers."""

HARMFUL: Final = (
    "VLLM_API_KEY",  # our own requests would get 401
    "VLLM_PORT*",  # Kubernetes sets it for a service named vllm, and vLLM refuses its value
    "VLLM_SERVICE_*",
    "VLLM_SERVER_DEV_MODE",  # routes that put the server to sleep
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH",  # a dead engine must end
)
"""Patterns of those that a prefix would let pass and that break or open what is run here."""

OURS: Final = "WELLSPOKEN_"
"""What begins the names of the proxy's own variables."""


def pass_environment(
    environ: Mapping[str, str],
    inherit: Sequence[str],
    extra: Mapping[str, str],
    own: Iterable[str] = (),
) -> dict[str, str]:
    """Return an engine's whole environment: what may pass of `environ`, then `extra`.

    `inherit`: names that pass too; one ending in `*` stands for all that begin so. A HARMFUL one
    passes only by its exact name. The proxy's own (`WELLSPOKEN_*`, and the names in `own`, which
    hold its keys) never pass. `extra` holds values and always wins.
    """
    proxys = frozenset(own)

    def passes(name: str) -> bool:
        if name.startswith(OURS) or name in proxys:
            return False
        if name in inherit:
            return True
        if any(_matches(name, pattern) for pattern in HARMFUL):
            return False
        if name in NAMES or name.startswith(PREFIXES):
            return True
        return any(_matches(name, pattern) for pattern in inherit)

    return {name: value for name, value in environ.items() if passes(name)} | dict(extra)


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
