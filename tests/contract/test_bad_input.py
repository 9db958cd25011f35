"""Bad input at the command line: a one-line error, the right exit status, nothing lost."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest

from tests.contract import collection as made
from tests.contract.collection import Collection
from tests.contract.forkserver import FILE_LIMIT, shared_forkserver
from tests.contract.run_drtk import build_command, make_environment, run_in_process, run_successfully


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


FIRST, SECOND = b'{"_id": "a", "text": "one"}\n', b'{"_id": "b", "text": "two"}\n'
UNREADABLE = {
    "not UTF-8": (b'{"_id": "b", "text": "caf\xe9"}\n', "not UTF-8"),
    "UTF-16": ('{"_id": "b", "text": "two"}'.encode("utf-16-le") + b"\n", "not JSON"),
    "torn last line": (b'{"_id": "b", "te', "not JSON"),
    "a list": (b'["b", "two"]\n', "expected a JSON object, got a list"),
    "a number": (b"3\n", "expected a JSON object, got a number"),
    "null": (b"null\n", "expected a JSON object, got null"),
    "missing id": (b'{"text": "two"}\n', "'_id' is missing"),
    "missing text": (b'{"_id": "b"}\n', "'text' is missing"),
    "empty id": (b'{"_id": "", "text": "two"}\n', "'_id' is empty"),
    "duplicate id": (b'{"_id": "a", "text": "two"}\n', "duplicate id 'a'"),
    "an id with a space": (b'{"_id": "b c", "text": "two"}\n', "'_id' 'b c' contains white space"),
    "an id with a tab": (b'{"_id": "b\\tc", "text": "two"}\n', "contains white space"),
    "an id with a line end": (b'{"_id": "b\\n", "text": "two"}\n', "contains white space"),
    "an id that is a list": (b'{"_id": ["b"], "text": "two"}\n', "'_id' must be a string, got a list"),
    "a text that is null": (b'{"_id": "b", "text": null}\n', "'text' must be a string, got null"),
    "a text that is a number": (b'{"_id": "b", "text": 2}\n', "'text' must be a string, got a number"),
    "metadata that is a string": (b'{"_id": "b", "text": "", "metadata": "x"}\n', "'metadata' must be an object"),
    "a NUL byte": (b'{"_id": "b", "text": "t\x00o"}\n', "not JSON"),
    "nothing but NUL bytes": (b"\x00\x00\x00\x00\n", "expected a JSON object, got other text"),
}


@pytest.mark.parametrize("fault", UNREADABLE)
def test_unreadable_lines_are_reported(fault: str) -> None:
    line, problem = UNREADABLE[fault]
    Path("in.jsonl").write_bytes(FIRST + b"\n" + line)
    outcome = run_in_process("convert", "in.jsonl", "--as", "passages", "-o", "out.jsonl")
    assert outcome.status == 1
    assert outcome.err.startswith("drtk: in.jsonl:3: ")
    assert problem in outcome.err
    assert os.listdir() == ["in.jsonl"]
    forgiven = run_successfully("convert", "in.jsonl", "--as", "passages", "--skip-bad", "1")
    assert [orjson.loads(row)["_id"] for row in forgiven.out.splitlines()] == ["a"]
    assert "1 skipped" in forgiven.err


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + FIRST + SECOND,
        (FIRST + SECOND).replace(b"\n", b"\r\n"),
        (FIRST + SECOND).strip(),
        b"\n\n" + FIRST + b"  \n\t\n" + SECOND + b"\n",
    ],
    ids=["a byte order mark", "carriage returns", "no line end at the end", "blank lines"],
)
def test_bom_and_crlf_are_accepted(content: bytes) -> None:
    expected = run_successfully("convert", "--as", "passages", stdin=FIRST + SECOND).out
    assert expected.count(b"\n") == 2
    assert run_successfully("convert", "--as", "passages", stdin=content).out == expected
    assert run_successfully("convert", "--as", "passages", stdin=gzip.compress(content)).out == expected


def test_empty_texts_are_accepted() -> None:
    content = b'{"_id": "a", "text": ""}\n{"_id": "b", "text": " \\u00a0 "}\n{"_id": "c", "text": "three words here"}\n'
    made = run_successfully("chunk", "--policy", "words", "--no-sentences", stdin=content)
    assert [orjson.loads(row)["_id"] for row in made.out.splitlines()] == ["c#0"]
    assert "2 empty" in made.err  # counted, as they vanish
    converted = run_successfully("convert", "--as", "passages", stdin=content).out
    assert [orjson.loads(row)["_id"] for row in converted.splitlines()] == ["a", "b", "c"]


def test_a_document_of_ten_megabytes_on_one_line_is_read() -> None:
    words = b"lift and drag " * 750_000
    Path("in.jsonl").write_bytes(FIRST + b'{"_id": "b", "text": "' + words.strip() + b'"}\n')
    assert Path("in.jsonl").stat().st_size > 10_000_000
    rows = run_successfully(
        "chunk", "in.jsonl", "--policy", "words", "--no-sentences", "--max-words", "1000"
    ).out.splitlines()
    # 3 * 750,000 words in blocks of 1,000, and the document of one word
    assert len(rows) == 1 + 2250
    # 1,000 = 3 * 333 + 1, so each block begins one word further in the phrase; block 2,249 begins with word 2,249,000 = 3 * 749,666 + 2
    assert orjson.loads(rows[-1])["text"].split() == ["drag"] + ["lift", "and", "drag"] * 333


RUN, QRELS = b"q0 Q0 d0 1 2.5 t\n", b"query-id\tcorpus-id\tscore\nq0\td0\t1\n"
COLUMNS = {
    "five columns in a run": (RUN + b"q0 Q0 d1 2 2.0\n", QRELS, "run:2: expected 6 columns"),
    "a score that is no number": (RUN + b"q0 Q0 d1 2 high t\n", QRELS, "run:2: score 'high' is not a number"),
    "a NaN score": (RUN + b"q0 Q0 d1 2 NaN t\n", QRELS, "run:2: score 'NaN' is not finite"),
    "an infinite score": (RUN + b"q0 Q0 d1 2 -inf t\n", QRELS, "run:2: score '-inf' is not finite"),
    "a rank that is no number": (RUN + b"q0 Q0 d1 two 2.0 t\n", QRELS, "run:2: rank 'two' is not an integer"),
    "a NUL byte in a run": (RUN + b"q0 Q0 d\x001 2 2.0 t\n", QRELS, "run:2: contains a NUL byte"),
    "a run that is not UTF-8": (RUN + b"q0 Q0 d\xff 2 2.0 t\n", QRELS, "run:2: not UTF-8"),
    "a document twice": (
        RUN + b"q0 Q0 d0 2 2.0 t\n",
        QRELS,
        "run:2: document 'd0' is listed a second time for query 'q0'",
    ),
    "two columns of judgments": (RUN, QRELS + b"q0\td1\n", "qrels:3: expected 3 columns"),
    "five columns of judgments": (RUN, b"q0 0 d0 1\nq0 0 d1 1 x\n", "qrels:2: expected 4 columns"),
    "a grade that is no number": (RUN, QRELS + b"q0\td1\thigh\n", "qrels:3: grade 'high' is not an integer"),
    "a NaN grade": (RUN, QRELS + b"q0\td1\tnan\n", "qrels:3: grade 'nan' is not an integer"),
    "a judgment twice": (RUN, QRELS + b"q0\td0\t0\n", "qrels:3: document 'd0' is judged a second time"),
    "a NUL byte in judgments": (RUN, QRELS + b"q0\td\x00\t1\n", "qrels:3: contains a NUL byte"),
}


@pytest.mark.parametrize("fault", COLUMNS)
def test_unreadable_columns_are_reported(fault: str) -> None:
    run, qrels, complaint = COLUMNS[fault]
    Path("run").write_bytes(run)
    Path("qrels").write_bytes(qrels)
    outcome = run_in_process("eval", "run", "--qrels", "qrels", "-o", "table")
    assert outcome.status == 1
    assert outcome.err.startswith(f"drtk: {complaint}")
    assert not Path("table").exists()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"a\tone\nb\n", "in.tsv:2: expected 2 columns, got 1"),
        (b"a\tone\nb\ttwo\tthree\n", "in.tsv:2: expected 2 columns, got 3"),
        (b"id\ttext\ttitle\na\tone\tfirst\nb\ttwo\n", "in.tsv:3: expected 3 columns, got 2"),
        (b"a\tone\nb\tt\x00o\n", "in.tsv:2: contains a NUL byte"),
        (b"a\tone\nb\tcaf\xe9\n", "in.tsv:2: not UTF-8"),
        (b"a\tone\n\ttwo\n", "in.tsv:2: '_id' is empty"),
        (b"a\tone\na\ttwo\n", "in.tsv:2: duplicate id 'a'"),
        (b"a\tone\nb c\ttwo\n", "in.tsv:2: '_id' 'b c' contains white space"),
    ],
)
def test_unreadable_table_rows_are_reported(content: bytes, complaint: str) -> None:
    Path("in.tsv").write_bytes(content)
    outcome = run_in_process("convert", "in.tsv", "--as", "passages")
    assert outcome.status == 1
    assert outcome.err.startswith(f"drtk: {complaint}")


def test_unknown_judged_documents_are_counted_by_eval_and_rejected_by_mining(
    collection: Collection,
) -> None:
    Path("qrels").write_bytes(made.make_qrels(20) + b"q0\tnowhere\t1\nq1\tneither\t1\n")
    call = [str(collection["first.run"]), "--qrels", "qrels", "--corpus", str(collection["documents.jsonl"])]
    outcome = run_successfully("eval", *call, "-q")  # a warning is shown even then
    assert "2 " in outcome.err
    assert "nowhere" in outcome.err or "corpus" in outcome.err
    assert outcome.out
    outcome = run_in_process("mine-negatives", *call, "-o", "train.jsonl")
    assert outcome.status == 1
    assert "qrels:22: passage 'nowhere' is not in the corpus" in outcome.err
    assert not Path("train.jsonl").exists()


@pytest.mark.parametrize("field", ["query_id", "positives", "negatives"])
def test_training_rejects_examples_with_unknown_ids(field: str, collection: Collection) -> None:
    rows = [orjson.loads(line) for line in made.make_examples(8).splitlines()]
    rows[2][field] = "nowhere" if field == "query_id" else ["nowhere"]
    Path("train.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    files = ["--corpus", str(collection["documents.jsonl"]), "--queries", str(collection["queries.jsonl"])]
    call = ["train-retriever", "train.jsonl", *files, "--model", str(collection["model"]), "-o", "trained"]
    outcome = run_in_process(*call, "--batch-size", "4", "--negatives", "1")
    assert outcome.status == 1
    assert "train.jsonl" in outcome.err
    assert "nowhere" in outcome.err
    assert not Path("trained/meta.json").exists()


def test_an_empty_file_gives_no_records_or_an_error(collection: Collection) -> None:
    for name, content in (("nothing", b""), ("blank", b"\n\n"), ("mark", b"\xef\xbb\xbf")):
        Path(name).write_bytes(content)
        assert run_successfully("convert", name, "--as", "passages").out == b""
        assert run_successfully("chunk", name).out == b""
        assert run_successfully("search", str(collection["bm25s"]), name).out == b""
        for call in (
            ["index", name, "--type", "bm25s", "-o", "index"],
            ["init-model", name, "-o", "model"],
            ["eval", str(collection["first.run"]), "--qrels", name],
            ["mine-negatives", str(collection["first.run"]), "--qrels", name],
        ):
            outcome = run_in_process(*call)
            assert outcome.status == 1, call
            assert "Traceback" not in outcome.err
            assert name in outcome.err.splitlines()[-1] or call[0] == "init-model"
            assert outcome.out == b""
    assert sorted(os.listdir()) == ["blank", "mark", "nothing"]


def test_a_folder_given_as_file_and_the_reverse_are_rejected(collection: Collection) -> None:
    Path("folder").mkdir()
    Path("file").write_bytes(b"precious\n")
    run, qrels, documents, model = (
        str(collection[name]) for name in ("first.run", "qrels.tsv", "documents.jsonl", "model")
    )
    for call in (
        ["convert", "folder", "--as", "queries"],
        ["chunk", "folder"],
        ["eval", "folder", "--qrels", qrels],
        ["eval", run, "--qrels", "folder"],
        ["fuse", run, "folder"],
        ["chunk", documents, "-o", "folder"],
        ["chunk", documents, "-o", "folder", "--force"],
        ["index", "folder", "--type", "bm25s", "-o", "index"],
    ):
        outcome = run_in_process(*call)
        assert outcome.status == 1, call
        problem = "contains no collection" if call[0] == "eval" and call[3] == "folder" else "is a folder"
        assert f"folder: {problem}" in outcome.err, call
    for call in (
        ["index", documents, "--type", "bm25s", "-o", "file", "--force"],
        ["encode", documents, "--model", "file", "-o", "vectors"],
        ["encode", documents, "--model", model, "-o", "file", "--force"],
        ["index", "file", "--type", "exact", "-o", "index"],
        ["sample", "file", "--packages", "nltk", "--force"],
    ):
        outcome = run_in_process(*call)
        assert outcome.status in (1, 2), call
        assert "file" in outcome.err, call
        assert outcome.err.count("\n") == 1, outcome.err
    assert os.listdir("folder") == []
    assert Path("file").read_bytes() == b"precious\n"


def test_an_unfinished_folder_is_not_read(collection: Collection) -> None:
    for name, source in (("index", "bm25s"), ("vectors", "vectors")):
        folder = Path(name)
        folder.mkdir()
        for item in Path(collection[source]).iterdir():
            if item.is_file():
                (folder / item.name).write_bytes(item.read_bytes())
        (folder / "meta.json").rename(folder / "meta.json.part")
    for call in (
        ["search", "index", str(collection["queries.jsonl"])],
        ["index", "vectors", "--type", "exact", "-o", "exact"],
        ["show", "index"],
    ):
        outcome = run_in_process(*call)
        assert outcome.status == 1, call
        assert "has no meta.json; the folder is unfinished" in outcome.err, call
    (Path("index") / "meta.json.part").unlink()
    assert "not made by drtk" in run_in_process("search", "index", str(collection["queries.jsonl"])).err


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_truncated_compressed_input_is_an_error(suffix: str) -> None:
    Path("in.jsonl").write_bytes(made.make_documents(2000))
    run_successfully("convert", "in.jsonl", "--as", "passages", "-o", f"whole{suffix}")
    whole = Path(f"whole{suffix}").read_bytes()
    Path(f"cut{suffix}").write_bytes(whole[: len(whole) * 2 // 3])
    outcome = run_in_process("convert", f"cut{suffix}", "--as", "passages", "-o", "out")
    assert outcome.status == 1
    assert f"cut{suffix}:" in outcome.err
    assert "compressed data ends early" in outcome.err
    assert not Path("out").exists()


def with_file_limit(limit: int, arguments: str) -> tuple[int | None, list[str]]:
    """Run drtk with a limit for file sizes, as on a full disk; return its status and stderr."""
    running = shared_forkserver().start(arguments.split(), Path.cwd(), Path("stderr"), **{FILE_LIMIT: limit})
    return running.status(), Path("stderr").read_text().splitlines()


def test_a_full_disk_is_an_error_and_keeps_the_old_output() -> None:
    Path("in.jsonl").write_bytes(made.make_documents(3000))
    Path("out").write_bytes(b"old\n")
    status, lines = with_file_limit(100_000, "convert in.jsonl --as passages -o out --force")
    assert (status, lines[-1]) == (1, "drtk: out.part: File too large")
    assert Path("out").read_bytes() == b"old\n"
    Path("full").symlink_to("/dev/full")  # should this fail, the link is replaced and not the device
    for target in ("-", "full"):
        with open("/dev/full", "wb") as full:
            call = build_command("convert", "in.jsonl", "--as", "passages", "-o", target)
            outcome = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, env=make_environment())
        assert outcome.returncode == 1
        assert "No space left on device" in outcome.stderr
    assert Path("full").is_symlink()


@pytest.mark.parametrize(
    "arguments",
    [
        "init-model in.jsonl --vocab-size 2000 --layers 1 --hidden 64 --heads 2 -o out",
        "index in.jsonl --type bm25s -o out",
        "chunk in.jsonl -o out",
    ],
    ids=lambda arguments: arguments.split()[0],
)
def test_a_full_disk_is_reported_with_the_output_by_folder_commands_too(arguments: str) -> None:
    Path("in.jsonl").write_bytes(made.make_documents(3000))
    status, lines = with_file_limit(40_000, arguments)
    assert status == 1
    assert not [line for line in lines if "Traceback" in line]
    assert re.search(r"^drtk: out.*(File too large|requested and \d+ written)", lines[-1])  # the system's, or numpy's


def run_as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `drtk ARGUMENTS` as a user without write permission, even if the tests run as root.

    A successful command first imports all libraries, because that user may have no permission to read them.
    """
    program = f"""
import contextlib, os, sys
from drtk.cli import main
warm = {[*arguments[:-1], f"warm-{arguments[0]}"]!r}
warm[1] = "good.jsonl"
sys.argv = ["drtk", *warm, "-q", "--force"]
with contextlib.suppress(SystemExit):
    main.run()
if os.geteuid() == 0:
    os.setgroups([])
    os.setegid(65534)
    os.seteuid(65534)
sys.argv = ["drtk", *{list(arguments)!r}]
main.run()
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=make_environment())


def test_a_read_only_output_is_rejected_before_anything_is_read(tmp_path: Path) -> None:
    for parent in [tmp_path, *tmp_path.parents]:
        if os.stat(parent).st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    Path("locked").mkdir(mode=0o555)
    Path("mine").mkdir()
    Path("mine").chmod(0o777)
    try:
        Path("good.jsonl").write_bytes(FIRST)
        # The input is torn in its first line: were it read, the complaint would be another.
        Path("in.jsonl").write_bytes(b"{torn")
        Path("in.jsonl").chmod(0o644)
        outcome = run_as_nobody("convert", "in.jsonl", "--as", "passages", "-o", "locked/out")
        assert (outcome.returncode, outcome.stderr) == (1, "drtk: locked/out: Permission denied\n")
        Path("in.jsonl").write_bytes(FIRST)
        outcome = run_as_nobody("index", "in.jsonl", "--type", "bm25s", "-o", "locked/index")
        assert outcome.returncode == 1
        assert outcome.stderr.endswith("drtk: locked/index: Permission denied\n")
        assert os.listdir("locked") == []
        Path("in.jsonl").chmod(0o000)
        if os.geteuid() == 0:
            outcome = run_as_nobody("convert", "in.jsonl", "--as", "passages", "-o", "mine/out")
            assert (outcome.returncode, outcome.stderr) == (1, "drtk: in.jsonl: Permission denied\n")
    finally:
        Path("locked").chmod(0o755)


def test_missing_files_and_folders_are_reported() -> None:
    Path("in.jsonl").write_bytes(FIRST)
    outcome = run_in_process("convert", "in.jsonl", "--as", "passages", "-o", "none/out")
    assert (outcome.status, outcome.err) == (1, "drtk: none/out: folder none does not exist; create it\n")
    outcome = run_in_process("convert", "none.jsonl", "--as", "passages")
    assert (outcome.status, outcome.err) == (1, "drtk: none.jsonl: No such file or directory\n")


def test_a_closed_pipe_ends_every_command_of_a_pipeline() -> None:
    Path("in.jsonl").write_bytes(made.make_documents(20_000))
    assert Path("in.jsonl").stat().st_size > 3_000_000
    stage = f"'{sys.executable}' -m drtk"
    line = (
        f"{{ {stage} convert in.jsonl --as passages; echo $? > first; }} | "
        f"{{ {stage} chunk --policy words --no-sentences --max-words 5 --num-workers 1; echo $? > second; }} | head -1"
    )
    outcome = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=make_environment(), check=False)
    assert outcome.stdout.count("\n") == 1
    assert Path("second").read_text() == "141\n"
    assert Path("first").read_text() in ("141\n", "0\n")  # 0 where the second had read it all before head left
    assert "Traceback" not in outcome.stderr
    assert "Broken pipe" not in outcome.stderr
    assert sorted(os.listdir()) == ["first", "in.jsonl", "second"]


def interrupt_conversion(sign: signal.Signals, output: str) -> subprocess.Popen[bytes]:
    """Run a conversion, send it the signal `sign` while it waits for input after a batch; return the ended process."""
    running = subprocess.Popen(
        build_command("convert", "-", "--as", "passages", "-o", output),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=make_environment(),
    )
    assert running.stdin is not None
    lines = made.make_documents(1500).splitlines(keepends=True)
    running.stdin.write(b"".join(lines))
    running.stdin.flush()
    journal = Path(f"{output}.part.json")
    for _ in range(30_000):
        if journal.exists() or running.poll() is not None:
            break
        time.sleep(0.01)
    assert journal.exists()
    running.send_signal(sign)
    running.wait(timeout=300)
    return running


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("output", ["out", "out.zst"])
def test_an_interrupted_run_resumes_to_the_uninterrupted_one(sign: signal.Signals, output: str) -> None:
    running = interrupt_conversion(sign, output)
    assert running.stderr is not None
    stderr = running.stderr.read().decode()
    if sign == signal.SIGINT:
        assert running.returncode == 130
        assert stderr.splitlines()[-1] == "drtk: interrupted"
        assert f"{output}.part: contains the output of 1,000 records; use --resume to continue" in stderr
        assert "Traceback" not in stderr
    else:
        assert running.returncode == -signal.SIGKILL
    assert sorted(os.listdir()) == [f"{output}.part", f"{output}.part.json"]
    rejected = run_in_process("convert", "-", "--as", "passages", "-o", output, stdin=made.make_documents(3000))
    assert rejected.status == 1
    assert "contains 1,000 finished records of an interrupted run; use --resume to continue it" in rejected.err
    Path("in.jsonl").write_bytes(made.make_documents(3000))
    run_successfully("convert", "in.jsonl", "--as", "passages", "-o", "expected")
    assert "resuming" in run_successfully("convert", "in.jsonl", "--as", "passages", "-o", output, "--resume").err
    assert sorted(path.name for path in Path().glob("out*")) == [output, f"{output}.meta.json"]
    assert run_successfully("convert", output, "--as", "passages").out == Path("expected").read_bytes()


def test_ctrl_c_before_the_first_batch_leaves_no_files() -> None:
    with subprocess.Popen(
        build_command("convert", "-", "--as", "passages", "-o", "out"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=make_environment(),
    ) as running:
        assert running.stdin is not None
        running.stdin.write(FIRST)
        running.stdin.flush()
        deadline = time.monotonic() + 300  # a busy machine is slow to begin
        while not Path("out.part").exists():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=300) == 130
    assert os.listdir() == []
