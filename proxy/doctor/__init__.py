"""`wellspoken doctor`: what a backend says, what OpenAI says, and what the proxy makes of it.

    model.py      a probe, a request, an answer, and what is said about it
    rules*.py     the contract, as functions that yield what is wrong
    probes*.py    the probes: requests, and judges made of rules
    asking.py     one side, the backend itself or the proxy in front of it, and its answers
    examine.py    all probes on both sides
    report.py     JSON and Markdown;  display.py: a terminal

A judge sees one side's answers and does not know whose they are, so that a repaired answer is one
that the same judge refuses from the backend and accepts from the proxy. The rules share no code
with the translation: what both got from one place, both would get wrong.
"""
