"""Why `vllm serve` does not start: how its log says so, what to do, and whether that lasts."""

from __future__ import annotations

import signal
from typing import Final, NamedTuple


class Cause(NamedTuple):
    """`sign`: a pattern in a line of the log; `lasting`: the next start would meet it again."""

    sign: str
    remedy: str
    lasting: bool


FOLLOW: Final = "The lines of its log before that tell more."

_MEMORY = (
    "The machine ran out of memory, most often: take a smaller or quantized model, or a machine "
    "(a container limit) with more"
)
_SHM = "Give the container more shared memory: --shm-size=16g, or --ipc=host"
_GPU = "Check that `nvidia-smi` (`rocm-smi`) lists a GPU here; a container needs --gpus all"
_LESS = (
    "Lower --max-model-len, --max-num-seqs or --gpu-memory-utilization, or spread the model over "
    "GPUs with --tensor-parallel-size; `nvidia-smi` shows what else holds the GPU's memory"
)
_LOGIN = (
    "Ask for access on the model's page on the Hugging Face Hub, and set HF_TOKEN to a token of "
    "that account"
)
_NAME = "Check the model's name (ORG/NAME on the Hugging Face Hub, or the path of a folder)"
_NETWORK = (
    "Check the network and HTTPS_PROXY, or download the model beforehand (`hf download ORG/NAME`) "
    "and give the folder"
)
_OLD = "Upgrade vLLM (pip install --upgrade vllm), or take a model that this version supports"
_FLAGS = "Correct `arguments`; `vllm serve --help=all` lists what this version takes"

SIGNALS: Final[dict[int, str]] = {
    signal.SIGKILL: f"it was killed. {_MEMORY}.",
    signal.SIGBUS: f"it ran out of shared memory (/dev/shm). {_SHM}.",
    signal.SIGILL: "its build uses instructions that this processor does not have. Install a "
    "build of vLLM for this machine.",
}
"""What the signals mean that end it without a word."""

_TABLE: Final = (
    # The command line. argparse prints `vllm: error: ` and ends with 2.
    (r"^vllm(?: serve)?: error: ", _FLAGS, True),
    (r"enable-auto-tool-choice requires|invalid (?:tool call|reasoning) parser", _FLAGS, True),
    # The shim, of a script whose Python is gone, for one.
    (r"could not start .*: (?:No such file|Permission denied|Exec format error)",
     "Install vLLM again: its command, or the Python that runs it, cannot be run", True),
    # Memory of the GPU.
    (r"Free memory on device .* is less than desired GPU memory utilization",
     "Something else holds the GPU's memory: end it (`nvidia-smi` lists it), or lower "
     "--gpu-memory-utilization", False),
    (r"Error in memory profiling",
     "Another process gave memory of the GPU back meanwhile; a new start helps", False),
    (r"when warming up sampler", "Lower --max-num-seqs or --gpu-memory-utilization", False),
    (r"CUDA out of memory|OutOfMemoryError|HIP out of memory|CUDA error: out of memory",
     _LESS, False),
    (r"No available memory for the cache blocks",
     "Raise --gpu-memory-utilization (on a CPU: VLLM_CPU_KVCACHE_SPACE, in GiB), or take a "
     "smaller or quantized model, or more GPUs", True),
    (r"larger than the available KV cache memory",
     "Lower --max-model-len, or raise --gpu-memory-utilization (on a CPU: "
     "VLLM_CPU_KVCACHE_SPACE, in GiB)", True),
    (r"is greater than the derived max_model_len",
     "The model has no such context: lower --max-model-len", True),
    # The GPU itself.
    (r"Failed to infer device type", f"vLLM finds no GPU that this build of it is for. {_GPU}",
     True),
    (r"No CUDA GPUs are available|Found no NVIDIA driver|libcuda\.so\.1: cannot open", _GPU, True),
    (r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
     "Update the NVIDIA driver, or install a vLLM built for an older CUDA", True),
    (r"no kernel image is available for execution",
     "This build of vLLM has no code for this GPU: take another build, or another GPU", True),
    (r"World size \(\d+\) is larger than the number of available GPUs",
     "Lower --tensor-parallel-size and --pipeline-parallel-size, or name more GPUs in "
     "CUDA_VISIBLE_DEVICES", True),
    (r"Bfloat16 is only supported on GPUs", "Give --dtype=half", True),
    # The model: its place, the right to read it, its kind.
    (r"gated repo|is a gated repository", _LOGIN, True),
    (r"401 Client Error|Invalid user token|Invalid credentials in Authorization", _LOGIN, True),
    (r"Repository Not Found|is not a local folder and is not a valid model identifier"
     r"|Repo id must be in the form|Repo id must use alphanumeric"
     r"|Invalid repository ID or local directory", _NAME, True),
    (r"not a valid git identifier", "Check --revision: the model has no such branch, tag or commit",
     True),
    (r"offline mode is enabled|outgoing traffic has been disabled",
     "The model is not in the cache, and HF_HUB_OFFLINE forbids to load it: unset that, or "
     "give the folder of a model", True),
    (r"[Cc]ouldn't connect to|MaxRetryError|Temporary failure in name resolution"
     r"|Name or service not known|Failed to establish a new connection", _NETWORK, False),
    (r"contains custom code which must be executed|trust_remote_code=True",
     "If you trust the model's authors, give --trust-remote-code", True),
    (r"are not supported for now|failed to be inspected|not supported anymore"
     r"|does not recognize this architecture", _OLD, True),
    (r"Cannot find any model weights",
     "The folder has no weights that vLLM reads (*.safetensors): download the model again", True),
    (r"SafetensorError|header too large|MetadataIncompleteBuffer|InvalidHeaderDeserialization",
     "A file of the weights is not whole: download the model again", True),
    # The machine.
    (r"\[Errno 98\]|Address already in use", "A port or socket that it needs is taken", False),
    (r"AF_UNIX path too long", "Set XDG_RUNTIME_DIR or TMPDIR to a folder with a short path", True),
    (r"Insufficient space in /dev/shm|No space left on device.*/dev/shm"
     r"|/dev/shm.*No space left|exit code: -7\b", _SHM, False),
    (r"No space left on device", "Free disk space; HF_HOME says where models are kept", False),
    (r"exit code: -9\b", _MEMORY, False),
    (r"NCCL error|ncclSystemError|ncclUnhandledCudaError|unhandled system error",
     "The GPUs could not talk to each other: NCCL_DEBUG=INFO in `environment` tells more; in a "
     f"container most often: {_SHM[0].lower()}{_SHM[1:]}", False),
    (r"[Tt]imed out waiting for engine core", "Raise start_timeout", False),
    (r"\[type=\w+, input_value=", _FLAGS, True),  # pydantic refuses a setting
)  # fmt: skip

CAUSES: Final = tuple(Cause(sign, f"{remedy}.", lasting) for sign, remedy, lasting in _TABLE)
"""Where one line fits several, the first of them counts."""
