"""lm-evaluation-harness scores and generates through the proxy as the model itself would."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.clients import lm_eval_task
from tests.live.clients.direct import write_tokenizer
from tests.live.clients.serving import Served

HERE = Path(__file__).parent
SCORED = ["wellspoken_choice", "wellspoken_rolling"]


def run(name: str, url: str, tasks: list[str], batch: int = 1, **more: Any) -> dict[str, Any]:
    model_args: dict[str, Any] = {"model": "tiny", "base_url": f"{url}/v1/completions"}
    model_args |= {"tokenizer": "tokenizer", "tokenizer_backend": "huggingface", "max_retries": 1}
    return {
        "name": name,
        "model": "local-completions",
        "model_args": model_args | more,
        "tasks": tasks,
        "batch_size": batch,
        "chat": False,
    }


def chat(url: str) -> dict[str, Any]:
    model_args = {"model": "tiny", "base_url": f"{url}/v1/chat/completions", "max_retries": 1}
    return {
        "name": "chat",
        "model": "local-chat-completions",
        "model_args": model_args,
        "tasks": ["wellspoken_chat"],
        "batch_size": 1,
        "chat": True,
    }


@pytest.fixture(scope="module")
def folder(served_bpe: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the documents and the tokenizer, where the harness runs."""
    found = tmp_path_factory.mktemp("lm-eval")
    lm_eval_task.write(found, served_bpe)
    (found / "tokenizer").mkdir()
    write_tokenizer(found / "tokenizer")
    return found


@pytest.fixture(scope="module")
def measure(folder: Path, client: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """A function (*runs) that returns what each run measured, by its name."""

    def measured(*runs: dict[str, Any]) -> dict[str, Any]:
        asked = json.dumps({"include": str(HERE / "tasks"), "runs": runs})
        out = client(folder, str(HERE / "ask_lm_eval.py"), asked)
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    return measured


def test_chat_generation_is_the_script(
    served_bpe: Served, measure: Callable[..., dict[str, Any]]
) -> None:
    found = measure(chat(served_bpe.proxy))
    lm_eval_task.check_generations(found["chat"], "chat", len(lm_eval_task.chats()))


def test_completions_score_and_generate_as_the_model_does(
    served_bpe: Served, measure: Callable[..., dict[str, Any]]
) -> None:
    """Prompts go one or four at a time as token ids, or as text; four requests at once."""
    url = served_bpe.proxy
    everything = [*SCORED, "wellspoken_generate"]
    runs = [
        run("ids", url, everything),
        run("batches", url, everything, batch=4),
        run("at once", url, everything, num_concurrent=4),
        run("text", url, ["wellspoken_generate"], tokenized_requests=False),
    ]
    found = measure(*runs)
    assert list(found) == [each["name"] for each in runs]
    for each in runs:
        one = found[each["name"]]
        lm_eval_task.check_generations(one, "generate", 3)
        if "wellspoken_choice" in each["tasks"]:
            lm_eval_task.check_choices(one, served_bpe)
            lm_eval_task.check_rolling(one, served_bpe)
    for mutate in (shift, swap, claim, doubt):
        mutant = copy.deepcopy(found["ids"])
        mutate(mutant)
        with pytest.raises(AssertionError):
            lm_eval_task.check_choices(mutant, served_bpe)
            lm_eval_task.check_rolling(mutant, served_bpe)


def test_a_cut_character_after_the_prompt_takes_no_number_away(
    served_bpe: Served, measure: Callable[..., dict[str, Any]]
) -> None:
    """The harness leaves out the last entry, as that of the one generated token.

    So there must be one, also when that token only begins a character.
    """
    found = measure(run("cut", served_bpe.proxy, ["wellspoken_cut"]))["cut"]
    lm_eval_task.check_choices(found, served_bpe, "wellspoken_cut")


def test_prompts_as_text_score_as_token_ids_do(
    served_bpe: Served, measure: Callable[..., dict[str, Any]]
) -> None:
    """The harness counts tokens as its tokenizer does, without BOS."""
    text = run("text", served_bpe.proxy, ["wellspoken_choice"], tokenized_requests=False)
    lm_eval_task.check_choices(measure(text)["text"], served_bpe)


def test_the_command_scores_as_the_model_does(
    served_bpe: Served, folder: Path, client: Callable[..., str]
) -> None:
    """`lm_eval run`, with the documents' numbers from the log that it writes."""
    model_args = f"model=tiny,base_url={served_bpe.proxy}/v1/completions,tokenizer=tokenizer"
    include = ("--include_path", str(HERE / "tasks"))
    argv = ("--model", "local-completions", "--model_args", model_args, "--tasks", *SCORED)
    client(folder, "-m", "lm_eval", "run", *argv, *include, "-o", "out", "--log_samples")
    (results,) = (folder / "out").rglob("results_*.json")
    found = {"results": json.loads(results.read_text())["results"], "samples": {}}
    for task in SCORED:
        (lines,) = (folder / "out").rglob(f"samples_{task}_*.jsonl")
        found["samples"][task] = [json.loads(line) for line in lines.read_text().splitlines()]
    lm_eval_task.check_choices(found, served_bpe)
    lm_eval_task.check_rolling(found, served_bpe)


def shift(found: dict[str, Any]) -> None:
    """One document's numbers are those of the next choice."""
    answers = found["samples"]["wellspoken_choice"][1]["filtered_resps"]
    answers.append(answers.pop(0))


def swap(found: dict[str, Any]) -> None:
    """A number is off by 1e-3."""
    answers = found["samples"]["wellspoken_choice"][2]["filtered_resps"]
    number, best = lm_eval_task.scored(answers[3])
    answers[3] = [number - 1e-3, best]


def claim(found: dict[str, Any]) -> None:
    """The accuracy is another than the documents'."""
    found["results"]["wellspoken_choice"]["acc,none"] = 1.0


def doubt(found: dict[str, Any]) -> None:
    """What greedy decoding would give is called something else."""
    for sample in found["samples"]["wellspoken_choice"]:
        sample["filtered_resps"] = [
            [lm_eval_task.scored(answer)[0], not lm_eval_task.scored(answer)[1]]
            for answer in sample["filtered_resps"]
        ]
