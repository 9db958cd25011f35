"""DeepCT and DeepImpact: training on planted words through the command, the weights, and rejected input."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.expansion.config import WeightingSettings
from drtk.expansion.term_weights.base import PassageSplitter
from drtk.expansion.term_weights.learned import DeepImpact, compute_impacts, quantize
from drtk.records import Passage
from drtk.runtime.integrity import read_json
from drtk.text.word_pieces import WordPieceTokenizer, WordPositions
from tests.expansion_collection import read_rows, write_rows
from tests.run_commands import Capture, run_command, run_rows, write_text
from tests.tiny_models import TOPICS, save_tiny_encoder

ASKED, NEVER = ("s", "ing"), ("al", "ous", "ish")  # endings of words that questions have, and of words they never have
QUICK = ["--set", "warmup=0", "--set", "batch_size=8", "-q"]


def test_quantized_impacts_have_known_values():
    # ceil(256 v / 7.3): 0, .46 -> 1, 35.07 -> 36, 128, 256 -> 255, which fits a byte
    assert [quantize(impact, 7.3) for impact in (0.0, 0.013, 1.0, 3.65, 7.3)] == [0, 1, 36, 128, 255]
    assert quantize(20.0, 7.3) == 255
    assert quantize(-1.0, 7.3) == 0


def test_a_words_impact_is_that_of_its_first_occurrence_and_function_words_have_none():
    places = WordPositions([1, 2, 3, 4], ["wing", "the", "wing"], [0, 2, 3])
    assert compute_impacts(places, np.array([0.5, 9.0, 8.0, 7.0])) == {"wing": 0.5}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder, corpus.jsonl, queries.jsonl, train.jsonl (for DeepImpact) and recall.jsonl (for DeepCT).

    Questions contain words with endings in ASKED. A positive and its negative each have one such word and two others, so
    only the words of the question distinguish them.
    """
    folder = tmp_path_factory.mktemp("weights")
    save_tiny_encoder(folder / "model")
    draw = random.Random(3)
    passages, queries = [], []
    for number in range(48):
        topic, other = draw.sample(TOPICS, 2)
        asked, (never, more, last) = draw.choice(ASKED), draw.sample(NEVER, 3)
        positive = [topic + asked, topic + more, other + last]
        draw.shuffle(positive)
        negative = [other + draw.choice(ASKED), topic + never, topic + last]
        draw.shuffle(negative)
        for kind, words in (("p", positive), ("n", negative)):
            passages.append({"_id": f"{kind}{number}", "title": "", "text": " ".join(words)})
        queries.append({"_id": f"q{number}", "text": f"what of the {topic + asked}"})
        queries.append({"_id": f"r{number}", "text": f"{topic + asked} {topic + never}"})
    examples = {
        name: [{"query_id": f"{kind}{n}", "positives": [f"p{n}"], "negatives": [f"n{n}"]} for n in range(48)]
        for name, kind in (("train", "r"), ("recall", "q"))
    }
    for name, rows in ({"corpus": passages, "queries": queries} | examples).items():
        write_rows(folder / f"{name}.jsonl", rows)
    return folder


def train(data: Path, method: str, output: Path, *more: str, examples: str = "train.jsonl") -> list[str]:
    named = ["--corpus", str(data / "corpus.jsonl"), "--queries", str(data / "queries.jsonl")]
    return ["termweight", "--method", method, "--train", str(data / examples), *named, "--model", str(data / "model"),
            "-o", str(output), *QUICK, *more]  # fmt: skip


@pytest.fixture(scope="module")
def models(data: Path) -> dict[str, Path]:
    """Train a model of each method."""
    for method, examples, steps, rate in (("deepct", "recall", 80, 1e-2), ("deepimpact", "train", 150, 5e-3)):
        more = ("--max-steps", str(steps), "--set", f"learning_rate={rate}")
        app(train(data, method, data / method, *more, examples=f"{examples}.jsonl"), standalone_mode=False)
    return {method: data / method for method in ("deepct", "deepimpact")}


def weigh(capfd: Capture, source: Path, method: str, model: Path, more: str = "") -> list[dict[str, Any]]:
    return run_rows(capfd, f"termweight {source} --method {method} --model {model} {more}")


def by_ending(texts: list[tuple[str, dict[str, float]]]) -> tuple[list[float], list[float]]:
    """Return the weights of words with endings in ASKED, and of other words."""
    results: tuple[list[float], list[float]] = ([], [])
    for _, weights in texts:
        for word, weight in weights.items():
            results[word.endswith(NEVER)].append(weight)
    return results


def test_deepct_learns_which_words_questions_contain(data, models, capfd):
    unseen = write_rows(data / "unseen", [{"_id": "u", "text": "sailors castleing copperal violinish wintering"}])
    (row,) = weigh(capfd, unseen, "deepct", models["deepct"])
    (pieces,) = WordPieceTokenizer(str(models["deepct"]))([row["text"]])
    assert len(row["weights"]) == len(pieces.ids)
    words = dict(zip((row["text"].split()[word] for word in pieces.words), row["weights"], strict=True))
    asked, never = by_ending([("u", words)])
    assert min(asked) > max(never) + 0.2
    losses = [entry["loss"] for entry in read_rows(models["deepct"] / "log.jsonl")]
    assert losses[-1] < losses[0] / 4
    assert read_json(models["deepct"] / "meta.json")["term_weights"]["method"] == "deepct"


def test_deepimpact_learns_the_words_that_distinguish_positives(data, models, capfd):
    rows = weigh(capfd, data / "corpus.jsonl", "deepimpact", models["deepimpact"])
    asked, never = by_ending([(row["_id"], row["impacts"]) for row in rows])
    assert np.mean(asked) > np.mean(never) + 50
    assert all(type(impact) is int and 1 <= impact <= 255 for row in rows for impact in row["impacts"].values())
    assert max(asked) == 255  # the largest of the training passages becomes 256, which is limited to a byte
    assert {max(row["weights"]) for row in rows} <= {0.0, 1.0}  # shares of the largest; 0 where no word has an impact


def test_the_folder_loads_in_transformers_and_holds_the_head_separately(models):
    from transformers import AutoModel

    for method, folder in models.items():
        assert AutoModel.from_pretrained(folder).config.hidden_size == 32
        assert (folder / "heads" / f"{method}.safetensors").exists()
        suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
        assert suffixes <= {".json", ".jsonl", ".md", ".safetensors"}


def test_batches_do_not_change_weights_and_words_beyond_the_maximum_length_have_none(data, models, capfd):
    batches = [weigh(capfd, data / "corpus.jsonl", "deepct", models["deepct"], more)
               for more in ("", "--set batch_tokens=1")]  # fmt: skip
    for one, other in zip(*batches, strict=True):
        assert one["weights"] == pytest.approx(other["weights"], abs=5e-5)
    source = write_rows(data / "long.jsonl", [{"_id": "l", "text": "rivers " * 10}])
    (row,) = weigh(capfd, source, "deepct", models["deepct"], "--set max_length=6")
    assert all(weight > 0 for weight in row["weights"][:4])  # 6 tokens: [CLS], 4 pieces, [SEP]
    assert row["weights"][4:] == [0.0] * 6
    with pytest.raises(MismatchError, match="cannot read 100 tokens; use at most 64"):
        weigh(capfd, source, "deepct", models["deepct"], "--set max_length=100")


@pytest.fixture
def impacts(models: dict[str, Path]) -> DeepImpact:
    settings = WeightingSettings(expand=("queries",), impact_max=10.0)
    return DeepImpact(settings, None, str(models["deepimpact"]))


def test_weights_for_masking_are_shares_of_the_passages_own_largest_impact(impacts, models):
    tokenizer = WordPieceTokenizer(str(models["deepimpact"]))
    read = PassageSplitter(tokenizer, WeightingSettings(), "basic")
    passage = Passage("p", "rivers the rivers, engines", "planets", extra={"queries": ["violins engines"]})
    (reading,) = read([passage])
    (weights,) = impacts([reading], [ids / 100 for ids in impacts.build_inputs([reading])])
    impact = {word: tokenizer([word])[0].ids[0] / 100 for word in ("planets", "rivers", "engines", "violins")}
    largest = max(impact[word] for word in ("planets", "rivers", "engines"))  # violins is of the added text alone
    assert reading.words == ["planets", "rivers", "the", "rivers", "engines"]
    expected = [impact["planets"], impact["rivers"], 0.0, impact["rivers"], impact["engines"]]
    assert weights == pytest.approx([value / largest for value in expected])
    actual = impacts.build_extra_fields(reading, weights)["impacts"]
    assert actual == {word: quantize(value, 10.0) for word, value in impact.items()}  # and added words are indexed


def test_contradictory_options_are_rejected(data, tmp_path, capfd):
    for method, more, message in (
        ("deepct", "--shard 1/2", "--train writes a model; omit --shard"),
        ("deepct", "--collection x", "`collection` cannot be combined with --train, which trains a model"),
        ("deepct", "--set runner_workers=2", "`runner_workers` cannot be combined with --train, which trains"),
        ("deepct", "--set stemmer=porter", "--set stemmer requires --method bprop or tfidf or inv-freq or idf or bm25"),
        ("deepct", "--set expand=queries", "--set expand requires --method deepimpact"),
        ("deepimpact", "--set impact_max=3", "`impact_max` cannot be combined with --train"),
    ):
        with pytest.raises(UsageError, match=message):
            run_command(capfd, *train(data, method, tmp_path / "m", *more.split()))


def test_missing_files_are_reported(data, tmp_path, capfd):
    arguments = train(data, "deepct", tmp_path / "m")
    for flag, message in (
        ("--corpus", "--train requires --corpus, --queries and --model"),
        ("--model", "--train requires --corpus, --queries and --model"),
        ("-o", "--output must name a folder"),
    ):
        at = arguments.index(flag)
        with pytest.raises(UsageError, match=message):
            run_command(capfd, *arguments[:at], *arguments[at + 2 :])
    with pytest.raises(UsageError, match="--corpus and --queries require --train"):
        weigh(capfd, data / "corpus.jsonl", "deepct", data / "model", "--corpus x --queries y")
    assert not (tmp_path / "m").exists()


def test_invalid_examples_are_reported(data, tmp_path, capfd):
    row = {"query_id": "q1", "positives": ["p1"], "negatives": []}
    for method, more, rows, message in (
        ("deepimpact", (), [row] * 8, r"bad\.jsonl:1: query 'q1' has no negatives"),
        ("deepct", ("--set", "batch_size=1"), [row | {"positives": ["p99"]}], r"bad\.jsonl:1: the corpus has no 'p99'"),
        ("deepct", (), [row], "1 passages do not fill one batch"),
    ):
        write_rows(data / "bad.jsonl", rows)
        with pytest.raises(DrtkError, match=message):
            run_command(capfd, *train(data, method, tmp_path / "m", *more, examples="bad.jsonl"))


def test_method_and_title_format_must_be_those_of_training(data, models, tmp_path, capfd):
    titled = write_rows(tmp_path / "titled", [{"_id": "t", "title": "sailors", "text": "castleing copperal"}])
    bare = tmp_path / "bare"
    more = ("--set", "title=none", "--max-steps", "1")
    run_command(capfd, *train(data, "deepct", bare, *more, examples="recall.jsonl"))
    assert "title_weights" in weigh(capfd, titled, "deepct", models["deepct"])[0]
    assert "title_weights" not in weigh(capfd, titled, "deepct", bare)[0]
    with pytest.raises(MismatchError, match="was trained with `title=none`, got `title=join`"):
        weigh(capfd, titled, "deepct", bare, "--set title=join")
    with pytest.raises(MismatchError, match="not a term weighting model"):
        weigh(capfd, titled, "deepct", data / "model")
    with pytest.raises(MismatchError, match="was trained with `method` deepimpact, not deepct"):
        weigh(capfd, titled, "deepct", models["deepimpact"])


def test_expansion_fields_of_a_wrong_type_are_reported(data, models, tmp_path, capfd):
    rows = [{"_id": f"p{n}", "text": "rivers", "queries": queries} for n, queries in ((8, ["q"]), (9, 7))]
    bad = write_rows(data / "added.jsonl", rows)
    with pytest.raises(RecordError, match=r"added\.jsonl:2: passage 'p9': 'queries' must be a string"):
        weigh(capfd, bad, "deepimpact", models["deepimpact"], "--set expand=queries")
    rows = weigh(capfd, bad, "deepimpact", models["deepimpact"], "--set expand=queries --skip-bad 1")
    assert [row["_id"] for row in rows] == ["p8"]
    # In training, they are an error before the first step.
    lines = (data / "corpus.jsonl").read_text().splitlines()
    lines[4] = json.dumps(json.loads(lines[4]) | {"queries": {}})
    bad = write_text(tmp_path / "bad.jsonl", "\n".join([lines[0], "", *lines[1:]]) + "\n")  # its fifth is line 6
    arguments = train(data, "deepimpact", tmp_path / "m", "--set", "expand=queries")
    arguments[arguments.index("--corpus") + 1] = str(bad)
    with pytest.raises(RecordError, match=r"bad\.jsonl: passage 'p2': 'queries' must be a string or a list"):
        run_command(capfd, *arguments)
    assert not (tmp_path / "m").exists()
