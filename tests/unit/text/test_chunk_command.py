"""drtk chunk, as it is used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import stopped_at
from tests.unit.text.tokenizers_made_here import word_pieces

DRTK = [sys.executable, "-m", "drtk", "chunk"]


def run(*arguments, given=b"", expect=0, **variables):
    done = subprocess.run(
        [*DRTK, *map(str, arguments)],
        input=given,
        capture_output=True,
        check=False,
        env=os.environ | {name: str(value) for name, value in variables.items()},
    )
    assert done.returncode == expect, done.stderr.decode()
    return done


def here(folder, *arguments, given):
    """What the command writes, run in this process: quicker, but what it says is not seen."""
    from drtk.cli.main import app

    (folder / "given.jsonl").write_bytes(given)
    app(
        ["chunk", str(folder / "given.jsonl"), "-o", str(folder / "made.jsonl"), "--force", *map(str, arguments)],
        standalone_mode=False,
    )
    return (folder / "made.jsonl").read_bytes()


def rows(data):
    return [json.loads(line) for line in data.splitlines()]


def corpus(documents):
    return "".join(json.dumps(document) + "\n" for document in documents).encode()


def sentence_of(pieces):
    return " ".join(["Word", *["word"] * (pieces - 2)]) + "."  # the full stop is a piece of its own


def test_the_known_answers_come_out_of_the_command(tmp_path):
    folder = word_pieces(tmp_path / "tokenizer")
    given = corpus([{"_id": "d", "text": " ".join(map(sentence_of, [60, 70, 30, 150, 10, 140, 5]))}])
    found = {}
    for policy in ("greedy", "condenser", "cotmae"):
        made = rows(here(tmp_path, "--tokenizer", folder, "--policy", policy, given=given))
        found[policy] = [row["text"].count("ord") + row["text"].count(".") for row in made]
    assert found == {
        "greedy": [130, 30, 144, 16, 140, 5],
        "condenser": [130, 30, 150, 10, 140, 5],
        "cotmae": [160, 150, 150, 5],
    }
    made = rows(
        here(tmp_path, "--policy", "words", "--max-words", 100, given=corpus([{"_id": "d", "text": "w " * 257}]))
    )
    assert [len(row["text"].split()) for row in made] == [100, 100, 57]


def test_special_tokens_can_be_taken_off_the_cap(tmp_path):
    folder = word_pieces(tmp_path)
    given = corpus([{"_id": "d", "text": " ".join(map(sentence_of, [100, 44]))}])
    loose = run("--tokenizer", folder, given=given)
    assert len(rows(loose.stdout)) == 1
    assert b"with 2 special tokens a model reads 146" in loose.stderr
    assert len(rows(here(tmp_path, "--tokenizer", folder, "--reserve-special", given=given))) == 2  # 144 > 144 - 2


def test_unknown_fields_pass_and_bare_leaves_them_out(tmp_path):
    given = corpus([{"_id": "d", "title": "T", "text": "He went.", "queries": ["who?"], "metadata": {"url": "u"}}])
    (row,) = rows(here(tmp_path, given=given))
    assert (row["title"], row["queries"], row["metadata"]["url"]) == ("T", ["who?"], "u")
    (row,) = rows(here(tmp_path, "--bare", given=given))
    assert sorted(row) == ["_id", "metadata", "text"]


def test_documents_without_words_are_counted(tmp_path):
    given = corpus([{"_id": "a", "text": ""}, {"_id": "b", "text": "He went."}, {"_id": "c", "text": " "}])
    done = run("-o", tmp_path / "out.jsonl", given=given)
    assert [row["_id"] for row in rows((tmp_path / "out.jsonl").read_bytes())] == ["b#0"]
    assert b"3 in, 1 out, 2 empty" in done.stderr
    assert json.loads((tmp_path / "out.jsonl.meta.json").read_text())["counts"]["empty"] == 2


def test_nothing_in_gives_nothing_out():
    assert run(given=b"").stdout == b""


def test_training_is_told_and_a_saved_model_gives_the_same_passages(tmp_path):
    given = corpus(
        {"_id": str(n), "text": f"It was no. {n} of the abk. is here. She came. He went."} for n in range(60)
    )
    trained = run("--max-words", 5, "--save-punkt", tmp_path / "punkt.json", given=given)
    assert b"trained Punkt on the first" in trained.stderr
    assert here(tmp_path, "--max-words", 5, "--punkt-model", tmp_path / "punkt.json", given=given) == trained.stdout
    manifest = json.loads((tmp_path / "made.jsonl.meta.json").read_text())
    assert {Path(entry["path"]).name for entry in manifest["inputs"]} == {"punkt.json", "given.jsonl"}
    run("--save-punkt", tmp_path / "punkt.json", given=corpus([{"_id": "x", "text": "Other."}]), expect=1)
    run("--punkt-model", tmp_path / "none.json", given=given, expect=1)


def test_the_model_among_nltks_data_is_used_where_there_is_one(tmp_path):
    folder = tmp_path / "tokenizers" / "punkt_tab" / "latin"
    folder.mkdir(parents=True)
    (folder / "abbrev_types.txt").write_text("abk\n")
    (folder / "collocations.tab").write_text("a\tb\n")
    (folder / "sent_starters.txt").write_text("he\n")
    (folder / "ortho_context.tab").write_text("went\t32\n")
    given = corpus([{"_id": "d", "text": "See the abk. went is here. And xyz. went is here."}])
    done = run("--language", "latin", given=given, NLTK_DATA=tmp_path)
    assert b"trained" not in done.stderr
    (row,) = rows(done.stdout)
    assert [row["text"][begin:end] for begin, end in row["metadata"]["sentences"]] == [
        "See the abk. went is here.",
        "And xyz.",  # this model does not know the abbreviation
        "went is here.",
    ]
    (folder / "abbrev_types.txt").unlink()  # half installed: as if it was not there
    assert b"punkt_tab for latin is not installed" in run("--language", "latin", given=given, NLTK_DATA=tmp_path).stderr


def test_only_the_beginning_trains(tmp_path):
    """The same first kilobyte and a different rest give the same model."""
    first = {"_id": "first", "text": "One abk. is here. " * 100}
    for name, text in (("a", "Mr. Smith vs. xyz. is it. " * 50), ("b", "Nothing.")):
        given = corpus([first, {"_id": "rest", "text": text}])
        here(tmp_path, "--punkt-mb", 0.001, "--save-punkt", tmp_path / name, given=given)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_one_process_and_several_write_the_same(tmp_path):
    given = corpus({"_id": str(n), "text": f"He went {n} times. She came. " * (n % 50)} for n in range(600))
    assert run("--workers", 3, given=given).stdout == here(tmp_path, "--workers", 1, given=given)


def test_a_killed_run_goes_on_to_the_same_passages(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_bytes(corpus({"_id": str(n), "text": f"He went {n} times. She came. " * 60} for n in range(900)))
    options = [source, "--max-words", 20, "--short-prob", 0.3, "--workers", 2, "--punkt-mb", 0.05]
    run(*options, "-o", tmp_path / "whole.jsonl")
    process = stopped_at(tmp_path / "cut.jsonl.part.json", "chunk", *options, "-o", tmp_path / "cut.jsonl")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers = [int(child) for child in children.read_text().split()] if children.exists() else []
    process.kill()
    process.wait()
    assert not (tmp_path / "cut.jsonl").exists()
    run(*options, "-o", tmp_path / "cut.jsonl", "--resume")
    assert (tmp_path / "cut.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not any(_alive(worker) for worker in workers)


def _alive(pid):
    """Whether a process is still at work; one that ended and was not waited for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ten_megabytes_on_one_line_take_bounded_memory(tmp_path):
    text = "There he bought 3.5 apples. He ate the apples, every one of them, in the park there. " * 125_000
    given = corpus([{"_id": "big", "text": text}])
    assert len(given) > 10_000_000
    Path(tmp_path, "in.jsonl").write_bytes(given)
    call = ["drtk", "chunk", "in.jsonl", "-o", "out.jsonl", "--workers", "1", "--punkt-mb", "0.1"]
    # The process tells its own peak: what wait4 gives of a child begins with the memory of the parent it was forked from.
    program = f"""
import atexit, pathlib, sys
from drtk.cli.main import run
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: pathlib.Path("peak").write_text(status.read_text()))
sys.argv = {call!r}
run()
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True)
    found = rows(Path(tmp_path, "out.jsonl").read_bytes())
    assert sum(len(row["metadata"]["sentences"]) for row in found) == 250_000
    assert " ".join(row["text"] for row in found) == text.strip()
    peak = int(Path(tmp_path, "peak").read_text().split("VmHWM:")[1].split()[0])
    assert peak < 1_000_000  # kilobytes


def test_a_megabyte_without_a_space_is_cut_by_word_pieces(tmp_path):
    folder = word_pieces(tmp_path)
    given = corpus([{"_id": "big", "text": "word-" * 300_000}])
    found = rows(here(tmp_path, "--tokenizer", folder, "--punkt-mb", 0.01, given=given))
    assert "".join(row["text"] for row in found) == "word-" * 300_000
    assert max(row["text"].count("word") + row["text"].count("-") for row in found) == 144


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["--policy", "best"], 2, "'best' is not"),
        (["--max-tokens", "9"], 2, "need a --tokenizer"),
        (["--max-words", "0"], 2, "must be at least 1"),
        (["--tokenizer", "/none/there"], 1, "/none/there: no such folder"),
        (["--punkt-model", "/none/there"], 1, "/none/there: No such file"),
        (["--language", "../x"], 1, "--language ../x"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, status, complaint):
    done = run(*arguments, given=b'{"_id":"a","text":"He went."}\n', expect=status)
    assert complaint in done.stderr.decode()
    assert done.stdout == b""


def test_an_interrupt_ends_workers_quietly(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_bytes(corpus({"_id": str(n), "text": f"He went {n} times. She came. " * 60} for n in range(1500)))
    call = ["chunk", source, "--workers", "2", "--punkt-mb", "0.05", "-o", tmp_path / "out.jsonl"]
    journal = tmp_path / "out.jsonl.part.json"
    process = stopped_at(journal, *call, stderr=subprocess.PIPE, start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does: parent and workers alike
    process.send_signal(signal.SIGCONT)
    _, complaint = process.communicate(timeout=300)
    assert process.returncode == 130
    assert b"Traceback" not in complaint
