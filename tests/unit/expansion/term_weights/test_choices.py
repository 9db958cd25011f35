"""What a method or a kind of work does not look at is refused, by one table that knows every choice."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from drtk.errors import UsageError
from drtk.expansion.config import WeightingSettings
from drtk.expansion.term_weights import TERM_WEIGHTS
from drtk.expansion.term_weights.base import SETTINGS, check_settings
from tests.running import command, write
from tests.tiny import tiny_model


def test_the_table_knows_every_setting_and_no_other() -> None:
    assert set(SETTINGS) == {item.name for item in fields(WeightingSettings)}


@pytest.mark.parametrize("method", TERM_WEIGHTS)
def test_what_is_at_its_default_is_never_refused(method: str) -> None:
    for work in ("weigh", "collect", "merge", "train"):
        check_settings(method, WeightingSettings(), work)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "m")


ONLY_WITH_TRAIN = [
    "--batch",
    "--epochs",
    "--steps",
    "--lr",
    "--warmup",
    "--weight-decay",
    "--log-every",
    "--save-every",
]
BPROP, TFIDF, IDF, BM25 = (["--method", name] for name in ("bprop", "tfidf", "idf", "bm25"))


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        *(([*IDF, flag, "1"], f"{flag}: only with --train") for flag in ONLY_WITH_TRAIN),
        ([*IDF, "--precision", "float32"], "--precision: only with --train"),
        ([*IDF, "--trainer", "a=1"], "--trainer: only with --train"),
        ([*TFIDF, "--saturation", "sqrt"], "--saturation: only for --method bprop"),
        ([*TFIDF, "--k1", "1.2"], "--k1: only for --method bm25"),
        ([*IDF, "--emit", "softmax"], "--emit: only for --method bprop"),
        ([*IDF, "--max-length", "9"], "--max-length: only for --method bprop, deepct and deepimpact"),
        ([*IDF, "--min-words", "1"], "--min-words: only for --method bprop"),
        ([*IDF, "--expand", "queries"], "--expand: only for --method deepimpact"),
        ([*BPROP, "--emit", "attention", "--contrast", "difference"], "--contrast: --emit attention looks at no"),
        ([*BPROP, "--emit", "attention", "--min-words", "2"], "--min-words: --emit attention looks at no"),
        ([*BPROP, "--softmax-temperature", "2"], "--softmax-temperature: only with --emit softmax"),
        ([*IDF, "--collect", "--report"], "--collect writes statistics; --report is for weighing"),
        ([*IDF, "--collect", "--normalize", "sum"], "--collect writes statistics; --normalize is for weighing"),
        ([*IDF, "--collect", "--bare"], "--collect writes statistics; --bare is for weighing"),
        ([*IDF, "--collect", "--collection", "c"], "--collect writes statistics; --collection is for weighing"),
        ([*BM25, "--collect", "--b", "0.5"], "--collect writes statistics; --b is for weighing"),
        ([*IDF, "--merge", "--collection", "c"], "--merge joins the files of --collection; INPUT is for weighing"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    tmp_path: Path, tiny: Path, capfd: pytest.CaptureFixture[str], more: list[str], complaint: str
) -> None:
    source = write(tmp_path / "c", '{"_id": "a", "text": "rivers"}\n')
    with pytest.raises(UsageError, match=complaint):
        command(capfd, "termweight", source, "--model", tiny, *more)


def test_the_options_of_counting_may_be_said_to_all_kinds_of_work(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "c", '{"_id": "a", "text": "rivers"}\n')
    call = ["--method", "bprop", "--model", str(tiny), "--saturation", "sqrt", "--stemmer", "porter"]
    command(capfd, "termweight", "c", *call, "--collect", "-o", "s")
    command(capfd, "termweight", *call, "--merge", "--collection", "s", "-o", "m")
    assert command(capfd, "termweight", "c", *call, "--collection", "m", "--emit", "softmax")
