"""Whole answers whose tiling is known (contract rule 7), and an oracle of what comes out.

`draw` makes a `Case`: the tokens that a model made, what each of them is (content, reasoning,
markup, end), and how one kind of server shows them. `product` translates its bytes, `oracle` names
what is wrong with the outcome. `python -m tests.adapters.properties.runs 10000` runs many.
"""
