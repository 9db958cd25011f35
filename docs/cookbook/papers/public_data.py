"""Download the data of the mini scale, SQuAD 1.1, Cranfield, CACM and STS-B, and write them as the recipes read them (40 MB, from GitHub).

python docs/cookbook/papers/public_data.py OUT        OUT: a new folder

Articles are sorted by name, those of train before those of dev. Paragraphs are numbered in their article (a073-p046), questions in their split
(dev-00001).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import re
import sys
import tarfile
from collections.abc import Iterable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from urllib.request import urlopen

FILES = {
    "train.json": "rajpurkar/SQuAD-explorer/eee5fdbf62f8613a7812b03419e6b29617b74fd1/dataset/train-v1.1.json",
    "dev.json": "rajpurkar/SQuAD-explorer/eee5fdbf62f8613a7812b03419e6b29617b74fd1/dataset/dev-v1.1.json",
    "cranfield": "lailaglez/belief-network-irs/9094e4cde738bd93ed1747dc958b5acb0e0fa684/cran/cran.all.1400",
    "cacm.tar.gz": "castorini/anserini/81e3414573a39ad7433d271c5cadc360bc821945/src/main/resources/cacm/cacm.tar.gz",
    "train.csv": "PhilipMay/stsb-multi-mt/30de0dec4ee199b7f42351d3f1a0b19592955385/data/stsb-en-train.csv",
    "dev.csv": "PhilipMay/stsb-multi-mt/30de0dec4ee199b7f42351d3f1a0b19592955385/data/stsb-en-dev.csv",
    "test.csv": "PhilipMay/stsb-multi-mt/30de0dec4ee199b7f42351d3f1a0b19592955385/data/stsb-en-test.csv",
}


def write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))


def collapse_spaces(text: str) -> str:
    return " ".join(text.split())


def join_lines(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text.strip())


def convert_squad(parts: dict[str, bytes], out: Path) -> None:
    """Write a collection whose passages are SQuAD's paragraphs, and its whole articles. `parts`: the JSON files by name of the split, train first."""
    documents: list[dict[str, Any]] = []
    corpus, queries = [], []
    (out / "qrels").mkdir(parents=True, exist_ok=True)
    for split, content in parts.items():
        judgments = ["query-id\tcorpus-id\tscore\n"]
        articles = {unquote(article["title"]): article for article in json.loads(content)["data"]}
        for name, article in sorted(articles.items()):
            title, document = name.replace("_", " "), f"a{len(documents) + 1:03}"
            ids: dict[str, str] = {}  # a few paragraphs occur twice in their article
            texts = []
            for number, paragraph in enumerate(article["paragraphs"], 1):
                text = join_lines(paragraph["context"])
                texts.append(text)
                if text not in ids:
                    ids[text] = f"{document}-p{number:03}"
                    corpus.append({"_id": ids[text], "title": title, "text": text})
                for question in paragraph["qas"]:
                    query = f"{split}-{len(judgments):05}"
                    answers = dict.fromkeys(join_lines(answer["text"]) for answer in question["answers"])
                    queries.append(
                        {
                            "_id": query,
                            "text": collapse_spaces(question["question"]),
                            "metadata": {"split": split, "answers": list(answers)},
                        }
                    )
                    judgments.append(f"{query}\t{ids[text]}\t1\n")
            documents.append({"id": document, "title": title, "text": "\n\n".join(texts)})
        (out / "qrels" / f"{split}.tsv").write_text("".join(judgments), encoding="utf-8")
    write_records(out / "documents.jsonl.gz", documents)
    write_records(out / "corpus.jsonl.gz", corpus)
    write_records(out / "queries.jsonl.gz", queries)


def convert_cranfield(content: bytes, out: Path) -> None:
    records = []
    documents = re.split(r"^\.I \d+$", content.decode().replace("\r", ""), flags=re.MULTILINE)[1:]
    for number, document in enumerate(documents, 1):
        fields = dict.fromkeys("TABW", "")
        parts = re.split(r"^\.([TABW])$", document, flags=re.MULTILINE)
        for field, part in zip(parts[1::2], parts[2::2], strict=True):
            fields[field] += part
        title, text = collapse_spaces(fields["T"]), collapse_spaces(fields["W"])
        records.append({"_id": str(number), "title": title, "text": text.removeprefix(title).strip()})
    write_records(out / "corpus.jsonl.gz", records)


def convert_cacm(content: bytes, out: Path) -> None:
    records = []
    with tarfile.open(fileobj=io.BytesIO(content)) as files:
        for member in sorted(files.getmembers(), key=lambda member: member.name):
            file = files.extractfile(member)
            if file is None or not member.name.endswith(".html"):
                continue
            page = file.read().decode().replace("\x19", " ")
            title, _, rest = page.split("<pre>")[1].strip().partition("\n\n")
            text = re.split(r"^CA\d{6}", rest, flags=re.MULTILINE)[0]  # the citations follow
            records.append(
                {"_id": Path(member.name).stem, "title": collapse_spaces(title), "text": collapse_spaces(text)}
            )
    write_records(out / "corpus.jsonl.gz", records)


def convert_stsb(content: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = csv.reader(io.StringIO(content.decode()))
    path.write_text(
        "sentence1\tsentence2\tscore\n" + "".join("\t".join(map(collapse_spaces, row)) + "\n" for row in rows),
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Download the data of the mini scale.")
    parser.add_argument("out", type=Path, help="new folder")
    out = parser.parse_args().out
    if out.exists():
        sys.exit(f"public_data.py: {out} exists; name a new folder")
    contents = {}
    for name, path in FILES.items():
        address = f"https://raw.githubusercontent.com/{path}"
        print(address, file=sys.stderr)
        try:
            with urlopen(address, timeout=60) as response:
                contents[name] = response.read()
        except (OSError, HTTPException) as error:
            sys.exit(f"public_data.py: {address}: {error}; run it again")
    part = out.with_name(f"{out.name}.part")
    convert_squad({"train": contents["train.json"], "dev": contents["dev.json"]}, part / "squad")
    convert_cranfield(contents["cranfield"], part / "cranfield")
    convert_cacm(contents["cacm.tar.gz"], part / "cacm")
    for split in ("train", "dev", "test"):
        convert_stsb(contents[f"{split}.csv"], part / "stsb" / f"{split}.tsv")
    part.rename(out)


if __name__ == "__main__":
    main()
