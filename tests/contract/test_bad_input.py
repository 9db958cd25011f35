"""Bad input at the command line: a one-line error, the right exit status, nothing lost."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract import collection as made
from tests.contract.forkserver import FILE_LIMIT, shared_forkserver
from tests.contract.run_drtk import build_command, make_environment, run_in_process, run_successfully

pytestmark = pytest.mark.usefixtures("folder")
FIRST = b'{"_id": "a", "text": "one"}\n'
RUN, QRELS = b"q0 Q0 d0 1 2.5 t\n", b"query-id\tcorpus-id\tscore\nq0\td0\t1\n"
PASSAGES, TABLE = "convert in.jsonl --as passages", "convert in.tsv --as passages"


@pytest.mark.parametrize(
    ("call", "content", "message"),  # unit tests of the readers have more faults
    [
        (PASSAGES, FIRST + b"IxFI\x08\x00", "in.jsonl:2: a faiss index, not text; give the ids of its vectors"),
        (TABLE, b"IxFI\x08\x00\t", "in.tsv:1: a faiss index, not text; give the ids"),
        (TABLE, b"a\tone\n\ttwo\n", "in.tsv:2: '_id' is empty"),
        (TABLE, b"a\tone\nb c\ttwo\n", "in.tsv:2: '_id' 'b c' contains white space"),
        ("eval in.run --qrels qrels", RUN + b"q0 Q0 d\xff 2 2.0 t\n", "in.run:2: not UTF-8"),
    ],
)
def test_unreadable_lines_are_reported(call, content, message):
    Path("qrels").write_bytes(QRELS)
    Path(message.partition(":")[0]).write_bytes(content)
    outcome = run_in_process(*call.split(), "-o", "out")
    assert outcome.status == 1
    assert outcome.err.startswith(f"drtk: {message}")


def test_an_empty_file_gives_no_records_or_an_error(collection):
    run = str(collection["first.run"])
    for name, content in (("nothing", b""), ("blank", b"\n\n"), ("mark", b"\xef\xbb\xbf")):
        Path(name).write_bytes(content)
        for call in (["convert", "--as", "passages"], ["chunk"], ["search", str(collection["bm25s"])]):
            outcome = run_successfully(*call, name, "-q")
            message = f"drtk: {call[0]}: the input has no records, so the output is empty\n"
            assert (outcome.out, outcome.err) == (b"", message)
        for call in (
            ["index", name, "--type", "bm25s", "-o", "index"],
            ["init-model", name, "-o", "model"],
            ["eval", run, "--qrels", name],
            ["mine-negatives", run, "--qrels", name],
        ):
            outcome = run_in_process(*call)
            assert (outcome.status, outcome.out) == (1, b""), call
            assert name in outcome.err.splitlines()[-1] or call[0] == "init-model"
    assert sorted(os.listdir()) == ["blank", "mark", "nothing"]


def test_a_folder_given_as_file_and_the_reverse_are_rejected(collection):
    Path("folder").mkdir()
    Path("file").write_bytes(b"precious\n")
    names = {"RUN": "first.run", "QRELS": "qrels.tsv", "DOCUMENTS": "documents.jsonl", "MODEL": "model"}
    for call, problem in {
        "chunk folder": "folder: is a folder",
        "eval folder --qrels QRELS": "folder: is a folder",
        "eval RUN --qrels folder": "folder: contains no collection",
        "chunk DOCUMENTS -o folder --force": "folder: is a folder",
        "index folder --type bm25s -o index": "folder: is a folder",
        "index DOCUMENTS --type bm25s -o file --force": "file",
        "encode DOCUMENTS --model file -o vectors": "file",
        "encode DOCUMENTS --model MODEL -o file --force": "file",
        "index file --type exact -o index": "file",
        "sample file --packages nltk --force": "file",
    }.items():
        outcome = run_in_process(*(str(collection[names[word]]) if word in names else word for word in call.split()))
        assert outcome.status in (1, 2), call
        assert problem in outcome.err, call
        assert outcome.err.count("\n") == 1, outcome.err
    assert os.listdir("folder") == []
    assert Path("file").read_bytes() == b"precious\n"


@pytest.mark.parametrize(
    ("limit", "call"),  # of the size of files, as on a full disk
    [
        (100_000, "convert in.jsonl --as passages"),
        (40_000, "init-model in.jsonl --vocab-size 2000 --layers 1 --hidden 64 --heads 2"),
        (40_000, "index in.jsonl --type bm25s"),
    ],
    ids=["convert", "init-model", "index"],
)
def test_a_full_disk_is_reported_with_the_output_which_is_kept(limit, call):
    Path("in.jsonl").write_bytes(made.make_documents(3000))
    if "convert" in call:
        Path("out").write_bytes(b"old\n")
    arguments = [*call.split(), "-o", "out", "--force"]
    running = shared_forkserver().start(arguments, Path.cwd(), Path("stderr"), **{FILE_LIMIT: limit})
    assert running.status() == 1
    lines = Path("stderr").read_text().splitlines()
    assert not [line for line in lines if "Traceback" in line]
    assert re.search(r"^drtk: out.*(File too large|requested and \d+ written)", lines[-1])  # the system's, or numpy's
    if "convert" in call:
        assert Path("out").read_bytes() == b"old\n"


def test_a_full_disk_behind_stdout_is_an_error():
    Path("in.jsonl").write_bytes(made.make_documents(3000))
    with open("/dev/full", "wb") as full:
        call = build_command("convert", "in.jsonl", "--as", "passages")
        outcome = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, env=make_environment())
    assert outcome.returncode == 1
    assert "No space left on device" in outcome.stderr


PROGRAM = """  # a user without write permission, even if the tests run as root
import os, sys
from drtk.cli import main
calls = sys.argv[1].split(",")
def run(call):
    sys.argv = ["drtk", *call.split(), "-q"]
    try:
        main.run()
    except SystemExit as done:
        return done.code
for call in ("convert good.jsonl --as passages -o warm", "index good.jsonl --type bm25s -o warm-index"):
    assert run(call) == 0  # imports the libraries, because that user may have no permission to read them
if os.geteuid() == 0:
    os.setgroups([])
    os.setegid(65534)
    os.seteuid(65534)
for call in calls:
    assert run(call) == 1
"""


def test_a_read_only_output_is_rejected_before_anything_is_read(tmp_path):
    for parent in [tmp_path, *tmp_path.parents]:
        if os.stat(parent).st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    Path("locked").mkdir(mode=0o555)
    Path("mine").mkdir()
    Path("mine").chmod(0o777)
    Path("good.jsonl").write_bytes(FIRST)
    Path("torn.jsonl").write_bytes(b"{torn")  # if it were read, the message would be another
    Path("locked.jsonl").touch(0o000)
    calls = ["convert torn.jsonl --as passages -o locked/out", "index good.jsonl --type bm25s -o locked/index"]
    calls += ["convert locked.jsonl --as passages -o mine/out"] * (os.geteuid() == 0)
    program = [sys.executable, "-c", PROGRAM, ",".join(calls)]
    try:
        outcome = subprocess.run(program, capture_output=True, text=True, env=make_environment())
        assert outcome.returncode == 0, outcome.stderr
        places = ["locked/out", "locked/index", "locked.jsonl"][: len(calls)]
        assert outcome.stderr.splitlines() == [f"drtk: {place}: Permission denied" for place in places]
        assert os.listdir("locked") == []
    finally:
        Path("locked").chmod(0o755)
