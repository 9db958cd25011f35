"""drtk chunk: passages, sentence splitters, resuming, memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, UsageError
from tests.unit.text.small_tokenizers import word_pieces


@pytest.fixture
def run(tmp_path, capfd):
    """Chunk documents in this process; return the passages and what was logged."""

    def chunk(documents, *arguments):
        write(tmp_path / "in.jsonl", documents)
        call = ["chunk", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", "--force", *arguments]
        capfd.readouterr()
        app(list(map(str, call)), standalone_mode=False)
        return [json.loads(line) for line in (tmp_path / "out.jsonl").open()], capfd.readouterr().err

    return chunk


def write(path, documents):
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


def sentence_of(pieces):
    return " ".join(["Word", *["word"] * (pieces - 2)]) + "."  # the full stop is a piece


def test_policy_tokenizer_and_limits_are_used(run, tmp_path):
    folder = word_pieces(tmp_path / "tokenizer")
    documents = [{"_id": "d", "text": " ".join(map(sentence_of, [60, 70, 150, 10]))}]
    rows, log = run(documents, "--tokenizer", folder, "--policy", "condenser")
    assert [row["text"].count("ord") + row["text"].count(".") for row in rows] == [130, 150, 10]
    assert "with 2 special tokens a model reads 146 (use --set reserve_special" in log
    rows, _ = run([{"_id": "d", "text": "w " * 257}], "--policy", "words")
    assert [len(row["text"].split()) for row in rows] == [100, 100, 57]
    documents = [{"_id": "d", "text": " ".join(map(sentence_of, [100, 44]))}]
    assert len(run(documents, "--tokenizer", folder)[0]) == 1
    assert len(run(documents, "--tokenizer", folder, "--set", "reserve_special=true")[0]) == 2  # 144 > 144 - 2


def test_fields_bare_and_empty_documents(run, tmp_path):
    document = {"_id": "d", "title": "T", "text": "He went.", "queries": ["who?"], "metadata": {"url": "u"}}
    rows, log = run([{"_id": "a", "text": ""}, document, {"_id": "c", "text": " "}])
    (row,) = rows
    assert (row["_id"], row["title"], row["queries"], row["metadata"]["url"]) == ("d#0", "T", ["who?"], "u")
    assert "3 in, 1 out, 2 empty" in log
    assert json.loads((tmp_path / "out.jsonl.meta.json").read_text())["counts"]["empty"] == 2
    assert sorted(run([document], "--bare")[0][0]) == ["_id", "metadata", "text"]
    assert run([])[0] == []


def test_a_saved_sentence_model_gives_the_same_passages(run, tmp_path):
    documents = [{"_id": str(n), "text": f"It was no. {n} of the abk. is here. She came. He went."} for n in range(60)]
    model = tmp_path / "punkt.json"
    rows, log = run(documents, "--max-words", 5, "--save-punkt", model)
    assert "sentence boundaries: Punkt trained on the first" in log
    assert run(documents, "--max-words", 5, "--punkt-model", model)[0] == rows
    manifest = json.loads((tmp_path / "out.jsonl.meta.json").read_text())
    assert {Path(entry["path"]).name for entry in manifest["inputs"]} == {"punkt.json", "in.jsonl"}
    model.write_text("mine")
    call = ["chunk", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "new.jsonl"), "--save-punkt", str(model)]
    with pytest.raises(DrtkError, match="exists already; `force`"):
        app(call, standalone_mode=False)
    run(documents, "--max-words", 5, "--save-punkt", model)  # with --force
    assert model.read_text() != "mine"


def test_only_the_first_megabytes_train_the_sentence_model(run, tmp_path):
    # The same first kilobyte, in bytes and not in characters, and a different rest give the same model.
    for name, text in (("a", "Mr. Smith vs. xyz. is it. " * 50), ("b", "Nothing.")):
        documents = [{"_id": "first", "text": "Ä" * 600 + " " + text}, {"_id": "rest", "text": text}]
        run(documents, "--set", "punkt_mb=0.001", "--save-punkt", tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_installed_sentence_model_is_used(run, tmp_path, monkeypatch):
    import nltk

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    folder = tmp_path / "tokenizers" / "punkt_tab" / "latin"
    folder.mkdir(parents=True)
    lines = {"abbrev_types.txt": "abk", "collocations.tab": "a\tb", "sent_starters.txt": "he"}
    for name, line in (lines | {"ortho_context.tab": "went\t32"}).items():
        (folder / name).write_text(line + "\n")
    documents = [{"_id": "d", "text": "See the abk. went is here. And xyz. went is here."}]
    (row,), log = run(documents, "--language", "latin")
    assert "trained" not in log
    assert [row["text"][begin:end] for begin, end in row["metadata"]["sentences"]] == [
        "See the abk. went is here.",
        "And xyz.",  # not among the abbreviations of this model
        "went is here.",
    ]
    (folder / "abbrev_types.txt").unlink()  # an incomplete model counts as not installed
    _, log = run(documents, "--language", "latin")
    assert "to use nltk's model instead, run python -m nltk.downloader punkt_tab" in log


def test_a_language_has_a_name_and_a_code(run, monkeypatch):
    asked = []
    monkeypatch.setattr("drtk.text.chunking.load_installed_model", asked.append)
    documents = [{"_id": "d", "text": "We met Mr. Smith. He left."}]
    for language in ("english", "EN", "de", "German", "latin"):
        (row,), _ = run(documents, "--language", language)
        is_english = language in ("english", "EN")
        assert row["metadata"]["sentences"][0] == ([0, 17] if is_english else [0, 10])
    assert asked == ["english", "english", "german", "german", "latin"]


def test_a_long_text_without_a_space_is_cut_by_word_pieces(run, tmp_path):
    documents = [{"_id": "big", "text": "word-" * 40_000}]
    rows, _ = run(documents, "--tokenizer", word_pieces(tmp_path / "tokenizer"), "--set", "punkt_mb=0.01")
    assert "".join(row["text"] for row in rows) == "word-" * 40_000
    assert max(row["text"].count("word") + row["text"].count("-") for row in rows) == 144


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--max-words", 0], UsageError, "--max-words: must be at least 1"),
        (["--set", "reserve_special=true"], UsageError, "--set reserve_special requires --tokenizer"),
        (["--policy", "words", "--tokenizer", "x"], UsageError, "--tokenizer has no effect with --policy words"),
        (["--policy", "words", "--set", "short_prob=0.1"], UsageError, "--set short_prob has no effect"),
        (["--policy", "words", "--paragraphs"], UsageError, "--paragraphs has no effect"),
        (["--policy", "cotmae", "--overlap", 1], UsageError, "--overlap requires --policy greedy or words"),
        (["--tokenizer", "x", "--max-words", 5], UsageError, "`max_words` has no effect with `tokenizer`"),
        (["--policy", "words", "--max-words", 5, "--overlap", 5], UsageError, "`overlap` 5 must be below the passage"),
        (["--save-punkt", "x", "--punkt-model", "y"], UsageError, "`save_punkt` and `punkt_model` cannot be combined"),
        (["--tokenizer", "/none/there"], DrtkError, "/none/there: no such folder"),
        (["--punkt-model", "/none/there"], DrtkError, "/none/there: No such file"),
        (["--language", "../x"], DrtkError, "`language` ../x: "),
    ],
)
def test_rejected_options(run, tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        run([{"_id": "a", "text": "He went."}], *arguments)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.slow
def test_ten_megabytes_on_one_line_take_bounded_memory(tmp_path):
    text = "There he bought 3.5 apples. He ate the apples, every one of them, in the park there. " * 125_000
    write(tmp_path / "in.jsonl", [{"_id": "big", "text": text}])
    call = ["drtk", "chunk", "in.jsonl", "-o", "out.jsonl", "--num-workers", "1", "--set", "punkt_mb=0.1"]
    # The process reads its own peak: that of wait4 includes the memory of the parent before the fork.
    program = f"""
import atexit, pathlib, sys
from drtk.cli.main import run
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: pathlib.Path("peak").write_text(status.read_text()))
sys.argv = {call!r}
run()
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").open()]
    assert sum(len(row["metadata"]["sentences"]) for row in rows) == 250_000
    assert " ".join(row["text"] for row in rows) == text.strip()
    peak = int((tmp_path / "peak").read_text().split("VmHWM:")[1].split()[0])
    assert peak < 1_000_000  # kilobytes
