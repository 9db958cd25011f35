"""What the first lines of a file tell about it."""

from __future__ import annotations

import pytest

from drtk.data.sniff import CANDIDATES, EITHER, EXAMPLES, JUDGEMENTS, PASSAGES, QUERIES, RANKED, RUN, kind_of


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"q1 Q0 d1 1 2.5 tag\nq1 Q0 d2 2 1.5 tag\n", RUN),
        (b"query-id\tcorpus-id\tscore\nq1\td1\t1\n", JUDGEMENTS),
        (b"# a comment\nq1 0 d1 1\n", JUDGEMENTS),
        (b"q1\td1\t1\n", RANKED),
        (b"7\t15\twhat is it\tIt is this.\n7\t16\twhat is it\tOr 2 of these.\n", CANDIDATES),
        (b"7\t0\t15\t1\n", JUDGEMENTS),
        (b'{"query_id": "q1", "positives": ["d1"], "negatives": []}\n', EXAMPLES),
        (b'[{"question": "why?", "answers": ["so"], "positive_ctxs": []}, {"questi', EXAMPLES),
        (b'\xef\xbb\xbf{"question": "why?", "answer": ["so"]}\n', QUERIES),
        (b'{"docid": "d1", "text": "x"}\n', PASSAGES),
        (b"d1\ta text\ta title\n", EITHER),
    ],
)
def test_each_kind_is_told_by_its_lines(head: bytes, kind: str) -> None:
    assert kind_of(head) == kind


def test_a_last_line_that_is_cut_off_is_passed_over() -> None:
    assert kind_of(b"q1 Q0 d1 1 2.5 tag\nq1 Q0 d2") == RUN


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\n\n",
        b"hello world\n",
        b"q1 Q0 d1 1 2.5 tag\nq1 0 d2 2\n",  # a run with a damaged line is no other kind
        b'{"query_id": "q1", "positives": ["d1"]}\n{"_id": "q1", "text": "x"}\n',
        b'{"broken\n',
        b"\xff\xfe\x00\n",
    ],
)
def test_lines_that_tell_nothing_or_disagree_are_of_no_kind(head: bytes) -> None:
    assert kind_of(head) is None
