"""What is read from vLLM's log.

The files are what vLLM 0.32.0 printed (their README says how); lines written here are constructed
after vLLM's source (the version beside each), since no GPU and no hub was there to make them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wellspoken.engine.vllm.vllm_causes import CAUSES
from wellspoken.engine.vllm.vllm_log import SAID, diagnosis, phase, plain

LOGS = Path(__file__).parents[1] / "fixtures" / "engine" / "vllm-0.32.0"
CORE = "(EngineCore pid=77) ERROR 11-22 04:56:16 [core.py:1234] "
OLD = "ERROR 07-25 10:00:00 core.py:633] "


def lines(name: str) -> list[str]:
    """Return the lines of a captured log as `child.LineCutter` cuts them."""
    text = (LOGS / name).read_bytes().decode()
    return [line for line in re.split(r"[\r\n]+", text) if line]


def phases(name: str) -> list[str]:
    """Return the phases of a captured log, each once where it repeats."""
    found: list[str] = []
    for line in lines(name):
        said = phase(line)
        if said is not None and said not in found[-1:]:
            found.append(said)
    return found


def test_the_phases_of_a_start() -> None:
    assert phases("eager.txt") == [
        "reading the configuration",
        "checking the model's configuration",
        "starting its workers",
        "loading the model",
        "loading weights 0 %",
        "loading weights 100 %",
        "preparing the model",
        "reserving the KV cache",
        "starting its HTTP server",
    ]


def test_a_start_that_compiles_says_so() -> None:
    assert phases("compiled.txt")[6:9] == [
        "preparing the model",
        "compiling",
        "reserving the KV cache",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # vllm/model_executor/model_loader/weight_utils.py 0.32.0, tqdm's format
        (
            "Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:10<00:15,  5.0s/it]",
            "loading weights 40 %",
        ),
        (
            "Loading pt checkpoint shards:  50% Completed | 1/2 [00:01<00:01]",
            "loading weights 50 %",
        ),
        (
            "Multi-thread loading shards: 100% Completed | 4/4 [00:09<00:00]",
            "loading weights 100 %",
        ),
        # gpu_model_runner.py, 0.32.0, and model_runner.py of V0
        (
            "(Worker_TP0 pid=5) Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  "
            "18%|█▊        | 12/67 [00:01<00:04, 12.9it/s]",
            "capturing CUDA graphs 12/67",
        ),
        (
            "Capturing CUDA graph shapes:  34%|███▍      | 12/35 [00:04<00:08,  2.62it/s]",
            "capturing CUDA graphs 12/35",
        ),
        ("Capturing CUDA graphs:  34%| ", "capturing CUDA graphs 34 %"),
        # compilation/backends.py and monitor.py
        (
            "(EngineCore pid=7) INFO 11-22 04:56:16 [backends.py:1] Dynamo bytecode transform "
            "time: 6.10 s",
            "compiling",
        ),
        ("INFO 07-25 10:00:00 backends.py:430] Compiling a graph for dynamic shape", "compiling"),
        (
            "INFO 07-25 10:00:00 monitor.py:33] torch.compile takes 21.79 s in total",
            "measuring memory",
        ),
        # model_executor/warmup
        ("Compiling CuTeDSL kernels:  25%|██▌       | 1/4 [00:01<00:03]", "compiling 25 %"),
        ("DeepGEMM warmup:  10%|█         | 100/1000 [00:01<00:09]", "warming up its kernels 10 %"),
        # huggingface_hub's own bars
        (
            "tokenizer.json:  31%|███▏      | 2.12M/6.83M [00:00<00:01]",
            "downloading tokenizer.json 31 %",
        ),
        ("Fetching 3 files:  33%|███▎      | 1/3 [00:01<00:02]", "downloading 1/3 files"),
        # a bar that tells nothing, and text that is no bar
        ("Processed prompts:  50%|█████     | 1/2 [00:01<00:01]", None),
        ("INFO:     Started server process [10224]", None),
        ("GPU 0 usage: 50% of memory", None),
        ("", None),
    ],
)
def test_the_phase_of_a_line(line: str, expected: str | None) -> None:
    assert phase(line) == expected


def test_a_phase_is_short() -> None:
    long = phase("a" * 300 + ".safetensors:  31%|███▏      | 2.12M/6.83M [00:00<00:01]")
    assert long is not None and len(long) <= 60


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"{CORE}ValueError: x", "ValueError: x"),
        (f"{OLD}ValueError: x", "ValueError: x"),
        ("(Worker_TP0 pid=5) x", "x"),
        ("INFO:     Started", "INFO:     Started"),
        ("(not a prefix) x", "(not a prefix) x"),
    ],
)
def test_the_prefix_goes(line: str, expected: str) -> None:
    assert plain(line) == expected


@pytest.mark.parametrize(
    ("name", "said", "remedy", "lasting"),
    [
        ("bad-flag.txt", "unrecognized arguments: --no-such-flag 3", "--help=all", True),
        ("bad-value.txt", "--max-model-len", "--help=all", True),
        ("bad-parser.txt", "invalid tool call parser: hermess", "--help=all", True),
        ("no-folder.txt", "'/models/nosuch'", "ORG/NAME", True),
        ("offline.txt", "outgoing traffic has been disabled", "HF_HUB_OFFLINE", True),
        ("unreachable.txt", "Name or service not known", "Check the network", False),
        ("unknown-architecture.txt", "['NoSuchForCausalLM'] are not supported", "Upgrade", True),
        ("no-weights.txt", "Cannot find any model weights", "download the model again", True),
        ("broken-weights.txt", "", "download the model again", True),
        ("context-too-long.txt", "is greater than the derived max_model_len", "lower", True),
        ("kv-cache-too-small.txt", "larger than the available KV cache", "--max-model-len", True),
    ],
)
def test_why_a_start_failed(name: str, said: str, remedy: str, lasting: bool) -> None:
    why = diagnosis(1, lines(name))
    assert said in why.text
    assert remedy in why.text
    assert why.lasting is lasting


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("*.txt")))
def test_the_last_400_lines_are_enough(name: str) -> None:
    assert diagnosis(1, lines(name)[-400:]) == diagnosis(1, lines(name))


CONSTRUCTED = [
    # gpu_worker.py and v1/worker/utils.py 0.32.0
    ("ValueError: Free memory on device cuda:0 (10.1/79.2 GiB) on startup is less than desired GPU "
     "memory utilization (0.92, 72.8 GiB). Decrease GPU memory utilization.", "nvidia-smi", False),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
     "capacity of 79.1 GiB", "--tensor-parallel-size", False),
    ("RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests.",
     "--max-num-seqs", False),
    ("AssertionError: Error in memory profiling. Initial free memory 70 GiB, current 75 GiB.",
     "new start", False),
    # v1/core/kv_cache_utils.py
    ("ValueError: No available memory for the cache blocks. Try increasing "
     "`gpu_memory_utilization` when initializing the engine.", "--gpu-memory-utilization", True),
    ("ValueError: To serve at least one request with the models's max seq len (131072), (16.0 GiB "
     "KV cache is needed, which is larger than the available KV cache memory (5.2 GiB). Based on "
     "the available memory, the estimated maximum model length is 42560.", "--max-model-len", True),
    # platforms, torch
    ("RuntimeError: Failed to infer device type, please set VLLM_LOGGING_LEVEL=DEBUG", "GPU", True),
    ("RuntimeError: No CUDA GPUs are available", "--gpus all", True),
    ("RuntimeError: Found no NVIDIA driver on your system.", "nvidia-smi", True),
    ("ImportError: libcuda.so.1: cannot open shared object file: No such file", "nvidia", True),
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 12020).", "Update",
     True),
    ("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the "
     "device", "another GPU", True),
    ("ValueError: World size (8) is larger than the number of available GPUs (4) in this node.",
     "--tensor-parallel-size", True),
    ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
     "--dtype=half", True),
    # transformers/utils/hub.py 5.19, huggingface_hub 2.4
    ("OSError: You are trying to access a gated repo.", "HF_TOKEN", True),
    ("Cannot access gated repo for url https://huggingface.co/a/b/resolve/main/config.json.",
     "HF_TOKEN", True),
    ("httpx.HTTPStatusError: Client error: 401 Client Error. (Request ID: x)", "HF_TOKEN", True),
    ("OSError: a/b is not a local folder and is not a valid model identifier listed on "
     "'https://huggingface.co/models'", "ORG/NAME", True),
    ("OSError: nope is not a valid git identifier (branch name, tag name or commit id)",
     "--revision", True),
    ("OSError: We couldn't connect to 'https://huggingface.co' to load the files", "network",
     False),
    ("ValueError: Invalid repository ID or local directory specified: 'x'.", "ORG/NAME", True),
    ("ValueError: The repository a/b contains custom code which must be executed to correctly "
     "load the model.", "--trust-remote-code", True),
    ("ValueError: Model architectures ['X'] failed to be inspected.", "Upgrade", True),
    ("Model architecture X was supported until v0.9, and is not supported anymore.", "Upgrade",
     True),
    # engine/shim.py
    ("could not start /venv/bin/vllm: No such file or directory", "Install vLLM again", True),
    # pydantic 2.12
    ("max_num_seqs (0) must be positive [type=value_error, input_value=ArgsKwargs(())]",
     "--help=all", True),
    # the machine
    ("OSError: [Errno 98] Address already in use", "taken", False),
    ("OSError: AF_UNIX path too long", "XDG_RUNTIME_DIR", True),
    ("RuntimeError: Insufficient space in /dev/shm for the message queue", "--shm-size", False),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/nccl-abc'", "--shm-size", False),
    ("OSError: [Errno 28] No space left on device", "disk", False),
    ("Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",
     "memory", False),
    ("Worker proc VllmWorker-0 died unexpectedly (exit code: -7), shutting down executor.",
     "--shm-size", False),
    ("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
     "NCCL_DEBUG", False),
    ("TimeoutError: Timed out waiting for engine core processes to start.", "start_timeout",
     False),
]  # fmt: skip


@pytest.mark.parametrize(("line", "remedy", "lasting"), CONSTRUCTED)
@pytest.mark.parametrize("prefix", ["", CORE, OLD], ids=["bare", "new", "old"])
def test_the_cause_in_one_line(prefix: str, line: str, remedy: str, lasting: bool) -> None:
    generic = "RuntimeError: Engine core initialization failed. See root cause above."
    why = diagnosis(1, ["INFO 07-25 10:00:00 a.py:1] x", prefix + line, generic])
    assert remedy in why.text
    assert why.lasting is lasting
    assert "See root cause above" not in why.text


@pytest.fixture(scope="module")
def causes_shown() -> set[object]:
    """The first cause of each line that there is."""
    shown = [line for line, _, _ in CONSTRUCTED]
    shown += [line for log in LOGS.glob("*.txt") for line in lines(log.name)]
    return {next((c for c in CAUSES if re.search(c.sign, plain(text))), None) for text in shown}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.sign[:40])
def test_each_cause_has_a_log_that_shows_it(cause: object, causes_shown: set[object]) -> None:
    assert cause in causes_shown


def test_the_first_cause_counts() -> None:
    cascade = [
        f"{CORE}EngineCore failed to start.",
        f"{CORE}Traceback (most recent call last):",
        f'{CORE}  File "/venv/x.py", line 1, in f',
        f'{CORE}    raise ValueError("No available memory for the cache blocks.")',
        f"{CORE}torch.OutOfMemoryError: CUDA out of memory.",
        "OSError: [Errno 28] No space left on device",
    ]
    assert "CUDA out of memory" in diagnosis(1, cascade).text
    assert "disk" in diagnosis(1, cascade[::-1]).text


def test_a_warning_is_no_cause() -> None:
    warned = "(APIServer pid=1) WARNING 11-22 04:55:04 [x.py:1] like `OSError: [Errno 98] x`"
    why = diagnosis(1, [warned, f"{CORE}KeyError: 'q_proj'"])
    assert why.text.startswith("KeyError: 'q_proj'. ")
    assert not why.lasting


def test_what_pydantic_refuses_is_said_by_its_next_line() -> None:
    log = [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig",
        "  Value error, max_num_seqs (0) must be positive [type=value_error, input_value=ArgsKwargs"
        "(()), input_type=ArgsKwargs]",
    ]
    why = diagnosis(1, log)
    assert why.text.startswith("max_num_seqs (0) must be positive. ")
    assert why.lasting


@pytest.mark.parametrize(
    ("code", "expected"),
    [(-9, "ran out of memory"), (-7, "shared memory"), (-4, "instructions"), (-11, "ends with: x")],
)
def test_a_signal_without_a_word(code: int, expected: str) -> None:
    why = diagnosis(code, ["x"])
    assert expected in why.text
    assert not why.lasting


def test_an_end_that_nothing_explains_quotes_the_log() -> None:
    assert "ends with: b | c | d" in diagnosis(3, ["a", "b", "", "c", "d"]).text
    assert "logged nothing" in diagnosis(3, []).text


def test_a_message_is_bounded() -> None:
    endless = diagnosis(1, [f"{CORE}ValueError: {'x' * 2_000}"]).text
    assert len(endless) < SAID + 100
    sentences = f"{CORE}ValueError: It is so. {'And so on. ' * 200}"
    assert diagnosis(1, [sentences]).text.count("And so on") < 40
