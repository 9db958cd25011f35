"""Damage files of folders and check that commands give the same results or a one-line error."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from drtk.runtime.integrity import MANIFEST_DIGEST
from drtk.runtime.manifest import FOLDER_MANIFEST, create_manifest, write_manifest
from tests.contract.collection import Collection
from tests.contract.run_drtk import Outcome, run_in_process, run_successfully
from tests.expansion_collection import read_rows, write_rows

Damage = Callable[[Path], None]
Use = Callable[[Path, Path], Any]  # (folder, empty folder for outputs) -> results that can be compared


@dataclass(frozen=True)
class Subject:
    """An undamaged folder, a command that uses it, and the results to compare."""

    folder: Path
    use: Callable[[Path, Path], Outcome]
    result: Callable[[Outcome, Path], Any] = lambda outcome, _: outcome.out
    is_model: bool = False


def iter_damages(folder: Path, *, seed: str, unrecorded: bool = False) -> Iterator[tuple[str, Damage]]:
    """Yield (description, damage) without end: each simple damage of the folder's files once, then random ones.

    unrecorded: only damage that can be detected without recorded digests
    """
    draw = random.Random(seed)
    files = [item for item in sorted(folder.rglob("*")) if item.is_file()]
    names = [str(item.relative_to(folder)) for item in files]
    simple = [each for name in names for each in _iter_simple_damages(folder, name, unrecorded=unrecorded)]
    draw.shuffle(simple)
    yield from simple
    while True:
        name = draw.choice(names)
        size = (folder / name).stat().st_size
        kind = draw.choice(["cut"] if unrecorded else ["cut", "flip", "flip", "zeroes", "swap", "longer"])
        at, length, bit = draw.randrange(max(size, 1)), draw.randrange(1, 64), 1 << draw.randrange(8)
        if kind == "swap":
            other = draw.choice(names)
            yield f"{name} swapped with {other}", _swap_files(name, other)
            continue
        what, change = _choose_change(kind, at, length, bit)
        yield f"{name} {what}", _change_bytes(name, change)


def _choose_change(kind: str, at: int, length: int, bit: int) -> tuple[str, Callable[[bytes], bytes]]:
    """Return a description and a function that damages bytes."""
    if kind == "cut":
        return f"cut at {at}", lambda data: data[:at]
    if kind == "longer":
        return "longer", lambda data: data + bytes(length)
    if kind == "zeroes":
        return f"zeroes at {at}", lambda data: data[:at] + bytes(len(data[at : at + length])) + data[at + length :]
    return (
        f"bit {bit} of byte {at}",
        lambda data: data[:at] + bytes(value ^ bit for value in data[at : at + 1]) + data[at + 1 :],
    )


def _iter_simple_damages(folder: Path, name: str, *, unrecorded: bool) -> Iterator[tuple[str, Damage]]:
    yield f"{name} removed", lambda place: (place / name).unlink()
    yield f"{name} emptied", _change_bytes(name, lambda _: b"")
    yield f"{name} zeroed", _change_bytes(name, lambda data: bytes(len(data)))
    if name.endswith(".json"):
        for text in ("{}", "[]", "null", "7", '{"a": ', "not JSON", '"' + "[" * 40):
            yield f"{name} = {text}", _change_bytes(name, lambda _, text=text: text.encode())
        content = orjson.loads((folder / name).read_bytes())
        for path in _iter_paths(content):
            if unrecorded and name.startswith(("config.json", "tokenizer", "generation_", "special_tokens")):
                break  # read by transformers alone
            read = ("kind", "type", "dimension", "shards", "encoder")
            if unrecorded and name == FOLDER_MANIFEST and path[0] not in read:
                continue
            yield f"{name} without {path}", _change_json(name, path, None)
            for value in (None, [], {}, "x", -3, 0.5, True):
                yield f"{name} {path} = {value!r}", _change_json(name, path, (value,))


def _iter_paths(content: Any, before: tuple = ()) -> Iterator[tuple]:
    """Yield the paths of values in a JSON value, at most two levels deep, and two of a list."""
    if len(before) == 2:
        return
    items: list[tuple] = []
    if isinstance(content, dict):
        items = list(content.items())[:40]
    elif isinstance(content, list):
        items = list(enumerate(content))[:2]
    for key, value in items:
        yield (*before, key)
        yield from _iter_paths(value, (*before, key))


def _change_bytes(name: str, change: Callable[[bytes], bytes]) -> Damage:
    def damage(place: Path) -> None:
        path = place / name
        data = change(path.read_bytes())
        path.unlink()
        path.write_bytes(data)

    return damage


def _change_json(name: str, path: tuple, value: tuple | None) -> Damage:
    """Remove the value at `path`, or replace it."""

    def change(data: bytes) -> bytes:
        content = at = json.loads(data)
        for key in path[:-1]:
            at = at[key]
        if value is None:
            del at[path[-1]]
        else:
            at[path[-1]] = value[0]
        return json.dumps(content).encode()

    return _change_bytes(name, change)


def _swap_files(name: str, other: str) -> Damage:
    def damage(place: Path) -> None:
        one, two = (place / name).read_bytes(), (place / other).read_bytes()
        (place / name).write_bytes(two)
        (place / other).write_bytes(one)

    return damage


def remove_records(folder: Path) -> None:
    """Make a folder like those of older versions, which recorded no sizes and digests."""
    for path in folder.rglob(FOLDER_MANIFEST):
        content = orjson.loads(path.read_bytes())
        kept = {key: value for key, value in content.items() if key not in (MANIFEST_DIGEST, "files")}
        path.write_bytes(orjson.dumps(kept))


def check_damages(subject: Subject, count: int, place: Path, *, seed: str, unrecorded: bool = False) -> int:
    """Apply `count` damages to copies of a folder, use each copy, and return the number of detected damages.

    Each use gives the results of the undamaged folder, or a one-line error with exit status above 0. A changed
    configuration of a model may change results, with a warning that names the file.
    """
    pristine = place / "pristine"
    shutil.copytree(subject.folder, pristine)
    if unrecorded:
        remove_records(pristine)
    copy = place / "copy"  # a copy, as results may name their model
    shutil.copytree(pristine, copy)
    expected = _use(subject, copy, place)
    shutil.rmtree(copy)
    assert expected[0].status == 0, expected[0].err
    detected = 0
    for number, (what, damage) in enumerate(iter_damages(pristine, seed=seed, unrecorded=unrecorded)):
        if number == count:
            break
        shutil.copytree(pristine, copy)
        damage(copy)
        try:
            outcome, result = _use(subject, copy, place)
        except Exception as error:
            raise AssertionError(f"{what}: {error!r}") from error
        finally:
            shutil.rmtree(copy)
        told = outcome.err.splitlines()
        if outcome.status:
            detected += 1
            assert outcome.status in (1, 2), (what, outcome)
            assert len([line for line in told if not _is_warning(line)]) == 1, (what, outcome)
        elif result != expected[1]:
            detected += 1
            file = what.split()[0]
            is_plain = subject.is_model and file == FOLDER_MANIFEST and "removed" in what
            assert unrecorded or is_plain or any(f"/{file}: " in line for line in told), (what, told)
    shutil.rmtree(pristine)
    return detected


def _is_warning(line: str) -> bool:
    return any(text in line for text in ("using the changed file", "sentence-transformers uses it", "Warning"))


def _use(subject: Subject, folder: Path, place: Path) -> tuple[Outcome, Any]:
    from drtk.runtime import manifest

    manifest._warned.clear()  # each use is a separate run
    output = place / "output"
    output.mkdir()
    try:
        outcome = subject.use(folder, output)
        return outcome, subject.result(outcome, output) if outcome.status == 0 else None
    finally:
        shutil.rmtree(output)


def _write_manifest(folder: Path, program: str, kind: str = "model", **facts: Any) -> Path:
    """Write the meta.json that a command of drtk would write; return `folder`."""
    write_manifest(folder, create_manifest(kind, {}, program=program) | {"command": "drtk"} | facts)
    return folder


DENSE = {  # type and options of drtk index
    "exact": "exact",
    "exact_int8": "exact --vector-dtype int8",
    "flat": "flat",
    "hnsw": "hnsw",
    "ivf": "ivf",
    "sq8": "SQ8",
}


class Subjects:
    """Folders of all kinds, created on first use."""

    def __init__(self, folder: Path, collection: Collection | None = None) -> None:
        self.folder = folder
        self.collection = collection or Collection(folder)

    def __getitem__(self, name: str) -> Subject:
        if name in ("bm25", "bm25s"):
            return self._index(name, self._file("documents.jsonl"), self._file("queries.jsonl"))
        if name in DENSE:
            kind, *more = DENSE[name].split()
            return self._index(kind, self._file("vectors"), self._query_vectors(), *more)
        return getattr(self, f"_{name}")()

    def _file(self, name: str) -> str:
        return str(self.collection[name])

    def _query_vectors(self) -> str:
        """Return the folder of the query embeddings, made on first use."""
        path = self.folder / "asked-vectors"
        if not path.exists():
            call = ["encode", self._file("queries.jsonl"), "--role", "query", "--model", self._file("model")]
            run_successfully(*call, "-o", str(path), "-q")
        return str(path)

    def _index(self, kind: str, source: str, queries: str, *more: str) -> Subject:
        path = self.folder / f"index-{kind}-{len(more)}"
        if not path.exists():
            run_successfully("index", source, "--type", kind, *more, "-o", str(path), "-q")
        return Subject(path, lambda folder, _: run_in_process("search", str(folder), queries, "-k", "5", "--quiet"))

    def _impact(self) -> Subject:
        rows = read_rows(self._file("documents.jsonl"))
        impacts = ({"impacts": {word.lower().strip("."): 7 for word in row["text"].split()}} for row in rows)
        added = (row | more for row, more in zip(rows, impacts, strict=True))
        path = write_rows(self.folder / "impacts.jsonl", added)
        return self._index("impact", str(path), self._file("queries.jsonl"))

    def _embeddings(self) -> Subject:
        return Subject(
            Path(self._file("vectors")),
            lambda folder, output: run_in_process(
                "index", str(folder), "--type", "exact", "-o", str(output / "i"), "-q"
            ),
            lambda _, output: [(output / "i" / name).read_bytes() for name in ("ids.txt", "vectors.npy")],
        )

    def _encoder(self) -> Subject:
        queries = self._file("queries.jsonl")
        call = ["encode", queries, "--role", "query", "--device", "cpu", "-q"]
        return Subject(
            Path(self._file("model")),
            lambda folder, output: run_in_process(*call, "--model", str(folder), "-o", str(output / "v")),
            lambda _, output: (output / "v" / "00000.npy").read_bytes(),
            is_model=True,
        )

    def _crossencoder(self) -> Subject:
        path = _write_manifest(self.collection["crossencoder"], "train-reranker", pairing={"title": "join"})
        call = ["rerank", self._file("first.run"), "--corpus", self._file("documents.jsonl"), "--depth", "1", "-q"]
        call += ["--queries", self._file("queries.jsonl"), "--max-length", "16", "--device", "cpu"]
        return Subject(path, lambda folder, _: run_in_process(*call, "--model", str(folder)), is_model=True)

    def _writer(self) -> Subject:
        few = self.folder / "few.jsonl"
        few.write_bytes(b"".join(self.collection["documents.jsonl"].read_bytes().splitlines(keepends=True)[:4]))
        call = ["doc2query", str(few), "--n", "1", "--max-new-tokens", "2", "--device", "cpu", "-q"]
        return Subject(
            Path(self._file("writer")), lambda folder, _: run_in_process(*call, "--model", str(folder)), is_model=True
        )

    def _weigher(self) -> Subject:
        from drtk.models.term_weighter import init_term_weight_model, save_term_weight_model

        path = self.folder / "weigher"
        if not path.exists():
            weigher = init_term_weight_model(Path(self._file("model")), "deepct", seed=1)
            save_term_weight_model(weigher, path)
            recipe = weigher.encoder.encoding.to_dict()
            facts = {"method": "deepct", "title": "join", "expand": []}
            _write_manifest(path, "termweight", encoding=recipe, term_weights=facts)
        call = ["termweight", self._file("documents.jsonl"), "--method", "deepct", "--device", "cpu", "-q"]
        return Subject(path, lambda folder, _: run_in_process(*call, "--model", str(folder)), is_model=True)

    def _list_reranker(self) -> Subject:
        from drtk.models.list_reranker import ListRerankerConfig, init_list_reranker, save_list_reranker
        from drtk.runtime.manifest import read_manifest

        vectors = self.folder / "pairs"
        path = self.folder / "list"
        run = self._file("first.run")
        if not path.exists():
            call = ["rerank", run, "--corpus", self._file("documents.jsonl"), "--queries", self._file("queries.jsonl")]
            call += ["--model", self._file("crossencoder"), "--max-length", "16", "--depth", "3", "--device", "cpu"]
            run_successfully(*call, "--save-vectors", str(vectors), "-o", str(self.folder / "reranked.run"), "-q")
            made = read_manifest(vectors)
            config = ListRerankerConfig(made["dimension"], depth=3, hidden=8, layers=1)
            save_list_reranker(init_list_reranker(config, seed=1), path)
            _write_manifest(path, "train-reranker", scorer=made["scorer"])
        call = ["rerank", run, "--vectors", str(vectors), "--device", "cpu", "-q"]
        return Subject(path, lambda folder, _: run_in_process(*call, "--model", str(folder)), is_model=True)

    def _query_reranker(self) -> Subject:
        call = ["rerank-queries", "apply", self._file("labeled.jsonl"), "--queries", self._file("asked.jsonl")]
        call += ["--n-best", "1", "--device", "cpu", "-q"]
        return Subject(
            Path(self._file("query_reranker")),
            lambda folder, output: run_in_process(*call, "--model", str(folder), "-o", str(output / "q")),
            lambda _, output: {
                item.name: item.read_bytes()
                for item in sorted((output / "q").iterdir())
                if item.name != FOLDER_MANIFEST
            },
            is_model=True,
        )


INDEXES = (*DENSE, "bm25s", "bm25", "impact")
MODELS = ("encoder", "crossencoder", "writer", "weigher", "list_reranker", "query_reranker")


@contextmanager
def use_cache(folder: Path) -> Iterator[None]:
    """Set $DRTK_CACHE inside a block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRTK_CACHE", str(folder))
        yield


def check_cache_damages(kind: str, use: Callable[[], Any], count: int, place: Path, *, seed: str) -> None:
    """Apply `count` damages to a cache (`kind`: its folder under $DRTK_CACHE); each use must give the same results."""
    pristine, copy = place / "pristine", place / "copy"
    with use_cache(pristine):
        expected = use()
    assert (pristine / kind).is_dir()
    for number, (what, damage) in enumerate(iter_damages(pristine / kind, seed=seed)):
        if number == count:
            break
        shutil.copytree(pristine, copy)
        damage(copy / kind)
        with use_cache(copy):
            try:
                assert use() == expected, what
                assert use() == expected, what
            except Exception as error:
                raise AssertionError(f"{what}: {error!r}") from error
        shutil.rmtree(copy)


def check_validate(subject: Subject, count: int, place: Path, *, seed: str) -> None:
    """Apply `count` damages; `drtk validate` must report all changes of content, and nothing for the undamaged folder."""
    copy = place / "copy"
    assert run_in_process("validate", str(subject.folder), "-q").status == 0
    for number, (what, damage) in enumerate(iter_damages(subject.folder, seed=seed)):
        if number == count:
            break
        shutil.copytree(subject.folder, copy)
        damage(copy)
        if _read_contents(copy) != _read_contents(subject.folder):
            outcome = run_in_process("validate", str(copy), "-q")
            assert outcome.status == 1 or what == f"{FOLDER_MANIFEST} removed", what
            assert outcome.err.count("\n") == 1, (what, outcome.err)
        shutil.rmtree(copy)


def _read_contents(folder: Path) -> dict[str, Any]:
    """Return the contents of a folder's files. meta.json is parsed: its layout and key order do not matter."""
    results: dict[str, Any] = {}
    for item in sorted(folder.rglob("*")):
        if item.is_file():
            data = item.read_bytes()
            results[str(item.relative_to(folder))] = data
            if item.name == FOLDER_MANIFEST:
                try:
                    results[item.name] = orjson.loads(data)
                except ValueError:
                    continue
    return results
