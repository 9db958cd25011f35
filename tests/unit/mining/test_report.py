"""The report: sampled quantiles, bins, and the page."""

from collections.abc import Sequence

import pytest

from drtk.mining.report import AuditSummary, Distribution, build_sections, format_page, summarize_audit


def distribution_of(values: Sequence[float]) -> Distribution:
    distribution = Distribution()
    for at, value in enumerate(values):
        distribution.add(value, str(at))
    return distribution


def test_quantiles_of_many_numbers_are_those_of_a_fair_sample():
    distribution = distribution_of([number / 20_000 for number in range(20_000)])
    assert (distribution.count, distribution.minimum, distribution.maximum) == (20_000, 0.0, 19_999 / 20_000)
    # of 4,000 sampled, a quantile at 1/2 has a standard error of sqrt(.25 / 4000) = .0079
    assert distribution.compute_quantiles(0.05, 0.5, 0.95) == pytest.approx([0.05, 0.5, 0.95], abs=0.04)


def test_integers_get_bins_of_equally_many_values():
    # ranks 2 to 20 in up to 40 bins: one bin per rank
    shares, edges = distribution_of([float(rank) for rank in range(2, 21)]).compute_histogram(40)
    assert shares == pytest.approx([1 / 19] * 19)
    assert edges[:2] == [1.5, 2.5]
    # ranks 1 to 100: three per bin, and rank 100 alone in the last
    shares, _ = distribution_of([float(rank) for rank in range(1, 101)]).compute_histogram(40)
    assert shares == pytest.approx([0.03] * 33 + [0.01])
    assert distribution_of([0.0, 0.1, 0.9, 1.0]).compute_histogram(2) == ([0.5, 0.5], [0.0, 0.5, 1.0])


def test_an_empty_report_and_histograms_of_more_than_one_number():
    ((title, _, rows),) = build_sections(summarize_audit([]))
    assert (title, rows) == ("Examples", [("queries", "0"), ("examples", "0")])
    summary = AuditSummary(rank=distribution_of([1.0, 2.0]), values={"gap": distribution_of([0.1, 0.7])})
    summary.values["ce"] = distribution_of([1.0])
    page = "\n".join(format_page(summary))
    assert page.count("<figure>") == 2
    assert "rank in its source; 1 to 2, mean 1.5" in page


def test_the_most_suspicious_queries_are_shown_first():
    rows = []
    for number in range(50):
        kept = {"id": "d", "source": "s", "rank": 1 + number}
        if number in (7, 9):
            kept["suspicious"] = ["above"]
        rows.append({"query_id": f"q{number}", "positives": [], "kept": [kept], "dropped": [], "not_sampled": 0})
    summary = summarize_audit(rows, num_queries=6)
    # A suspicious negative of rank 8 weighs more than one of rank 10.
    assert [row["query_id"] for row in summary.shown[:2]] == ["q7", "q9"]
    assert len({row["query_id"] for row in summary.shown}) == 6
    assert (summary.suspects, summary.num_negatives) == (2, 50)
