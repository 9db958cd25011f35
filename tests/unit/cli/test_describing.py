"""drtk show: what it tells of files and folders."""

import orjson
import pytest

from drtk.cli.describing import describe, manifest_json
from drtk.errors import DrtkError, MismatchError
from drtk.io.filtering import FilterJob
from drtk.io.folders import FolderJob


def finished_file(path, rows=3):
    job = FilterJob("chunk", "corpus", str(path), {"policy": "greedy", "seed": None})
    job.run(
        [{"_id": f"d{n}", "text": "a b"} for n in range(rows)], lambda batch: (orjson.dumps(r) + b"\n" for r in batch)
    )
    return path


def test_a_file_shows_its_manifest_and_its_first_records(tmp_path):
    page = describe(str(finished_file(tmp_path / "p.jsonl.gz")), count=2)
    assert page.startswith("kind        corpus\n")
    assert "counts      in=3  out=3" in page
    assert "policy=greedy" in page
    assert "seed" not in page  # a setting that was not set says nothing
    assert "_id         d1" in page
    assert "_id         d2" not in page


def test_a_file_without_manifest_shows_its_records_alone(tmp_path):
    path = tmp_path / "qrels.tsv"
    path.write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    assert describe(str(path), count=1) == "query-id\tcorpus-id\tscore\n"
    with pytest.raises(DrtkError, match="has no manifest"):
        manifest_json(str(path))


def test_a_finished_folder_shows_its_facts_and_an_unfinished_one_says_so(tmp_path):
    job = FolderJob("encode", "embeddings", str(tmp_path / "v"))
    job.begin()
    with pytest.raises(MismatchError, match="unfinished"):
        describe(str(tmp_path / "v"), count=3)
    job.counts["passages"] = 12345
    job.finish(dimension=384, encoder={"model": "m"})
    page = describe(str(tmp_path / "v"), count=3)
    assert "dimension   384" in page
    assert "encoder     model=m" in page
    assert "passages=12345" in page
    assert orjson.loads(manifest_json(str(tmp_path / "v")))["dimension"] == 384


def test_what_is_not_there_or_not_ours_is_one_clear_fault(tmp_path):
    with pytest.raises(DrtkError, match="No such file"):
        describe(str(tmp_path / "nowhere"), count=1)
    (tmp_path / "mine").mkdir()
    with pytest.raises(MismatchError, match="not made by drtk"):
        describe(str(tmp_path / "mine"), count=1)
