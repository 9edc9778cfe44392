"""One answer, told compactly: what the model made, the wire, and what came out."""

from __future__ import annotations

from tests.adapters.properties.runs.model import Case
from tests.adapters.properties.runs.oracle import Wrong, match, read
from tests.adapters.properties.runs.product import Output

NEAR = 5
SMALL = 40  # tokens that are shown all


def near_wrong(case: Case, wrong: list[Wrong]) -> set[int]:
    """Return the tokens to show: those beside one that something is wrong with."""
    size = len(case.tokens)
    found = {int(w.detail.split()[0]) for w in wrong if w.detail.split(" ")[0].isdigit()}
    if size <= SMALL or not found:
        return set(range(size))
    return {n for n in range(size) if any(abs(n - m) <= NEAR for m in found)}


def tell(case: Case, output: Output, wrong: list[Wrong]) -> str:
    """Return the tokens beside their entries, the events, and what is wrong."""
    lines = [f"seed {case.seed}  {case.tag}  k {case.k}  arrays {case.arrays}  {case.loose}"]
    lines += [f"content {case.content!r}  finish {case.finish}  stops {case.stops}"]
    if case.reasoning is not None or case.call is not None:
        lines.append(f"reasoning {case.reasoning!r}  call {case.call}")
    came: dict[int, list[str]] = {}
    strange: list[str] = []
    if not output.failed:
        content, entries = read(case, output.answer["choices"][0])
        lines.append(f"came    {content!r}  repairs {output.repairs}")
        if entries is None:
            lines.append("logprobs null")
        places = match(case, entries or [])[0]
        for n, entry in zip(places, entries or [], strict=True):
            told = f"{entry.token!r} {entry.data!r}"
            if n is None:
                strange.append(f"     ? {told} {entry.logprob}")
            else:
                came.setdefault(n, []).append(told)
    near = near_wrong(case, wrong)
    for n, (token, shown) in enumerate(zip(case.tokens, case.shown, strict=True)):
        if n not in near:
            lines += [] if lines[-1] == "     ..." else ["     ..."]
            continue
        octets = shown.octets if isinstance(shown.octets, str | None) else bytes(shown.octets)
        wire = f"{shown.name!r} {octets!r}"
        lines.append(
            f"{n:4} {token.role} {token.data!r:28} wire {wire:36} -> "
            f"{' AND '.join(came.get(n, ['-']))}   {token.logprob}"
        )
    lines += strange
    for n, chunk in enumerate(case.chunks):
        more = f" reasoning {chunk.reasoning!r}" if chunk.reasoning else ""
        more += f" call {chunk.call['function']}" if chunk.call else ""
        lines.append(f"  chunk {n}: {chunk.entries} {chunk.text!r}{more}")
    lines += [f"{each.name.upper()} {each.detail}" for each in wrong] or ["nothing is wrong"]
    return "\n".join(lines)
