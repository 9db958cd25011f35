"""Collection statistics: shards are summed, and incompatible statistics are rejected with file and line."""

from pathlib import Path

import pytest

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.expansion.term_weights import compute
from drtk.expansion.term_weights.base import CollectionStatistics, read_statistics
from drtk.runtime.inputs import InputTracker
from tests.run_commands import run_command, write_text
from tests.tiny_models import save_tiny_encoder


def read(*paths: Path, kind: str = "counts") -> CollectionStatistics:
    return read_statistics([str(path) for path in paths], kind, None, tracker=InputTracker())


def counts(words: dict[str, list[float]], *, stemmer: str = "none") -> str:
    sums = CollectionStatistics("counts", {"stemmer": stemmer})
    sums.add(words, length=3)
    return sums.to_json_line().decode()


def test_lines_and_files_add_up(tmp_path):
    one = write_text(tmp_path / "1", counts({"cat": [1, 2]}) + "\n" + counts({"cat": [1, 1], "dog": [1, 4]}))
    two = write_text(tmp_path / "2", counts({"dog": [1, 1]}))
    total = read(one, two)
    assert (total.documents, total.length) == (3, 9)
    assert total.words == {"cat": [2, 3], "dog": [2, 5]}
    assert read(write_text(tmp_path / "3", total.to_json_line().decode())).words == total.words


def test_lines_without_statistics_are_reported(tmp_path):
    damaged = '{"statistics": "counts", "words": {"a": [1]}, "made_by": {}}'
    for line in ('{"_id": "d1", "text": "a"}', "[]", "{", damaged, counts({"cat": [1, 2, 3]})):
        with pytest.raises(RecordError, match=r"s:2: contains no statistics"):
            read(write_text(tmp_path / "s", counts({"cat": [1, 2]}) + line + "\n"))


def test_statistics_with_other_settings_or_of_another_kind_are_rejected(tmp_path):
    file = write_text(tmp_path / "s", counts({"cat": [1, 2]}) + counts({"cat": [1, 2]}, stemmer="porter"))
    problem = r"s:2: statistics were collected with other settings \(stemmer porter, not none\)"
    with pytest.raises(MismatchError, match=problem):
        read(file)
    with pytest.raises(MismatchError, match="expected 'attention' statistics, got 'counts'"):
        read(file, kind="attention")
    with pytest.raises(DrtkError, match="contains no statistics"):
        read(write_text(tmp_path / "s", "\n"))


def test_only_runs_with_a_model_get_a_process_per_gpu(tmp_path, monkeypatch, capfd):
    save_tiny_encoder(tmp_path / "model")
    write_text(tmp_path / "corpus", '{"_id": "a", "text": "castles"}\n')
    on_gpus: list[bool] = []
    run_filter = compute.run_filter

    def record(*arguments, gpu, **options):
        on_gpus.append(gpu)
        run_filter(*arguments, gpu=gpu, **options)

    monkeypatch.setattr(compute, "run_filter", record)
    for method, model in (("tfidf", "--tokenizer"), ("bprop", "--model")):
        call = ("termweight", tmp_path / "corpus", "--method", method, model, tmp_path / "model")
        run_command(capfd, *call, "-o", tmp_path / method)
    assert on_gpus == [False, False, True, True]  # statistics and weights by each method
