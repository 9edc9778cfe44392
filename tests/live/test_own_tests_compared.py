"""What `make live-llamacpp` says of cases: lost by the proxy, or listed without need."""

from __future__ import annotations

from tests.live.llamacpp.own_tests import complaints, outcomes

REPORT = """<testsuites><testsuite><testcase name="good"/>
<testcase name="bad[1]"><failure message="no"/></testcase>
<testcase name="left"><skipped/></testcase><testcase name="broken"><error/></testcase>
</testsuite></testsuites>"""


def test_a_report_tells_how_each_case_ended() -> None:
    assert outcomes(REPORT) == {"good": "", "bad[1]": "no", "broken": "None"}


def test_a_case_is_lost_or_listed() -> None:
    direct = {"a[1]": "", "a[2]": "", "b": "alone it fails"}
    assert complaints(direct, {"a[1]": "", "a[2]": ""}, ()) == []
    assert complaints(direct, {"a[1]": "", "a[2]": "no"}, ()) == [
        "a[2] passes without the proxy: no"
    ]
    assert len(complaints(direct, {"a[1]": ""}, ())) == 1  # it was not run
    assert complaints(direct, {"a[1]": "", "a[2]": "no"}, {"a[2]"}) == []
    assert complaints(direct, {"a[1]": "", "a[2]": "no"}, {"a"}) == [
        "a[1] is listed, and passes: take it out"
    ]
    assert complaints(direct, {"a[1]": "", "a[2]": ""}, {"b"}) == [
        "b is listed, and no case of it passes alone"
    ]
