"""docs/cookbook/papers/public_data.py: downloaded files become the collections that the recipes read."""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.project.test_paper_recipes import load_script


def make_squad(**articles: list[str]) -> bytes:
    """Return SQuAD's JSON: articles by name, each with paragraphs that have one question."""
    data = [
        {
            "title": name,
            "paragraphs": [
                {
                    "context": f" {text}\n",
                    "qas": [{"id": "5", "question": f"Where  is {text}?", "answers": [{"text": text}, {"text": text}]}],
                }
                for text in texts
            ],
        }
        for name, texts in articles.items()
    ]
    return json.dumps({"version": "1.1", "data": data}).encode()


def make_tar(**files: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"cacm/{name}.html")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


DOWNLOADS = {
    "train-v1.1.json": make_squad(**{"Za%C3%AFre": ["the\npark", "the river", "the\npark"], "Zürich": ["a\u202fbear"]}),
    "dev-v1.1.json": make_squad(Oslo_by_night=["a ship"]),
    "cran.all.1400": b".I 1\r\n.T\r\na wing\r\nin air .\r\n.A\r\nb\r\n.B\r\nc\r\n.W\r\na wing\r\nin air .\r\n  it lifts .\r\n.W\r\nmore .\r\n"
    b".I 5\n.T\n.A\n.B\n.W\n",
    "cacm.tar.gz": make_tar(
        **{
            "CACM-0002": "<html>\n<pre>\n\n\nA Second\nTitle\n\nCACM May, 1958\n\nCA580502 JB\n\n1\t5\t2\n</pre>\n</html>",
            "CACM-0001": "<html>\n<pre>\n\nTitle\n\nAn  abstract\x19.\n\nCA580501 JB\n\n1\t5\t1\n</pre>\n</html>",
        }
    ),
    "stsb-en-train.csv": b'"A man, a  dog.",One dog.,2.5\r\n',
    "stsb-en-dev.csv": b"A.,B.,0.0\n",
    "stsb-en-test.csv": b"A.,C.,1.0\n",
}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def test_downloads_become_collections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("public_data")
    monkeypatch.setattr(script, "urlopen", lambda address, timeout: io.BytesIO(DOWNLOADS[address.rsplit("/", 1)[1]]))
    monkeypatch.setattr("sys.argv", ["public_data.py", str(tmp_path / "data")])
    script.main()
    squad = tmp_path / "data" / "squad"
    # Articles are in the order of their decoded names; the third paragraph repeats the first.
    assert read(squad / "corpus.jsonl.gz") == [
        {"_id": "a001-p001", "title": "Zaïre", "text": "the park"},
        {"_id": "a001-p002", "title": "Zaïre", "text": "the river"},
        {"_id": "a002-p001", "title": "Zürich", "text": "a\u202fbear"},
        {"_id": "a003-p001", "title": "Oslo by night", "text": "a ship"},
    ]
    assert read(squad / "documents.jsonl.gz")[0] == {
        "id": "a001", "title": "Zaïre", "text": "the park\n\nthe river\n\nthe park",
    }  # fmt: skip
    queries = read(squad / "queries.jsonl.gz")
    assert [query["_id"] for query in queries] == [*(f"train-0000{number}" for number in range(1, 5)), "dev-00001"]
    assert queries[0]["text"] == "Where is the park?"
    assert queries[0]["metadata"] == {"split": "train", "answers": ["the park"]}
    assert (squad / "qrels" / "train.tsv").read_text().splitlines() == [
        "query-id\tcorpus-id\tscore",
        "train-00001\ta001-p001\t1",
        "train-00002\ta001-p002\t1",
        "train-00003\ta001-p001\t1",
        "train-00004\ta002-p001\t1",
    ]
    assert (squad / "qrels" / "dev.tsv").read_text().splitlines()[1:] == ["dev-00001\ta003-p001\t1"]
    assert read(tmp_path / "data" / "cranfield" / "corpus.jsonl.gz") == [
        {"_id": "1", "title": "a wing in air .", "text": "it lifts . more ."},
        {"_id": "2", "title": "", "text": ""},
    ]
    assert read(tmp_path / "data" / "cacm" / "corpus.jsonl.gz") == [
        {"_id": "CACM-0001", "title": "Title", "text": "An abstract ."},
        {"_id": "CACM-0002", "title": "A Second Title", "text": "CACM May, 1958"},
    ]
    stsb = (tmp_path / "data" / "stsb" / "train.tsv").read_text()
    assert stsb == "sentence1\tsentence2\tscore\nA man, a dog.\tOne dog.\t2.5\n"

    with pytest.raises(SystemExit, match=r"data exists; name a new folder"):
        script.main()
