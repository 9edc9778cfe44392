"""`wellspoken doctor`: what a backend says, what OpenAI says, and what the proxy makes of it.

    probe.py           a probe, a request, a response, and what is said about it
    contract.py        the contract: the Structs of what the proxy emits, and what types cannot say
    rules_*.py         the same of logprobs and of streams
    probes*.py         the probes: requests (probe_requests.py), and judges made of rules
    responses/         shapes, rules and probes of the Responses API
    sender.py          one side, the backend itself or the proxy in front of it
    diagnose.py        all probes on both sides
    reports/
      summary.py       what an examination comes to, in one line, and what to do about it
      printing.py      JSON, Markdown, a terminal
      saved.py         a report that was written as JSON, read again
      comparison.py    two reports side by side

A judge sees one side's responses and does not know whose they are, so that a repaired one is one
that the same judge refuses from the backend and accepts from the proxy. The rules share no code
with the translation, which encodes nothing through those Structs: what both got from one place,
both would get wrong.
"""
