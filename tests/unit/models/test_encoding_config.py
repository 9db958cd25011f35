"""Encoding settings of model folders, and locations of models."""

from pathlib import Path

import pytest

from drtk.config import to_dict
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.models.checkpoint import load_encoder
from drtk.models.config import EncodeSettings
from drtk.models.model_folder import EncodingConfig, resolve_model_folder, resolve_tower_folder
from drtk.retrieval.encode import Embedder
from drtk.runtime.atomic import write_json
from tests.backbone_families import save_random_masked_lm
from tests.tiny_models import save_tiny_encoder


def save_with_encoding(folder: Path, **changes: object) -> Path:
    """Save a model folder with encoding settings in its meta.json."""
    save_tiny_encoder(folder)
    encoding = load_encoder(folder).encoding.override(changes, strict=False, folder="")
    write_json(folder / "meta.json", {"kind": "model", "encoding": to_dict(encoding)})
    return folder


def test_own_models_keep_lengths_titles_and_prompts_by_role(tmp_path: Path):
    folder = save_with_encoding(tmp_path / "m", query_length=8, passage_length=20, title="none", query_prompt="rivers ")
    query, passage = Embedder(str(folder), role="query"), Embedder(str(folder), role="passage")
    assert query.encoding.get_max_length("query") == 8
    assert passage.encoding.get_max_length("passage") == 20
    assert query.encoding.get_prompt("query") == "rivers "
    assert passage.encoding.get_prompt("passage") == ""
    assert query.identity == passage.identity


def test_settings_that_contradict_a_trained_model_are_rejected(tmp_path: Path):
    folder = save_with_encoding(tmp_path / "m", passage_length=20)
    for setting, message in (
        ({"pooling": "cls"}, "pooling mean, not cls"),
        ({"max_length": 9}, "passage length 20, not 9"),
        ({"title": "segment"}, "title 'join', not 'segment'"),
        ({"normalize": True}, "normalize False, not True"),
        ({"prompt": "x"}, "passage prompt '', not 'x'"),
        ({"similarity": "dot"}, "similarity 'cosine', not 'dot'"),
    ):
        with pytest.raises(MismatchError, match="was trained with " + message):
            Embedder(str(folder), role="passage", settings=EncodeSettings(**setting))
    Embedder(str(folder), role="passage", settings=EncodeSettings(pooling="mean", max_length=20, title="join"))
    with pytest.raises(UsageError, match="unknown pooling 'median'"):
        load_encoder(folder, overrides={"pooling": "median"}, strict=False)
    with pytest.raises(MismatchError, match="cannot read 65 tokens; use at most 64"):
        load_encoder(folder, overrides={"passage_length": 65}, strict=False)


def test_positions_that_roberta_reserves_for_padding_do_not_count(tmp_path: Path):
    save_random_masked_lm("roberta", tmp_path / "m")  # 64 positions; the first of a text is 2
    assert load_encoder(tmp_path / "m").encoding.passage_length == 62
    with pytest.raises(MismatchError, match="cannot read 63 tokens; use at most 62"):
        load_encoder(tmp_path / "m", overrides={"passage_length": 63})


def test_missing_and_unfinished_model_folders_are_rejected(tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "meta.json.part").touch()
    for name, message in (
        (tmp_path / "nowhere", "no such folder$"),
        ("nobody/nothing@v1", "nobody/nothing@v1: no such folder, .*(cannot be reached|HF_HUB_OFFLINE is set)"),
        ("http://localhost/v1#m", "http://localhost/v1#m: is an endpoint, which only encode, search and serve"),
        (tmp_path / "file", "is a file; expected a model folder"),
        (tmp_path / "m", "unfinished"),
    ):
        with pytest.raises(DrtkError, match=message):
            resolve_model_folder(str(name))


def test_towers_are_in_subfolders_and_share_encoding_settings(tmp_path: Path):
    for role, seed in (("query", 1), ("passage", 2)):
        save_tiny_encoder(tmp_path / "pair" / role, seed=seed)
    encoding = EncodingConfig(("mean",), query_length=8, passage_length=16, similarity="dot", truncate=8)
    stored = to_dict(encoding) | {"of a later version": 1}
    manifest = {"kind": "model", "encoding": stored, "towers": ["passage", "query"]}
    write_json(tmp_path / "pair" / "meta.json", manifest)
    assert resolve_tower_folder(tmp_path / "pair", "query") == tmp_path / "pair" / "query"
    query, passage = (Embedder(str(tmp_path / "pair"), role=role) for role in ("query", "passage"))
    assert query.encoding == passage.encoding == encoding
    assert query.identity == passage.identity
    assert abs(query(["rivers"]) - passage(["rivers"])).max() > 1e-3
