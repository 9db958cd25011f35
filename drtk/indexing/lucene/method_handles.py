"""Compose Java calls with method handles and apply them to a batch of items in one call, on Java's threads.

A call from Python into Java costs microseconds per object, and pyjnius' objects must not be shared between Python
threads. So analysis, search and feedback of a query are composed into one method handle, which becomes a
java.util.function.Function and runs in a parallel stream; the results of all items arrive as one JSON text.
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
    """Return the java.lang.Class object of a class, by full name."""
    return java("java.lang.Class").forName(name)


def method_type(returns: str, *takes: str) -> Any:
    """Return a java.lang.invoke.MethodType from names of classes."""
    codes = [_PRIMITIVE.get(name) or f"L{name.replace('.', '/')};" for name in (*takes, returns)]
    return java("java.lang.invoke.MethodType").fromMethodDescriptorString(f"({''.join(codes[:-1])}){codes[-1]}", None)


def find_method(owner: str, name: str, returns: str, *takes: str) -> Any:
    """Return a handle of a public method; its first argument is the object."""
    return _lookup().findVirtual(java_class(owner), name, method_type(returns, *takes))


def find_static_method(owner: str, name: str, returns: str, *takes: str) -> Any:
    """Return a handle of a public static method."""
    return _lookup().findStatic(java_class(owner), name, method_type(returns, *takes))


def find_constructor(owner: str, *takes: str) -> Any:
    """Return a handle of a public constructor."""
    return _lookup().findConstructor(java_class(owner), method_type("void", *takes))


def find_getter(owner: str, name: str, kind: str) -> Any:
    """Return a handle that reads a public field."""
    return _lookup().findGetter(java_class(owner), name, java_class(kind))


def _lookup() -> Any:
    return java("java.lang.invoke.MethodHandles").publicLookup()


def bind(handle: Any, position: int, value: Any) -> Any:
    """Fix one argument of a handle to a Java object, an int or None."""
    if isinstance(value, int):
        value = java("java.lang.Integer")(value)
    return java("java.lang.invoke.MethodHandles").insertArguments(handle, position, value)


def chain(first: Any, second: Any) -> Any:
    """Return a handle of x -> second(first(x))."""
    return java("java.lang.invoke.MethodHandles").filterReturnValue(first, second)


def java_list(items: Iterable[Any]) -> Any:
    """Return a java.util.ArrayList of the items."""
    result = java("java.util.ArrayList")()
    for item in items:
        result.add(item)
    return result


def set_threads(count: int) -> None:
    """Let parallel streams use `count` threads, 0 for all cores. Only the first call in a process has an effect."""
    if count:
        # The calling thread works too, so the pool has one less.
        java("java.lang.System").setProperty(_COMMON_POOL, str(max(count - 1, 1)))


class JavaMap:
    """Apply a handle of one argument to every item of a Java collection.

    parallel: on all threads of Java's common pool; results keep the items' order either way
    """

    def __init__(self, handle: Any, *, parallel: bool = True) -> None:
        handles = java("java.lang.invoke.MethodHandles")
        holder = java("java.util.concurrent.atomic.AtomicReference")()
        _store_function(handle.asType(method_type("java.lang.Object", "java.lang.Object")), holder)
        supply = bind(find_method(holder.getClass().getName(), "get", "java.lang.Object"), 0, holder)
        stream = find_method("java.util.Collection", "parallelStream" if parallel else "stream", _STREAM)
        mapped = handles.collectArguments(
            find_method(_STREAM, "map", _STREAM, _FUNCTION), 1, supply.asType(method_type(_FUNCTION))
        )
        write = find_method(
            "com.fasterxml.jackson.databind.ObjectMapper", "writeValueAsString", "java.lang.String", "java.lang.Object"
        )
        to_list = find_method(_STREAM, "toList", "java.util.List").asType(method_type("java.lang.Object", _STREAM))
        self._run = chain(chain(chain(stream, mapped), to_list), bind(write, 0, _make_json_writer()))

    def __call__(self, items: Any) -> Any:
        """Return the handle's results for the items, as parsed JSON. Raises jnius.JavaException for a Java exception."""
        return orjson.loads(self._run.invokeWithArguments(java_list([items])))


def _store_function(handle: Any, holder: Any) -> None:
    """Store `handle`, as a java.util.function.Function, in the AtomicReference `holder`.

    From Java 24 on its class is hidden and pyjnius cannot name it: it must be made and stored without leaving Java.
    Before Java 22, the class has a name, and the method that makes it rejects a public lookup.
    """
    import jnius

    proxies = "java.lang.invoke.MethodHandleProxies"
    try:
        make = find_static_method(
            proxies, "asInterfaceInstance", "java.lang.Object", "java.lang.Class", "java.lang.invoke.MethodHandle"
        )
    except jnius.JavaException:
        holder.set(java(proxies).asInterfaceInstance(java_class(_FUNCTION), handle))
    else:
        make = bind(bind(make, 0, java_class(_FUNCTION)), 0, handle)
        store = bind(find_method(holder.getClass().getName(), "set", "void", "java.lang.Object"), 0, holder)
        chain(make, store).invokeWithArguments(java_list([]))


def _make_json_writer() -> Any:
    """Return a JSON writer that ignores the unused parts of search results."""
    writer = java("com.fasterxml.jackson.databind.ObjectMapper")()
    yes = java("java.lang.Boolean")(True)
    for name in ("org.apache.lucene.search.TotalHits", "[Lorg.apache.lucene.search.SortField;", "[Ljava.lang.Object;"):
        writer.configOverride(java_class(name)).setIsIgnoredType(yes)
    return writer
