"""Write passages of SQuAD with all fields that pre-training can use."""

import gzip
import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from drtk.cli.main import app
from tests.expansion_collection import write_rows
from tests.shared_data import find_shared_data
from tests.tiny_models import find_minilm

PIECES = 30  # word pieces per passage; 32 with the special tokens


def run_command(*given: str | Path) -> None:
    """Run a command of drtk in this process."""
    app([*map(str, given), "--quiet"], standalone_mode=False)


def read_rows(path: Path) -> Iterator[dict]:
    """Yield the rows of a JSONL file, which may be gzipped."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
        yield from map(json.loads, lines)


@dataclass(frozen=True)
class RealCorpus:
    """A corpus, its term weights by three methods, and MiniLM with the vocabulary reduced to this corpus."""

    corpus: Path
    bprop: Path
    inv_freq: Path
    tfidf: Path
    model: Path


def write_real_passages(folder: Path, *, paragraphs: int) -> RealCorpus:
    """Write the first paragraphs of SQuAD as passages of at most PIECES word pieces, with all fields of the presets.

    neighbors, sentences: as drtk chunk records them; each paragraph is a document
    queries: the questions on the paragraph whose answer is in the passage; some passages have none
    continuations: the next passage of the article
    """
    squad, start = find_shared_data("squad"), find_minilm()
    chosen = [*islice(read_rows(squad / "corpus.jsonl.gz"), paragraphs)]
    asked = _read_questions(squad, {row["_id"] for row in chosen})
    run_command("chunk", write_rows(folder / "paragraphs.jsonl", chosen), *CUT, start, "-o", folder / "cut.jsonl")
    passages = [*read_rows(folder / "cut.jsonl")]
    for number, row in enumerate(passages):
        paragraph = row["metadata"]["source_id"]
        row["queries"] = [text for text, answer in asked[paragraph] if answer in row["text"]]
        row["continuations"] = [
            following["text"] for following in passages[number + 1 : number + 2] if following["title"] == row["title"]
        ]
    corpus = write_rows(folder / "passages.jsonl", passages)
    model = shrink_vocabulary(corpus, start, folder / "minilm")
    real = RealCorpus(corpus, *(folder / f"{each}.jsonl" for each in ("bprop", "inv-freq", "tfidf")), model)
    weigh = ["termweight", corpus, "--set", "title=none", "--bare"]
    run_command(*weigh, "--method", "bprop", "--model", model, "-o", real.bprop)
    run_command(*weigh, "--method", "inv-freq", "--tokenizer", model, "-o", real.inv_freq)
    run_command(*weigh, "--method", "tfidf", "--tokenizer", model, "-o", real.tfidf)
    return real


CUT = ["--max-tokens", str(PIECES), "--tokenizer"]


def _read_questions(squad: Path, paragraphs: set[str]) -> dict[str, list[tuple[str, str]]]:
    """Return {paragraph: [(question, answer)]}."""
    judged = {}
    for line in (squad / "qrels" / "train.tsv").read_text().splitlines()[1:]:
        query, paragraph, _ = line.split("\t")
        if paragraph in paragraphs:
            judged[query] = paragraph
    questions = defaultdict(list)
    for row in read_rows(squad / "queries.jsonl.gz"):
        if row["_id"] in judged:
            questions[judged[row["_id"]]].append((row["text"], row["metadata"]["answers"][0]))
    return questions


def shrink_vocabulary(corpus: Path, model: str, folder: Path) -> Path:
    """Reduce the vocabulary of a model to the word pieces in a corpus; a head with 30,000 classes is slow on a CPU.

    Texts of the corpus are tokenized as before, since WordPiece takes the longest matching piece.
    """
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [text for row in read_rows(corpus) for text in (row["title"], row["text"], *row["queries"])]
    used = sorted({id for ids in tokenizer(texts)["input_ids"] for id in ids} | set(tokenizer.all_special_ids))
    number = {old: new for new, old in enumerate(used)}
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("vocab.txt", "__pycache__"))
    parts = json.loads((folder / "tokenizer.json").read_text())
    known = parts["model"]["vocab"]
    parts["model"]["vocab"] = {piece: number[id] for piece, id in known.items() if id in number}
    for each in parts["added_tokens"]:
        each["id"] = number[each["id"]]
    for each in parts["post_processor"]["special_tokens"].values():
        each["ids"] = [number[id] for id in each["ids"]]
    (folder / "tokenizer.json").write_text(json.dumps(parts))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": len(used)}))
    weights = load_file(folder / "model.safetensors")
    table = "embeddings.word_embeddings.weight"
    save_file(weights | {table: weights[table][used].clone()}, folder / "model.safetensors", {"format": "pt"})
    again = AutoTokenizer.from_pretrained(folder)
    assert len(again) == len(used)
    for text in texts[::50]:
        assert again.tokenize(text) == tokenizer.tokenize(text)
    return folder
