"""drtk serve: results, grades and measures as JSON; requests that must be rejected; the page itself."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson
import pytest

from drtk.errors import DrtkError, MismatchError, MissingDependency, UsageError
from tests.bm25_data import skip_without_lucene
from tests.contract.collection import make_sentence
from tests.embedding_folders import write_embeddings
from tests.expansion_collection import write_rows
from tests.run_commands import Capture, run_command, run_rows
from tests.tiny_models import save_tiny_encoder

pytest.importorskip("fastapi", reason="the serve extra is not installed")
from fastapi.testclient import TestClient

from drtk.serving.app import create_app
from drtk.serving.systems import SearchSystem, Systems

HOSTILE = "<script>alert(1)</script> gear"
TEXTS = ["a gear of a bike", f"{HOSTILE} box", "rain in spring", "the gear and the chain"]


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"_id": f"d{number // 2}#{number % 2}", "title": f"T{number}", "text": t} for number, t in enumerate(TEXTS)]
    rows[1]["metadata"] = {"path": "notes/a.pdf", "page": 3}
    write_rows(tmp_path / "c.jsonl", rows)
    write_rows(tmp_path / "q.jsonl", [{"_id": "q1", "text": "gear"}, {"_id": "q2", "text": "rain"}])
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td0#1\t2\nq1\td1#1\t0\n")
    for name, stemmer in (("one", "none"), ("two", "porter")):
        run_command(capfd, "index", "c.jsonl", "--type", "bm25s", "--stemmer", stemmer, "-o", name)
    return tmp_path


@pytest.fixture
def client(cwd: Path) -> TestClient:
    return TestClient(create_app(Systems({"one": "one", "two": "two"}, queries="q.jsonl", qrels="qrels.tsv")))


def test_a_search_returns_the_hits_of_each_system(client, capfd):
    found = client.get("/api/search", params={"query": "gear", "k": 2}).json()
    assert [system["system"] for system in found] == ["one", "two"]
    for system in found:
        run = run_command(capfd, "search", system["system"], "q.jsonl", "-k", "2").splitlines()
        expected = [line.split()[2:5] for line in run if line.startswith("q1 ")]
        assert [[hit["id"], str(hit["rank"])] for hit in system["hits"]] == [row[:2] for row in expected]
        assert [hit["score"] for hit in system["hits"]] == pytest.approx([float(row[2]) for row in expected], abs=1e-4)
    hits = {hit["id"]: hit for hit in client.get("/api/search?query=gear&k=10").json()[0]["hits"]}
    assert {id: hit["grade"] for id, hit in hits.items()} == {"d0#1": 2, "d1#1": 0, "d0#0": None}
    parts = ["<script>alert(1)</script> ", "gear", " box"]  # data, which the page inserts as text
    assert hits["d0#1"]["parts"] == parts
    assert hits["d0#0"]["title"] == "T0"
    assert [hits[id]["place"] for id in ("d0#0", "d0#1")] == ["", "notes/a.pdf, page 3"]


def test_queries_have_the_measures_of_eval(client, cwd, capfd):
    queries = client.get("/api/queries").json()
    expected = [("q1", "gear", True), ("q2", "rain", False)]
    assert [(query["id"], query["text"], bool(query["values"])) for query in queries] == expected
    (cwd / "one.run").write_text(run_command(capfd, "search", "one", "q.jsonl", "-k", "100"))
    table = run_rows(capfd, "eval one.run --qrels qrels.tsv --format jsonl --measures", "nDCG@10 RR@10")
    values = queries[0]["values"]["one"]
    names = ("nDCG@10", "RR@10")
    assert [values[name] for name in names] == pytest.approx([table[0][name] for name in names], abs=1e-4)
    systems = Systems({"one": "one"}, queries="q.jsonl", qrels="qrels.tsv", measures="relstring RR@10")
    assert list(systems.list_queries()[0].values["one"]) == ["RR@10"]  # relstring is a string


def test_a_passage_has_its_neighbors(client):
    passage = client.get("/api/passage", params={"id": "d0#1"}).json()
    text = {"id": "d0#1", "title": "T1", "text": f"{HOSTILE} box", "place": "notes/a.pdf, page 3"}
    assert passage == text | {"previous": "d0#0", "next": None}
    assert client.get("/api/passage", params={"id": "../c.jsonl"}).status_code == 404


def test_each_system_shows_the_texts_of_its_own_corpus(cwd, capfd):
    write_rows(cwd / "long.jsonl", [{"_id": "d0#1", "text": "the gear and a long text"}])
    run_command(capfd, "index", "long.jsonl", "--type", "bm25s", "-o", "long")
    client = TestClient(create_app(Systems({"one": "one", "long": "long"})))
    found = client.get("/api/search?query=gear").json()
    texts = {system["system"]: {hit["id"]: "".join(hit["parts"]) for hit in system["hits"]} for system in found}
    assert (texts["one"]["d0#1"], texts["long"]["d0#1"]) == (f"{HOSTILE} box", "the gear and a long text")
    for parameters, text in (({}, f"{HOSTILE} box"), ({"system": "long"}, "the gear and a long text")):
        assert client.get("/api/passage", params={"id": "d0#1"} | parameters).json()["text"] == text
    assert client.get("/api/passage?id=d0%231&system=other").status_code == 404
    with pytest.raises(MismatchError, match=r"c\.jsonl and .*long\.jsonl have different passages 'd0#1'"):
        run_command(capfd, "search", "one", "long", "--query", "box")


def test_a_changed_corpus_is_reported(cwd, caplog):
    write_rows(cwd / "c.jsonl", [{"_id": "d0#1", "text": "other gear"}])
    Systems({"one": "one", "two": "two"})
    assert "c.jsonl: differs from the corpus of one, so texts may differ" in caplog.text


def test_other_requests_are_rejected(client):
    for query in ("", "%20", "a" * 20_001, "gear&k=0", "gear&k=101"):
        assert client.get(f"/api/search?query={query}").status_code == 422
    for path in ("/c.jsonl", "/..%2fc.jsonl", "/page.html", "//etc/passwd", "/docs"):
        assert client.get(path).status_code == 404
    answer = client.get("/api/search?query=gear&query_id=q9")
    assert (answer.status_code, answer.json()) == (400, {"detail": "no query of the query set has the id 'q9'"})


def test_the_page_loads_nothing_from_elsewhere(client):
    page = client.get("/")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    loaded = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert loaded == ["/page.css", "?", "/page.js"]  # "?" is the link to the list of queries
    for path in loaded:
        assert client.get(path).status_code == 200
    unsafe = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|https?://"
    assert not re.search(unsafe, client.get("/page.js").text)
    assert client.get("/", headers={"host": "other.example"}).status_code == 400
    described = client.get("/openapi.json").json()
    statuses = {path: set(methods["get"]["responses"]) for path, methods in described["paths"].items()}
    assert statuses == {
        "/api/systems": {"200"},
        "/api/search": {"200", "400", "422"},
        "/api/queries": {"200"},
        "/api/passage": {"200", "404", "422"},
    }
    overview = described["components"]["schemas"]["SystemsOverview"]["properties"]
    assert set(overview) == {"systems", "measures", "queries"}
    assert client.get("/api/systems").json()["queries"] == 2


def test_another_corpus_is_reported_once(cwd, monkeypatch):
    write_rows(cwd / "other.jsonl", [{"_id": "x", "text": "gear"}])
    systems = Systems({"one": "one"}, corpus="other.jsonl")
    warnings: list[str] = []
    monkeypatch.setattr("drtk.serving.systems.warn", warnings.append)
    for _ in range(2):
        (found,) = systems.search("gear", 10)
        assert found.hits
        assert not any(hit.parts for hit in found.hits)
    assert warnings == ["other.jsonl: some retrieved passages are missing; is this the corpus of one?"]


def test_systems_need_an_encoder_a_corpus_and_judged_queries(cwd, capfd):
    (cwd / "other.tsv").write_text("query-id\tcorpus-id\tscore\nq9\td0#1\t1\n")
    with pytest.raises(MismatchError, match="no judged query"):
        Systems({"one": "one"}, queries="q.jsonl", qrels="other.tsv")
    with pytest.raises(UsageError, match="`prompt` has no effect on indexes without a query encoder"):
        Systems({"one": "one"}, prompt="find ")
    write_embeddings(cwd / "vectors", np.eye(2), ["d0#0", "d0#1"], encoder=None)
    run_command(capfd, "index", "vectors", "--type", "exact", "-o", "dense")
    with pytest.raises(MismatchError, match="dense: does not record the encoder"):
        Systems({"dense": "dense"}, corpus="c.jsonl")
    (cwd / "c.jsonl").rename("moved.jsonl")
    with pytest.raises(MismatchError, match="corpus"):
        Systems({"one": "one"})
    assert Systems({"one": "one"}, corpus="moved.jsonl").get_passage("d1#1") is not None


def test_queries_get_the_given_prompt_and_a_missing_encoder_is_reported(cwd, capfd):
    model = save_tiny_encoder(cwd / "model")
    run_command(capfd, "encode", "c.jsonl", "--model", model, "-o", "vectors")
    run_command(capfd, "index", "vectors", "--type", "exact", "-o", "dense")
    write_rows(cwd / "q.jsonl", [{"_id": "q1", "text": "gear"}])
    run = run_command(capfd, "search", "dense", "q.jsonl", "--prompt", "find ")
    (system,) = Systems({"dense": "dense"}, prompt="find ").search("gear", 4)
    expected = [(id, f"{float(score):.4f}") for _, _, id, _, score, _ in map(str.split, run.splitlines())]
    assert [(hit.id, f"{hit.score:.4f}") for hit in system.hits] == expected
    assert system.hits != next(Systems({"dense": "dense"}).search("gear", 4)).hits
    model.rename(cwd / "moved")
    with pytest.raises(DrtkError, match="model"):
        Systems({"dense": "dense"})


def test_an_error_in_a_search_is_answered_with_its_message(client, monkeypatch):
    def fail(*args: object) -> None:
        raise MismatchError("dense: encoder e does not exist")

    monkeypatch.setattr(SearchSystem, "search", fail)
    answer = client.get("/api/search?query=gear")
    assert (answer.status_code, answer.json()) == (400, {"detail": "dense: encoder e does not exist"})


def test_the_command_serves_on_this_machine_until_it_is_interrupted(cwd):
    command = [sys.executable, "-m", "drtk", "serve", "one", "two", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
        with urllib.request.urlopen(f"{address}/api/systems", timeout=60) as answer:
            assert [system["name"] for system in orjson.loads(answer.read())["systems"]] == ["one", "two"]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()


def test_concurrent_clients_get_the_same_answers_as_one(cwd, capfd):
    skip_without_lucene()
    write_rows(cwd / "c.jsonl", [{"_id": f"d{number}", "text": make_sentence(number)} for number in range(40)])
    run_command(capfd, "index", "c.jsonl", "--type", "bm25", "-o", "lucene")
    run_command(capfd, "encode", "c.jsonl", "--model", save_tiny_encoder(cwd / "model"), "-o", "vectors")
    run_command(capfd, "index", "vectors", "--type", "exact", "-o", "exact")
    client = TestClient(create_app(Systems({"one": "lucene", "two": "lucene", "dense": "exact"})))

    def ask(number: int) -> list[object]:
        systems = client.get("/api/search", params={"query": make_sentence(number)}).json()
        return [(hit["id"], hit["score"], hit["parts"]) for system in systems for hit in system["hits"]]

    expected = [ask(number) for number in range(8)]
    assert all(len(hits) == 30 and all(parts for _, _, parts in hits) for hits in expected)
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda number: ask(number % 8), range(32)))
    assert answers == expected * 4


def test_five_systems_a_port_in_use_and_missing_libraries_are_reported(monkeypatch, capfd):
    with pytest.raises(UsageError, match="at most 4"):
        run_command(capfd, "serve", *(f"{name}=one" for name in "abcde"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(DrtkError, match=f"^port {port} is in use; choose another with --port$"):
            run_command(capfd, "serve", "one", "--port", str(port))
    with pytest.raises(DrtkError, match=r"^port 65536 cannot be used \(.*\); choose another with --port$"):
        run_command(capfd, "serve", "one", "--port", "65536")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingDependency, match=r"pip install fastapi uvicorn$"):
        run_command(capfd, "serve", "one")
