"""Bad input at the command line: a one-line error, the right exit status, nothing lost."""

from __future__ import annotations

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
from tests.contract.forkserver import FILE_LIMIT, shared_forkserver
from tests.contract.run_drtk import build_command, make_environment, run_in_process, run_successfully

pytestmark = pytest.mark.usefixtures("folder")
FIRST = b'{"_id": "a", "text": "one"}\n'
RUN, QRELS = b"q0 Q0 d0 1 2.5 t\n", b"query-id\tcorpus-id\tscore\nq0\td0\t1\n"
PASSAGES, TABLE, EVALUATION = (
    "convert in.jsonl --as passages",
    "convert in.tsv --as passages",
    "eval in.run --qrels qrels",
)
UNREADABLE = [  # a call, the content of its file, and the message; unit tests of readers have more faults
    (PASSAGES, FIRST + b"\n" + b'{"_id": "b", "text": "caf\xe9"}\n', "in.jsonl:3: not UTF-8"),
    (PASSAGES, FIRST + b"null\n", "in.jsonl:2: expected a JSON object, got null"),
    (
        PASSAGES,
        FIRST + b"IxFI\x08\x00\x00\x00",
        "in.jsonl:2: a faiss index, not text; give the ids of its vectors with drtk index --ids",
    ),
    (TABLE, b"IxFI\x08\x00\x00\x00\t", "in.tsv:1: a faiss index, not text; give the ids"),
    (TABLE, b"id\ttext\ttitle\na\tone\tfirst\nb\ttwo\n", "in.tsv:3: expected 3 columns, got 2"),
    (TABLE, b"a\tone\n\ttwo\n", "in.tsv:2: '_id' is empty"),
    (TABLE, b"a\tone\nb c\ttwo\n", "in.tsv:2: '_id' 'b c' contains white space"),
    (EVALUATION, RUN + b"q0 Q0 d1 2 -inf t\n", "in.run:2: score '-inf' is not finite"),
    (EVALUATION, RUN + b"q0 Q0 d\xff 2 2.0 t\n", "in.run:2: not UTF-8"),
    ("eval run --qrels in.qrels", QRELS + b"q0\td1\n", "in.qrels:3: expected 3 columns"),
]


@pytest.mark.parametrize(("call", "content", "message"), UNREADABLE)
def test_unreadable_lines_are_reported(call, content, message):
    Path("run").write_bytes(RUN)
    Path("qrels").write_bytes(QRELS)
    file = Path(message.partition(":")[0])
    file.write_bytes(content)
    outcome = run_in_process(*call.split(), "-o", "out")
    assert outcome.status == 1
    assert outcome.err.startswith(f"drtk: {message}")
    assert sorted(os.listdir()) == sorted(["run", "qrels", str(file)])
    if call == PASSAGES:
        forgiven = run_successfully(*call.split(), "--skip-bad", "1")
        assert [orjson.loads(row)["_id"] for row in forgiven.out.splitlines()] == ["a"]
        assert "1 skipped" in forgiven.err


def test_an_empty_file_gives_no_records_or_an_error(collection):
    for name, content in (("nothing", b""), ("blank", b"\n\n"), ("mark", b"\xef\xbb\xbf")):
        Path(name).write_bytes(content)
        for filter_call in (["convert", "--as", "passages"], ["chunk"], ["search", str(collection["bm25s"])]):
            outcome = run_successfully(*filter_call, name, "-q")
            assert (outcome.out, outcome.err) == (
                b"",
                f"drtk: {filter_call[0]}: the input has no records, so the output is empty\n",
            )
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


def test_a_folder_given_as_file_and_the_reverse_are_rejected(collection):
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


def with_file_limit(limit: int, arguments: str) -> tuple[int | None, list[str]]:
    """Run drtk with a limit for file sizes, as on a full disk; return its status and stderr."""
    running = shared_forkserver().start(arguments.split(), Path.cwd(), Path("stderr"), **{FILE_LIMIT: limit})
    return running.status(), Path("stderr").read_text().splitlines()


def test_a_full_disk_is_an_error_and_keeps_the_old_output():
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
    ],
    ids=lambda arguments: arguments.split()[0],
)
def test_a_full_disk_is_reported_with_the_output_by_folder_commands_too(arguments):
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


def test_a_read_only_output_is_rejected_before_anything_is_read(tmp_path):
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


def test_missing_files_and_folders_are_reported():
    Path("in.jsonl").write_bytes(FIRST)
    outcome = run_in_process("convert", "in.jsonl", "--as", "passages", "-o", "none/out")
    assert (outcome.status, outcome.err) == (1, "drtk: none/out: folder none does not exist; create it\n")
    outcome = run_in_process("convert", "none.jsonl", "--as", "passages")
    assert (outcome.status, outcome.err) == (1, "drtk: none.jsonl: No such file or directory\n")


def test_an_interrupted_run_resumes_to_the_uninterrupted_one():
    # SIGINT while the command waits for input after a batch.
    call = build_command("convert", "-", "--as", "passages", "-o", "out.zst")
    lines = made.make_documents(3000).splitlines(keepends=True)
    with subprocess.Popen(call, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=make_environment()) as running:
        assert running.stdin is not None
        assert running.stderr is not None
        running.stdin.write(b"".join(lines[:1500]))
        running.stdin.flush()
        for _ in range(30_000):
            if Path("out.zst.part.json").exists() or running.poll() is not None:
                break
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=300) == 130
        stderr = running.stderr.read().decode()
    assert stderr.splitlines()[-1] == "drtk: interrupted"
    assert "out.zst.part: contains the output of 1,000 records; use --resume to continue" in stderr
    assert sorted(os.listdir()) == ["out.zst.part", "out.zst.part.json"]
    Path("in.jsonl").write_bytes(b"".join(lines))
    rejected = run_in_process("convert", "in.jsonl", "--as", "passages", "-o", "out.zst")
    assert rejected.status == 1
    assert "contains 1,000 finished records of an interrupted run; use --resume to continue it" in rejected.err
    expected = run_successfully("convert", "in.jsonl", "--as", "passages").out
    resumed = run_successfully("convert", "in.jsonl", "--as", "passages", "-o", "out.zst", "--resume")
    assert "resuming" in resumed.err
    assert sorted(path.name for path in Path().glob("out*")) == ["out.zst", "out.zst.meta.json"]
    assert run_successfully("convert", "out.zst", "--as", "passages").out == expected
