"""A response's id and those of its items: each item's tells the response's."""

from __future__ import annotations

import pytest

from wellspoken.adapters.exchange import GIVEN, ResponseFacts, response_of_item

FACTS = ResponseFacts(suffix="0123456789abcdef_-", echo={}, clock=int)


@pytest.mark.parametrize("place", [0, 1, 10_000])
@pytest.mark.parametrize("given", [False, True])
def test_an_items_id_tells_its_response(place: int, given: bool) -> None:
    id = FACTS.item_id("msg", place, given=given)
    assert response_of_item(id) == (FACTS.id, place + (GIVEN if given else 0))


@pytest.mark.parametrize("id", [FACTS.id, "", "msg_", "msg_1", "msg_00000001", "msg_x0000000G"])
def test_an_id_of_somebody_elses(id: str) -> None:
    assert response_of_item(id) is None
