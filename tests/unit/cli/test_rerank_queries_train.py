"""drtk rerank-queries train: resume, selection by mean rank, the learning rate, the folder, rejected options."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.errors import MismatchError
from drtk.query_expansion.query_reranker_input import CandidateTexts
from drtk.query_expansion.rerank import RankEstimator
from drtk.runtime.integrity import read_json
from drtk.training.fit import DrtkTrainer
from tests.expansion_collection import label_expansions, read_rows, write_collection, write_rows
from tests.run_commands import cut_off_before_step, read_log
from tests.tiny_models import compute_max_difference, load_weights, save_tiny_cross_encoder, save_tiny_encoder

QUICK = "--batch-size 4 --max-length 24 --device cpu --set max_lr=2e-2 --set warmup=20"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_collection(tmp_path_factory.mktemp("train"))
    label_expansions(folder)
    save_tiny_encoder(folder / "model")
    run(folder, folder / "ri", "--max-steps 2")
    return folder


def run(data: Path, output: Path, more: str, *, source: Path | None = None, quiet: bool = True) -> None:
    """Run drtk rerank-queries train on labeled.jsonl or another file."""
    files = f"{source or data / 'labeled.jsonl'} --queries {data}/queries.jsonl --model {data}/model -o {output}"
    app(f"rerank-queries train {files} {QUICK} {more} {'-q' * quiet}".split(), standalone_mode=False)


def test_a_killed_training_resumes_to_the_weights_of_an_uninterrupted_one(data, tmp_path):
    more = "--max-steps 12 --set log_steps=3 --set save_steps=3 --set variant=rd --set eval_steps=3 --set micro_batch_size=2"
    for kind in ("title", "answer"):  # the best weights for each kind are part of the checkpoints
        more += f" --dev {kind}={data}/labeled.jsonl"
    output = tmp_path / "killed"
    with cut_off_before_step(DrtkTrainer, 9):
        run(data, output, more)
    assert not (output / "meta.json").exists()
    with pytest.raises(MismatchError, match=r"other settings .*\(rank_margin\)"):
        run(data, output, f"{more} --resume --set rank_margin=0.5")
    run(data, output, f"{more} --resume")
    run(data, tmp_path / "whole", more)
    for kind in ("title", "answer"):
        assert compute_max_difference(load_weights(output / kind), load_weights(tmp_path / "whole" / kind)) == 0.0
    assert read_json(output / "meta.json")["best"] == read_json(tmp_path / "whole" / "meta.json")["best"]
    assert read_log(output) == read_log(tmp_path / "whole")
    assert not (output / "checkpoints").exists()


def test_the_folder_records_its_input_and_that_lower_is_better(data, tmp_path):
    run(data, tmp_path / "rd", "--max-steps 1 --set variant=rd --set style=thesis")
    manifests = [read_json(folder / "meta.json") for folder in (data / "ri", tmp_path / "rd")]
    assert [each["kind"] for each in manifests] == ["model", "model"]
    assert [each["query_reranker"] for each in manifests] == [
        {"variant": "ri", "style": "official", "max_length": 24, "better": "lower"},
        {"variant": "rd", "style": "thesis", "max_length": 24, "better": "lower"},
    ]
    # 24 questions, 3 kinds, 4 candidates
    counts = {"questions": 24, "lists": 72, "candidates": 288, "repeated": 0, "tied": 0, "steps": 2}
    assert manifests[0]["counts"] | counts == manifests[0]["counts"]
    assert manifests[0]["depth"] == 100


def test_the_folder_gives_the_same_scores_in_sentence_transformers(data):
    library = pytest.importorskip("sentence_transformers")
    rows = read_rows(data / "labeled.jsonl")[:20]
    question = {row["_id"]: row["text"] for row in read_rows(data / "queries.jsonl")}
    pairs = [(question[row["query_id"]], row["text"]) for row in rows]
    mine = RankEstimator(str(data / "ri"), device="cpu")([CandidateTexts(*pair) for pair in pairs])
    theirs = library.CrossEncoder(str(data / "ri"), device="cpu").predict(pairs)
    np.testing.assert_allclose(mine, theirs, atol=5e-5)


def test_commands_that_expect_higher_scores_reject_the_folder(data, tmp_path):
    (tmp_path / "run").write_text("q1 Q0 d1 1 1.0 t\n")
    write_rows(tmp_path / "examples.jsonl", [{"query_id": "q1", "positives": ["d1"], "negatives": ["d2"]}])
    files = f"--corpus {data}/corpus.jsonl --queries {data}/queries.jsonl --model {data}/ri -o {tmp_path}/out -q"
    for call in ("rerank {}/run", "score {}/examples.jsonl", "train-reranker {}/examples.jsonl"):
        with pytest.raises(MismatchError, match="ri: is a query reranker; use a cross-encoder"):
            app(f"{call.format(tmp_path)} {files}".split(), standalone_mode=False)


def test_the_weights_with_the_lowest_mean_rank_are_kept(data, tmp_path):
    run(data, tmp_path / "m", f"--max-steps 20 --set eval_steps=5 --dev {data}/labeled.jsonl --set dev_kind=answer")
    means = {entry["step"]: entry["mean rank"] for entry in read_log(tmp_path / "m") if "mean rank" in entry}
    best = read_json(tmp_path / "m" / "meta.json")["best"]
    assert [*means] == [5, 10, 15, 20]
    assert best == {"step": min(means, key=lambda step: means[step]), "mean rank": min(means.values())}
    # Applying the model selects the candidates that were measured.
    files = f"{data}/labeled.jsonl --queries {data}/queries.jsonl --model {tmp_path}/m -o {tmp_path}/out -q"
    app(f"rerank-queries apply {files}".split(), standalone_mode=False)
    ranks = [row["ranks"][0] for row in read_rows(tmp_path / "out" / "choices.jsonl") if row["kind"] == "answer"]
    assert best["mean rank"] == pytest.approx(sum(ranks) / len(ranks))


def test_one_training_keeps_the_best_weights_for_each_kind(data, tmp_path, monkeypatch):
    # ranks by kind and step; planted, so that each kind is at its best at a step of its own
    planted = {"mean rank (answer)": [4.0, 2.0, 3.0], "mean rank (title)": [1.5, 7.0, 7.0]}
    asked: dict[str, list[dict]] = {name: [] for name in planted}

    def measure(self: Any) -> float:
        state = {name: value.detach().clone() for name, value in self._model.classifier.state_dict().items()}
        asked[self.name].append(state)
        return planted[self.name][len(asked[self.name]) - 1]

    monkeypatch.setattr("drtk.query_expansion.train_reranker.MeanRank.__call__", measure)
    dev = " ".join(f"--dev {kind}={data}/labeled.jsonl" for kind in ("answer", "title"))
    run(data, tmp_path / "m", f"--max-steps 6 --set eval_steps=2 {dev}")
    meta = read_json(tmp_path / "m" / "meta.json")
    best = {"answer": {"step": 4, "mean rank (answer)": 2.0}, "title": {"step": 2, "mean rank (title)": 1.5}}
    assert (meta["kind"], meta["kinds"], meta["best"]) == ("query re-rankers", ["answer", "title"], best)
    assert not (tmp_path / "m" / "model.safetensors").exists()
    for kind, place_of_best in (("answer", 1), ("title", 0)):
        folder = tmp_path / "m" / kind
        assert compute_max_difference(load_weights(folder), asked[f"mean rank ({kind})"][place_of_best]) == 0.0
        actual = read_json(folder / "meta.json")
        assert (actual["kind"], actual["best"], actual["query_reranker"]["better"]) == ("model", best[kind], "lower")
        RankEstimator(str(folder), device="cpu")
    call = f"rerank-queries apply {data}/labeled.jsonl --queries {data}/queries.jsonl --model {tmp_path}/m"
    message = r"a query reranker per kind of expansion; give all as `model` answer=.*m/answer title="
    with pytest.raises(MismatchError, match=message):
        app(f"{call} -o {tmp_path}/out -q".split(), standalone_mode=False)


def test_evaluation_on_training_questions_causes_a_warning(data, tmp_path, capfd):
    rows, questions = read_rows(data / "labeled.jsonl"), read_rows(data / "queries.jsonl")
    # q20 to q23 under other ids and in capitals: 4 questions of three kinds, of which q20 and q21 are trained on
    asked = [row | {"_id": f"x{row['_id']}", "text": row["text"].upper()} for row in questions]
    mine = [row | {"query_id": f"x{row['query_id']}"} for row in rows if int(row["query_id"][1:]) >= 20]
    dev, named = write_rows(tmp_path / "dev", mine), write_rows(tmp_path / "asked", asked)
    first = write_rows(tmp_path / "first", [row for row in rows if int(row["query_id"][1:]) < 22])
    devs = f"--dev answer={dev} --dev title={dev} --dev-queries {named}"
    capfd.readouterr()
    run(data, tmp_path / "m", f"--max-steps 1 {devs}", source=first)
    message = f"drtk: {dev}: 2 of its 4 questions are also in {first} and favor overfitting; remove them"
    assert capfd.readouterr().err.count(message) == 1


def test_evaluating_by_kind_is_evaluating_each_kind_alone(data, tmp_path):
    labels, more = data / "labeled.jsonl", "--max-steps 2 --set eval_steps=1"
    run(data, tmp_path / "both", f"{more} --dev answer={labels} --dev title={labels}")
    run(data, tmp_path / "one", f"{more} --dev {labels} --set dev_kind=answer")
    assert compute_max_difference(load_weights(tmp_path / "both" / "answer"), load_weights(tmp_path / "one")) == 0.0
    alone = [entry["mean rank"] for entry in read_log(tmp_path / "one") if "mean rank" in entry]
    both = [entry["mean rank (answer)"] for entry in read_log(tmp_path / "both") if "mean rank (answer)" in entry]
    assert alone == both


def test_a_model_of_one_kind_is_evaluated_with_that_kind(data, tmp_path):
    rows = read_rows(data / "labeled.jsonl")
    turned = [row | {"rank": 102 - row["rank"] if row["kind"] == "title" else row["rank"]} for row in rows]
    dev = write_rows(tmp_path / "dev.jsonl", turned)
    means = {}
    for name, which in (("default", ""), ("title", "--set dev_kind=title"), ("answer", "--set dev_kind=answer")):
        run(data, tmp_path / name, f"--max-steps 1 --set eval_steps=1 --kind title --dev {dev} {which}")
        means[name] = [entry["mean rank"] for entry in read_log(tmp_path / name) if "mean rank" in entry]
    assert means["default"] == means["title"] != means["answer"]


def test_an_unfinished_warm_up_and_a_high_learning_rate_cause_warnings(data, tmp_path, capfd):
    files = f"{data}/labeled.jsonl --queries {data}/queries.jsonl --model {data}/model -o {tmp_path}/m"
    more = "--device cpu --preset ear-ri --max-length 24 --max-steps 3 --set log_steps=1"
    app(f"rerank-queries train {files} {more}".split(), standalone_mode=False)
    rates = [entry["learning_rate"] for entry in read_log(tmp_path / "m")]
    assert rates == pytest.approx([2e-9, 4e-9, 6e-9])  # 2e-3 * t * 1e-6
    assert "training ends after 3 of 10,000 steps of --set warmup" in capfd.readouterr().err
    run(data, tmp_path / "n", "--max-steps 1 --set schedule=linear --set max_lr=2e-3 --set warmup=0")
    assert "a learning rate of 0.002 is too high for a pre-trained encoder" in capfd.readouterr().err


def test_the_head_of_a_cross_encoder_is_negated(data, tmp_path, capfd):
    from drtk.models.cross_encoder import CrossEncoderScorer

    save_tiny_cross_encoder(tmp_path / "other")
    more = "--max-steps 1 --set max_lr=0 --set warmup=1 --model"
    run(data, tmp_path / "m", f"{more} {tmp_path}/other", quiet=False)
    assert "the head is negated" in capfd.readouterr().err
    theirs = CrossEncoderScorer(str(tmp_path / "other"), device="cpu", logits=True)([("which gardens", "rivers")])
    actual = RankEstimator(str(tmp_path / "m"), device="cpu")([CandidateTexts("which gardens", "rivers")])
    assert float(actual[0]) == pytest.approx(-float(theirs[0]), abs=5e-5)
    run(data, tmp_path / "n", f"{more} {tmp_path}/m")  # the head of a query reranker is not negated
    again = RankEstimator(str(tmp_path / "n"), device="cpu")([CandidateTexts("which gardens", "rivers")])
    assert float(again[0]) == pytest.approx(float(actual[0]), abs=5e-5)
