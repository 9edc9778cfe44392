"""What can be known before `vllm serve` is started: its model, a GPU, memory.

A start that fails takes vLLM half a minute. Only what is sure refuses: where a GPU is and what it
has free differs in containers, on WSL and Jetson, and with MIG, and `nvidia-smi` may be missing.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from wellspoken.engine.failure import lasting_error
from wellspoken.engine.llamacpp.llamacpp_check import check_memory, has_device
from wellspoken.engine.vllm.vllm_arguments import has, number, option

ASK_SECONDS: Final = 5.0
UTILIZATION: Final = 0.92
"""vLLM's own --gpu-memory-utilization (0.32.0; 0.9 before)."""
LEAST: Final = 0.05
"""A share of a GPU's memory below which no model is worth a try."""
SHARED: Final = 1 << 30
"""Bytes of /dev/shm that several GPUs need: message queues of 160 to 240 MiB each, and NCCL's."""
QUERY: Final = (
    "--query-gpu=index,uuid,memory.free,memory.total",
    "--format=csv,noheader,nounits",
)
_DEVICES = (
    "nvidiactl", "nvidia[0-9]*", "kfd", "dri/renderD*", "dxg", "accel*", "nvhost-*", "nvgpu*",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)?")
_ELSEWHERE = ("RAY_ADDRESS", "VLLM_TARGET_DEVICE", "VLLM_PLUGINS")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
_PAGE = re.compile(r"(?:https?://)?(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+)")
_HUB_SCHEMES = ("s3://", "gs://", "az://", "http://", "https://")


class Gpu(NamedTuple):
    """One GPU as nvidia-smi lists it; memory in bytes."""

    number: str
    uuid: str
    free: int
    total: int


def check(
    model: str,
    arguments: Sequence[str],
    version: str,
    environ: Mapping[str, str],
    root: Path = Path("/"),
) -> list[str]:
    """Return warnings; raise EngineError that names what is missing.

    `version`: of the installed vLLM, "" where it is not known. `environ`: what vLLM will get.
    `root`: where /proc, /sys and /dev are.
    """
    size = check_model(model, arguments)
    if "cpu" in version.partition("+")[2] or option(arguments, "--device") == "cpu":
        return check_memory(_in_memory(model, size), 0, root) if size else []
    gpus = visible(ask_nvidia(environ), environ)
    _check_device(version, arguments, environ, gpus, root)
    return [*_check_gpus(size, arguments, gpus), *_check_shared(arguments, root)]


def check_model(model: str, arguments: Sequence[str]) -> int:
    """Return the bytes of the weights of a model's folder; 0 where it is to be downloaded.

    Raises EngineError for a path with nothing usable there, and for what can be no name.
    """
    if model.lower().endswith(".gguf"):
        raise lasting_error(
            f"{model} is a GGUF file, which vLLM reads badly or not at all: serve it with "
            "llama.cpp (kind llamacpp), or give vLLM the model's own folder or name (ORG/NAME)."
        )
    if model and os.path.isdir(model):  # unlike Path.is_dir it never raises
        return _check_folder(Path(model), arguments)
    if os.path.isfile(model):
        raise lasting_error(
            f"{model} is a file. vLLM takes the folder of a model (with config.json and "
            "*.safetensors), or its name on the Hugging Face Hub (ORG/NAME)."
        )
    page = _PAGE.match(model)
    if page is not None:
        raise lasting_error(f"{model} is a web page. Give the model's name: {page[1]}.")
    if model.startswith(_HUB_SCHEMES):
        return 0
    if model.startswith(("/", "./", "../", "~")) or model.count("/") > 1:
        raise lasting_error(
            f"there is no folder {model}. Give the path of a model's folder, or its name on the "
            "Hugging Face Hub (ORG/NAME)."
        )
    name = model.partition(":")[0]  # a quantization's name may follow
    if _NAME.fullmatch(name) is None or name.startswith(("-", ".")) or "--" in name:
        raise lasting_error(
            f"{model!r} is neither a folder nor a model's name (ORG/NAME: letters, digits and "
            "-_. only)."
        )
    return 0


def _check_folder(folder: Path, arguments: Sequence[str]) -> int:
    names = ("config.json", "params.json")  # the second: Mistral's own format
    if not any(os.path.exists(folder / name) for name in names) and not has(
        arguments, "--hf-config-path", "--tokenizer"
    ):
        gguf = sorted(file.name for file in folder.glob("*.gguf"))
        hint = f" It holds {gguf[0]}: serve that with llama.cpp (kind llamacpp)." if gguf else ""
        whole = sorted(file.parent for file in folder.glob("snapshots/*/config.json"))
        if whole:  # the folder of a model in the hub's cache
            hint = f" A model is in it: {whole[0]}."
        raise lasting_error(
            f"the folder {folder} has no config.json, so it is not a model that vLLM can "
            f"read.{hint}"
        )
    for pattern in _WEIGHTS:
        files = [file.stat().st_size for file in folder.glob(pattern)]
        if files:
            return sum(files)
    return 0


def _in_memory(folder: str, size: int) -> int:
    """Return the bytes that weights surely take: --dtype auto halves those of 32 bits."""
    try:
        config = json.loads((Path(folder) / "config.json").read_bytes())
        wide = config.get("dtype", config.get("torch_dtype")) == "float32"
    except (OSError, ValueError, AttributeError):
        return size  # Mistral's format, or one that vLLM will refuse
    return size // 2 if wide else size


def ask_nvidia(environ: Mapping[str, str]) -> list[Gpu] | None:
    """Return the GPUs that nvidia-smi lists; None where it is missing, fails or takes too long."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath))
    if program is None:
        return None
    try:
        said = subprocess.run(
            [program, *QUERY],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_SECONDS,
            check=True,
            env=dict(environ),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    gpus = []
    for line in said.stdout.decode("utf-8", "replace").splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 4 and fields[2].isdigit() and fields[3].isdigit():
            number, uuid, free, total = fields
            gpus.append(Gpu(number, uuid, int(free) << 20, int(total) << 20))
    return gpus


def visible(gpus: list[Gpu] | None, environ: Mapping[str, str]) -> list[Gpu] | None:
    """Return those that CUDA_VISIBLE_DEVICES leaves, in its order; None where that is not known."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if gpus is None or chosen is None:
        return gpus
    found = []
    for word in chosen.split(","):
        name = word.strip()
        match = [gpu for gpu in gpus if name and (name == gpu.number or gpu.uuid.startswith(name))]
        if len(match) != 1:
            return [] if _hides(chosen) else None  # MIG, or a name that is not listed
        found.append(match[0])
    return found


def _hides(chosen: str) -> bool:
    """Say whether this CUDA_VISIBLE_DEVICES hides every GPU."""
    return chosen.split(",")[0].strip() in ("", "-1", "none", "void", "NoDevFiles")


def _check_device(
    version: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    gpus: list[Gpu] | None,
    root: Path,
) -> None:
    """Raise EngineError where a vLLM built for CUDA has surely no GPU."""
    local = version.partition("+")[2]
    # Builds for other devices, and those for devices of plugins, have a local version.
    cuda = bool(version) and "dev" not in version and (not local or local.startswith("cu"))
    apart = option(arguments, "--distributed-executor-backend") == "ray" or any(
        environ.get(name) for name in _ELSEWHERE
    )
    if not cuda or apart or sys.platform != "linux":
        return
    if _hides(environ.get("CUDA_VISIBLE_DEVICES", "all")):
        raise lasting_error(
            "CUDA_VISIBLE_DEVICES hides every GPU from vLLM. Unset it, or name some (0,1)."
        )
    if gpus or has_device(root, *_DEVICES):
        return
    raise lasting_error(
        f"there is no GPU here (no /dev/nvidia*), and vLLM {version} is built for CUDA. In a "
        "container, pass the GPUs (--gpus all; Kubernetes: a limit for nvidia.com/gpu). Without a "
        "GPU take llama.cpp (kind llamacpp), or vLLM's build for CPUs."
    )


def _check_gpus(size: int, arguments: Sequence[str], gpus: list[Gpu] | None) -> list[str]:
    """Return what speaks against the start by the GPUs that are known."""
    if not gpus or option(arguments, "--distributed-executor-backend") == "ray":
        return []
    wanted = _gpus_wanted(arguments)
    if wanted > len(gpus) and not has(arguments, "--nnodes", "-n"):
        return [
            f"the parallel sizes need {wanted} GPUs, and {len(gpus)} are visible: lower "
            "--tensor-parallel-size or --pipeline-parallel-size, or widen CUDA_VISIBLE_DEVICES"
        ]
    taken = gpus[:wanted]
    share = number(arguments, UTILIZATION, "--gpu-memory-utilization")
    found = []
    for gpu in taken:
        if gpu.free < share * gpu.total and not has(arguments, "--kv-cache-memory-bytes"):
            fits = max(0, int(100 * gpu.free / gpu.total) - 1) / 100
            less = f", or give --gpu-memory-utilization {fits:g}" if fits >= LEAST else ""
            found.append(
                f"GPU {gpu.number} has {_gib(gpu.free)} of {_gib(gpu.total)} free, and vLLM wants "
                f"{share:g} of it all: end what else uses it (`nvidia-smi` lists that){less}"
            )
    room = sum(gpu.total for gpu in taken) * share
    if size > room and not has(arguments, "--cpu-offload-gb", "--quantization", "-q"):
        found.append(
            f"the model's weights have {_gib(size)}, and {len(taken)} of the GPUs {_gib(int(room))}"
            ": take a smaller or quantized model, or more GPUs (--tensor-parallel-size)"
        )
    return found


def _check_shared(arguments: Sequence[str], root: Path) -> list[str]:
    """Return a warning if the processes of several GPUs will lack shared memory."""
    if _gpus_wanted(arguments) < 2:
        return []
    try:
        about = os.statvfs(root / "dev/shm")
    except OSError:
        return []
    free = about.f_bavail * about.f_frsize
    if free >= SHARED:
        return []
    return [
        f"/dev/shm has {_gib(free)} free, and several GPUs need 1 GiB or more: start the "  # noqa: S108  a text
        "container with --shm-size=16g or --ipc=host (Kubernetes: an emptyDir of medium Memory)"
    ]


def _gpus_wanted(arguments: Sequence[str]) -> int:
    """Return how many GPUs the parallel sizes ask for on this machine."""
    sizes = (
        number(arguments, 1, "--tensor-parallel-size", "-tp"),
        number(arguments, 1, "--pipeline-parallel-size", "-pp"),
        number(arguments, 1, "--data-parallel-size-local", "-dpl")
        if has(arguments, "--data-parallel-size-local", "-dpl")
        else number(arguments, 1, "--data-parallel-size", "-dp"),
    )
    return math.prod(max(1, int(size)) for size in sizes)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
