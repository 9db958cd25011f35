"""drtk show: descriptions of files and folders."""

import numpy as np
import orjson
import pytest

from drtk.cli.show import describe_path
from drtk.config import load_preset
from drtk.errors import DrtkError, MismatchError
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.folder_job import FolderJob


def finished_file(path, rows=3):
    job = FilterJob("chunk", "corpus", str(path), {"policy": "greedy", "seed": None})
    job.run(
        [{"_id": f"d{n}", "text": "a b"} for n in range(rows)], lambda batch: (orjson.dumps(r) + b"\n" for r in batch)
    )
    return path


def test_a_file_shows_its_manifest_and_its_first_records(tmp_path):
    page = describe_path(str(finished_file(tmp_path / "p.jsonl.gz")), count=2)
    assert page.startswith("kind        corpus\n")
    assert "counts      in=3  out=3" in page
    assert "policy=greedy" in page
    assert "seed" not in page  # a setting that was not set says nothing
    assert "_id         d1" in page
    assert "_id         d2" not in page


def test_binary_data_is_not_printed(tmp_path):
    path = tmp_path / "vectors.npy"
    np.save(path, np.ones((3, 4)))
    assert describe_path(str(path), count=2) == "binary data, not shown\n"


def test_a_finished_folder_shows_its_facts_and_an_unfinished_one_says_so(tmp_path):
    job = FolderJob("encode", "embeddings", str(tmp_path / "v"))
    job.begin()
    with pytest.raises(MismatchError, match="unfinished"):
        describe_path(str(tmp_path / "v"), count=3)
    job.counts["passages"] = 12345
    job.finish(dimension=384, encoder={"model": "m"})
    page = describe_path(str(tmp_path / "v"), count=3)
    assert "dimension   384" in page
    assert "encoder     model=m" in page
    assert "passages=12345" in page


def make_model(folder, program, settings=None, **facts):
    """Write a model folder with 5 weights and 2 layers and a manifest."""
    job = FolderJob(program, "model", str(folder), settings or {})
    made = job.begin()
    config = {"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 128, "vocab_size": 4000}
    (made / "config.json").write_bytes(orjson.dumps(config))
    shapes = {"a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}, "__metadata__": {"format": "pt"}}
    shapes["b"] = {"dtype": "F32", "shape": [3], "data_offsets": [8, 20]}
    header = orjson.dumps(shapes)
    (made / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(20))
    job.finish(**facts)
    return folder


def test_a_model_is_described_in_words(tmp_path):
    encoding = {"pooling": ["mean"], "normalize": True, "query_prompt": "", "truncate": None, "lowercase": False}
    folder = make_model(
        tmp_path / "m", "train-retriever", {"learning_rate": 0.1, "matryoshka": []}, encoding=encoding, towers=None
    )
    (folder / "log.jsonl").write_text("".join(f'{{"step": {n}, "loss": {9 - n}}}\n' for n in range(1, 9)))
    page = describe_path(str(folder), count=3)
    assert "network     bert, 2 layers of width 128, 4,000 word pieces, 5 parameters\n" in page
    # The first quarter of 8 losses are 8 and 7, the last 2 and 1.
    assert "training    loss fell from 7.5 to 1.5 in 8 steps.\n" in page
    assert "encoding    pooling=mean  normalize=yes\n" in page
    assert "files       README.md  config.json  model.safetensors\n" in page  # the log came after
    assert "settings    learning_rate=0.1\n" in page
    for raw in ("None", "null", "[", "{", "towers"):
        assert raw not in page


def test_pretraining_is_described_by_its_changed_slots_and_terms(tmp_path):
    recipe = load_preset("simlm-mlm").content | {"name": "simlm-mlm"}
    settings = {"recipe": recipe, "changes": ["slots.encoder.rate=0.2"], "drop": None, "seed": 42}
    page = describe_path(str(make_model(tmp_path / "m", "pretrain", settings, preset="simlm-mlm")), count=3)
    lines = " ".join(page.split())
    assert "recipe simlm-mlm: SimLM" in lines
    assert "slot encoder: passage: 20% whole-word, replaced by [MASK]" in lines
    assert "objective encoder, 1 x: the encoder predicts the masked tokens of 'encoder'" in lines
    assert "{" not in page
    settings["drop"] = ["decoder"]
    page = describe_path(str(make_model(tmp_path / "n", "pretrain", settings)), count=3)
    assert "objective decoder" not in page
    settings["recipe"] = {"name": "of old", "objective": [{"use": "guess"}]}
    page = describe_path(str(make_model(tmp_path / "o", "pretrain", settings)), count=3)
    assert "recipe      of old\nsettings" in page


def test_damaged_weights_and_missing_files_are_one_line_errors(tmp_path):
    folder = make_model(tmp_path / "m", "init-model")
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(DrtkError, match=r"model\.safetensors: is not a complete safetensors file; "):
        describe_path(str(folder), count=3)
    with pytest.raises(DrtkError, match="No such file"):
        describe_path(str(tmp_path / "nowhere"), count=1)
