"""One Java function applied to thousands of items by one call, on Java's threads.

A call from Python into Java costs microseconds per object touched, and pyjnius' objects must not be shared between
Python threads. So a query's whole way (analyse, search, feedback) is composed of method handles, becomes a
java.util.function.Function and runs in a parallel stream; what it returns for every item arrives as one JSON text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from drtk.indexing.lucene.jvm import java

_PRIMITIVE = {"void": "V", "int": "I", "float": "F", "boolean": "Z"}
_FUNCTION = "java.util.function.Function"
_STREAM = "java.util.stream.Stream"
_COMMON_POOL = "java.util.concurrent.ForkJoinPool.common.parallelism"


def java_class(name: str) -> Any:
    """The java.lang.Class object of a class, by full name."""
    return java("java.lang.Class").forName(name)


def method_type(returns: str, *takes: str) -> Any:
    """A java.lang.invoke.MethodType from names of classes."""
    words = [_PRIMITIVE.get(name) or f"L{name.replace('.', '/')};" for name in (*takes, returns)]
    return java("java.lang.invoke.MethodType").fromMethodDescriptorString(f"({''.join(words[:-1])}){words[-1]}", None)


def method(owner: str, name: str, returns: str, *takes: str) -> Any:
    """A handle of a public method; its first argument is the object."""
    return _lookup().findVirtual(java_class(owner), name, method_type(returns, *takes))


def static_method(owner: str, name: str, returns: str, *takes: str) -> Any:
    """A handle of a public static method."""
    return _lookup().findStatic(java_class(owner), name, method_type(returns, *takes))


def constructor(owner: str, *takes: str) -> Any:
    """A handle of a public constructor."""
    return _lookup().findConstructor(java_class(owner), method_type("void", *takes))


def getter(owner: str, name: str, kind: str) -> Any:
    """A handle that reads a public field."""
    return _lookup().findGetter(java_class(owner), name, java_class(kind))


def _lookup() -> Any:
    return java("java.lang.invoke.MethodHandles").publicLookup()


def bound(handle: Any, position: int, value: Any) -> Any:
    """`handle` with one argument given: a Java object, or an int or None."""
    handles = java("java.lang.invoke.MethodHandles")
    if isinstance(value, int):
        value = java("java.lang.Integer")(value)
    return handles.insertArguments(handle, position, value)


def then(first: Any, second: Any) -> Any:
    """A handle of x -> second(first(x))."""
    return java("java.lang.invoke.MethodHandles").filterReturnValue(first, second)


def java_list(items: Iterable[Any]) -> Any:
    """A java.util.ArrayList of the items."""
    found = java("java.util.ArrayList")()
    for item in items:
        found.add(item)
    return found


def set_threads(count: int) -> None:
    """Let parallel streams use `count` threads, 0 for every core. Holds from the first one of the process on."""
    if count:
        # The thread that waits works too, so the pool has one less.
        java("java.lang.System").setProperty(_COMMON_POOL, str(max(count - 1, 1)))


class JavaMap:
    """Applies a handle of one argument to every item of a Java collection.

    parallel: on all threads of Java's common pool; results keep the items' order either way
    """

    def __init__(self, handle: Any, *, parallel: bool = True) -> None:
        handles = java("java.lang.invoke.MethodHandles")
        held = java("java.util.concurrent.atomic.AtomicReference")()
        _hold_as_function(handle.asType(method_type("java.lang.Object", "java.lang.Object")), held)
        supply = bound(method(held.getClass().getName(), "get", "java.lang.Object"), 0, held)
        stream = method("java.util.Collection", "parallelStream" if parallel else "stream", _STREAM)
        mapped = handles.collectArguments(
            method(_STREAM, "map", _STREAM, _FUNCTION), 1, supply.asType(method_type(_FUNCTION))
        )
        write = method(
            "com.fasterxml.jackson.databind.ObjectMapper", "writeValueAsString", "java.lang.String", "java.lang.Object"
        )
        as_list = method(_STREAM, "toList", "java.util.List").asType(method_type("java.lang.Object", _STREAM))
        self._run = then(then(then(stream, mapped), as_list), bound(write, 0, _writer()))

    def __call__(self, items: Any) -> Any:
        """What the handle returns for each item, as parsed JSON. Raises jnius.JavaException for a fault in Java."""
        return orjson.loads(self._run.invokeWithArguments(java_list([items])))


def _hold_as_function(handle: Any, held: Any) -> None:
    """Put `handle`, as a java.util.function.Function, into the AtomicReference `held`.

    From Java 24 on its class is hidden and pyjnius cannot name it: it must be made and stored without leaving Java.
    Before, its class has a name, and the method that makes it refuses a public lookup.
    """
    import jnius

    proxies = "java.lang.invoke.MethodHandleProxies"
    try:
        make = static_method(
            proxies, "asInterfaceInstance", "java.lang.Object", "java.lang.Class", "java.lang.invoke.MethodHandle"
        )
    except jnius.JavaException:
        held.set(java(proxies).asInterfaceInstance(java_class(_FUNCTION), handle))
    else:
        make = bound(bound(make, 0, java_class(_FUNCTION)), 0, handle)
        store = bound(method(held.getClass().getName(), "set", "void", "java.lang.Object"), 0, held)
        then(make, store).invokeWithArguments(java_list([]))


def _writer() -> Any:
    """A JSON writer for what searching returns, less the parts nobody reads."""
    writer = java("com.fasterxml.jackson.databind.ObjectMapper")()
    yes = java("java.lang.Boolean")(True)
    for name in ("org.apache.lucene.search.TotalHits", "[Lorg.apache.lucene.search.SortField;", "[Ljava.lang.Object;"):
        writer.configOverride(java_class(name)).setIsIgnoredType(yes)
    return writer
