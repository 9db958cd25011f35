"""Properties of all commands: help, errors with file and line, compressed streams, resuming, shards."""

import gzip
import inspect
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from drtk.cli.main import COMMANDS
from drtk.runtime.streams import open_input, read_lines
from tests.contract.calls import CALLS, FUNCTIONS, find_commands, has_flag, mark_slow_commands
from tests.contract.collection import Collection
from tests.contract.run_drtk import build_command, make_environment, run_in_process, run_successfully
from tests.run_commands import open_pipe

FILTERS = find_commands("filter")
STREAMS = [name for name in FILTERS if CALLS[name].streams]
MAKERS = find_commands("filter", "folder")
READERS = [name for name in MAKERS if CALLS[name].grow]
pytestmark = pytest.mark.usefixtures("folder")
HEAVY = (
    "torch transformers sentence_transformers faiss jnius pyserini nltk numpy rich fastapi starlette uvicorn onnxruntime "
    "openvino bs4 lxml mammoth markdown_it pypdfium2 ir_datasets datasets pyarrow"
).split()


def arguments(name: str, collection: Collection, source: str | Path, output: str | Path) -> list[str]:
    """Return the arguments of a call in the table, with its placeholders filled in."""

    def fill(part: re.Match[str]) -> str:
        return str({"input": source, "output": output}.get(part[1]) or collection[part[1]])

    return [*name.split(), *(re.sub(r"\{(.+?)\}", fill, word) for word in CALLS[name].arguments.split())]


def bytes_of(path: Path) -> bytes:
    """Return the decompressed content of a file; b"" if it does not exist."""
    return b"".join(line + b"\n" for _, line in read_lines(open_input(str(path))[0], str(path)))


def files_of(folder: Path, pattern: str) -> dict[str, bytes]:
    """Return the content of the files in a folder, except manifests and model cards."""
    return {
        str(item.relative_to(folder)): item.read_bytes()
        for item in sorted(folder.rglob(pattern))
        if item.is_file() and item.name not in ("meta.json", "README.md")
    }


def read_output(name: str, output: Path) -> object:
    """Return the output of a command, for comparison."""
    return files_of(output, CALLS[name].compares) if output.is_dir() else bytes_of(output)


def read_manifest(output: Path) -> Any:
    return orjson.loads((output / "meta.json" if output.is_dir() else Path(f"{output}.meta.json")).read_bytes())


def with_a_torn_line(name: str, content: bytes, *, at: int) -> bytes:
    """Return the input with an invalid record as line `at`, from 1."""
    lines = content.splitlines(keepends=True)
    return b"".join([*lines[: at - 1], CALLS[name].torn.rstrip(b"\n") + b"\n", *lines[at - 1 :]])


def test_every_command_is_registered_and_has_a_call():
    assert {name.split()[0] for name in FUNCTIONS} == set(COMMANDS)
    assert set(FUNCTIONS) - set(CALLS) == set(), "add how to call them to tests/contract/calls.py"
    assert {function.shape for function in FUNCTIONS.values()} == {"plain", "filter", "folder"}


def test_every_option_that_names_an_output_is_declared_in_writes():
    for name, function in FUNCTIONS.items():
        parameters = inspect.signature(function).parameters.values()
        options = {
            item.name: item.annotation.__metadata__[0].help for item in parameters if "str" in str(item.annotation)
        }
        writing = {
            option for option, help in options.items() if help.startswith(("Write the ", "Write every", "Write what"))
        }
        assert writing <= set(getattr(function, "writes", ())), name


def set_option(command: str, field: str, value: str) -> list[str]:
    """Return the arguments that set a field: an option of the command, or --set for an advanced setting."""
    has_option = field in inspect.signature(FUNCTIONS[command]).parameters
    return [f"--{field.replace('_', '-')}", value] if has_option else ["--set", f"{field}={value}"]


@pytest.mark.parametrize("name", ["chunk", "mine-negatives"])  # of those with additional outputs
def test_an_output_is_no_other_output_and_no_input(name, collection):
    source, content = collection[CALLS[name].input], collection[CALLS[name].input].read_bytes()
    Path("linked").symlink_to(".")
    Path("to-out").symlink_to("out")
    for option, other in itertools.product(FUNCTIONS[name].writes, ("out", "./out", "linked/out", "to-out")):
        more = set_option(name, option, other)
        outcome = run_in_process(*arguments(name, collection, source, "out"), *more)
        assert outcome.status == 2
        flag = more[0] if more[0] != "--set" else f"--set {option}"
        assert f"--output and {flag}: both write {other}; give different files" in outcome.err
        assert not Path("out").exists()
    Path("in").write_bytes(content)
    Path("hard").hardlink_to("in")
    for other in ("in", "./in", "hard"):
        outputs = [(other, []), *(("out", set_option(name, option, other)) for option in FUNCTIONS[name].writes)]
        for output, more in outputs:
            outcome = run_in_process(*arguments(name, collection, "in", output), *more, "--force")
            assert outcome.status == 2
            assert "would overwrite the input" in outcome.err or (more and " requires " in outcome.err)
            assert Path("in").read_bytes() == content


def test_no_help_imports_anything_heavy():
    # One process for all: what any of them imports stays in sys.modules, and is looked for after each.
    program = f"""
import io, sys
from drtk.cli.main import app
for name in ["", *{sorted({*COMMANDS, *FUNCTIONS})!r}]:
    sys.stdout = io.StringIO()
    try:
        app([*name.split(), "--help"])
    except SystemExit as done:
        assert done.code == 0, name
    shown, sys.stdout = sys.stdout.getvalue(), sys.__stdout__
    assert shown.startswith("Usage: "), name
    heavy = [module for module in {HEAVY!r} if module in sys.modules]
    assert not heavy, (name, heavy)
print("light")
"""
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=make_environment())
    assert (outcome.stdout, outcome.stderr) == ("light\n", "")


@pytest.mark.parametrize("name", mark_slow_commands(MAKERS))
def test_a_named_output_has_a_manifest_and_is_replaced_on_request(name, collection):
    source = Path("in")
    if CALLS[name].input:
        source.write_bytes(collection[CALLS[name].input].read_bytes())
    call = arguments(name, collection, source, "out")
    run_successfully(*call)
    manifest = read_manifest(Path("out"))
    assert manifest["program"] == name
    assert {"kind", "command", "settings", "inputs", "counts", "versions", "started", "seconds"} <= set(manifest)
    if CALLS[name].input:
        assert {entry["path"]: entry["digest"] for entry in manifest["inputs"]}.get("in"), "the digest of the input"
    before, made = read_output(name, Path("out")), Path("out").stat().st_ino
    rejected = run_in_process(*call)
    assert rejected.status == 1
    assert "out: exists already; --force replaces it" in rejected.err
    assert read_output(name, Path("out")) == before
    outputs = {"out"} if Path("out").is_dir() else {"out", "out.meta.json"}
    assert set(os.listdir()) - {"in"} == outputs
    update = [*call, "--skip-done", "--force"]
    assert run_successfully(*update).err == f"drtk: {name}: out is up to date\n"
    assert Path("out").stat().st_ino == made
    if CALLS[name].input:
        source.write_bytes(b"".join(source.read_bytes().splitlines(keepends=True)[:-1]))
        assert f"drtk: {name}: out is out of date; changed: in\n" in run_successfully(*update).err


@pytest.mark.parametrize("name", mark_slow_commands(READERS))
def test_bad_lines_are_reported_or_skipped_and_counted_up_to_the_limit(name, collection):
    clean = collection[CALLS[name].input].read_bytes()
    Path("clean").write_bytes(clean)
    Path("bad").write_bytes(with_a_torn_line(name, with_a_torn_line(name, clean, at=5), at=2))
    for more, line in ([], 2), (["--skip-bad", "1"], 6):
        outcome = run_in_process(*arguments(name, collection, "bad", "out"), *more)
        assert outcome.status == 1
        errors = [message for message in outcome.err.splitlines() if message.startswith(f"drtk: bad:{line}: ")]
        assert len(errors) == 1
        assert not Path("out").exists() or not Path("out/meta.json").exists()
        assert not Path("out.part").exists()
    run_successfully(*arguments(name, collection, "clean", "expected"))
    outcome = run_successfully(*arguments(name, collection, "bad", "out"), "--skip-bad", "2", "--force")
    for line in (2, 6):
        assert f"skipped: bad:{line}: " in outcome.err
    assert read_output(name, Path("out")) == read_output(name, Path("expected"))
    assert read_manifest(Path("out"))["counts"]["skipped"] == 2


@pytest.mark.parametrize("name", mark_slow_commands(READERS, quick=("chunk", "encode", "eval")))
def test_compressed_files_and_pipes_give_the_same_as_files(name, collection):
    plain = collection[CALLS[name].input].read_bytes()
    suffix = Path(CALLS[name].input).suffix
    compressors = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}
    for extension, compress in compressors.items():
        source, output = f"in{suffix}{extension}", f"out{extension}"
        Path(source).write_bytes(compress(plain))
        run_successfully(*arguments(name, collection, source, output))
        assert read_output(name, Path(output)) == read_output(name, Path("out"))
        if name in FILTERS and extension:
            assert Path(output).read_bytes() != Path("out").read_bytes()
    assert read_output(name, Path("out"))
    with open_pipe(plain) as pipe:
        run_successfully(*arguments(name, collection, pipe, "piped"))
    if CALLS[name].streams:  # a table may name its source
        assert read_output(name, Path("piped")) == read_output(name, Path("out"))
    if name in FILTERS:
        assert run_successfully(*arguments(name, collection, "-", "-"), stdin=plain).out == Path("out").read_bytes()


@pytest.mark.parametrize("name", mark_slow_commands(STREAMS, quick=("chunk", "fuse")))
def test_empty_input_gives_empty_output(name, collection):
    Path("in").write_bytes(b"")
    Path("second.run").write_bytes(b"")
    call = arguments(name, collection, "in", "out.gz")
    run_successfully(*["second.run" if word.endswith("second.run") else word for word in call])
    assert bytes_of(Path("out.gz")) == b""


@pytest.mark.parametrize("name", mark_slow_commands(STREAMS, quick=("chunk", "keep-queries")))
def test_interrupted_then_resumed_equals_uninterrupted(name, collection):
    # The interruption is a bad line after the first batch of records; mending it makes the input whole again.
    grow = CALLS[name].grow
    assert grow is not None
    whole = grow(6000 if name in ("rerank-queries label", "termweight") else 2500)  # several batches
    lines = whole.count(b"\n")
    Path("whole").write_bytes(whole)
    run_successfully(*arguments(name, collection, "whole", "expected"))
    Path("in").write_bytes(with_a_torn_line(name, whole, at=lines * 4 // 5))
    interrupted = run_in_process(*arguments(name, collection, "in", "out.zst"))
    assert interrupted.status == 1
    assert re.search(
        r"out\.zst\.part: contains the output of [\d,]+ records; use --resume to continue", interrupted.err
    )
    assert Path("out.zst.part").exists()
    assert not Path("out.zst").exists()
    rejected = run_in_process(*arguments(name, collection, "in", "out.zst"))
    assert rejected.status == 1
    assert " finished records of an interrupted run; use --resume to continue it" in rejected.err
    Path("in").write_bytes(whole)
    resumed = run_successfully(*arguments(name, collection, "in", "out.zst"), "--resume")
    assert "resuming out.zst after " in resumed.err
    assert bytes_of(Path("out.zst")) == Path("expected").read_bytes()
    assert read_manifest(Path("out.zst"))["counts"] == read_manifest(Path("expected"))["counts"]
    assert sorted(path.name for path in Path().glob("out.zst*")) == ["out.zst", "out.zst.meta.json"]


@pytest.mark.parametrize(
    "name", mark_slow_commands([name for name in STREAMS if has_flag(name, "shard")], quick=("chunk",))
)
def test_shards_together_equal_the_whole(name, collection):
    grow = CALLS[name].grow
    assert grow is not None
    Path("in").write_bytes(grow(2100))  # batches are of 1,000 records at most: of two parts, each has some
    run_successfully(*arguments(name, collection, "in", "whole"))
    for number in (1, 2):
        run_successfully(*arguments(name, collection, "in", f"part.{number}"), "--shard", f"{number}/2")
    whole, first, second = (Path(file).read_bytes().splitlines() for file in ("whole", "part.1", "part.2"))
    assert first
    assert second
    assert sorted(first + second) == sorted(whole)
    manifests = [read_manifest(Path(made)) for made in ("whole", "part.1", "part.2")]
    assert [manifest["settings"]["shard"] for manifest in manifests] == ["1/1", "1/2", "2/2"]
    assert sum(manifest["counts"]["in"] for manifest in manifests[1:]) == manifests[0]["counts"]["in"] == 2100
    assert run_in_process(*arguments(name, collection, "in", "other"), "--shard", "3/2").status == 2


@pytest.mark.parametrize("name", mark_slow_commands([name for name in STREAMS if CALLS[name].keeps]))
def test_unknown_fields_and_those_of_side_files_pass_through(name, collection):
    source = collection[CALLS[name].input]
    call = arguments(name, collection, source, "-")
    if has_flag(name, "with_files"):
        ids = [orjson.loads(line)["_id"] for line in source.read_bytes().splitlines()]
        Path("side").write_bytes(b"".join(orjson.dumps({"_id": id, "note": f"about {id}"}) + b"\n" for id in ids))
        call += ["--with", "side"]
    rows = [orjson.loads(line) for line in run_successfully(*call).out.splitlines()]
    assert {row["colour"] for row in rows} == {"red", "blue"}
    assert all("year" in row["metadata"] for row in rows)
    if has_flag(name, "with_files"):
        assert {row["note"] for row in rows} == {f"about {id}" for id in ids}
    if has_flag(name, "bare"):
        bare = [orjson.loads(line) for line in run_successfully(*call, "--bare").out.splitlines()]
        assert [row["_id"] for row in bare] == [row["_id"] for row in rows]
        for short, long in zip(bare, rows, strict=True):
            assert "colour" not in short
            assert {**short, "metadata": 0} == {field: long[field] for field in short} | {"metadata": 0}


@pytest.mark.parametrize("name", mark_slow_commands([name for name in READERS if has_flag(name, "with_files")]))
def test_a_side_file_in_another_order_is_rejected_with_both_places(name, collection):
    rows = [orjson.loads(line)["_id"] for line in collection[CALLS[name].input].read_bytes().splitlines()]
    side = [orjson.dumps({"_id": row, "note": f"about {row}"}) + b"\n" for row in rows]
    call = arguments(name, collection, collection[CALLS[name].input], "out")
    for lines, message in (
        ([side[0], side[2], side[1], *side[3:]], f"side:2: id '{rows[2]}', but record 2 of "),
        (side[:5], "side: ends before record 6 of "),
    ):
        Path("side").write_bytes(b"".join(lines))
        outcome = run_in_process(*call, "--with", "side", "--force")
        assert outcome.status == 1
        assert message in outcome.err


@pytest.mark.parametrize("name", mark_slow_commands(STREAMS, quick=("chunk",)))
def test_a_closed_pipe_ends_the_command_with_status_141(name, collection):
    grow = CALLS[name].grow
    assert grow is not None
    Path("in").write_bytes(grow(8000))  # the output is several times what a pipe holds
    with subprocess.Popen(
        build_command(*arguments(name, collection, "in", "-")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=make_environment(),
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline().endswith(b"\n")  # head -1
        running.stdout.close()
        stderr = running.stderr.read().decode()
    assert running.returncode == 141
    assert "Traceback" not in stderr
    assert "Broken pipe" not in stderr
    assert os.listdir() == ["in"]
