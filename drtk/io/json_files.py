"""Read JSON files and check their content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from drtk.errors import DrtkError

_DAMAGED = "the file is damaged: rebuild it or restore a copy"


_TYPE_NAMES = {
    str: "a string",
    int: "an integer",
    list: "a list",
    dict: "an object",
    type(None): "null",
    bool: "a boolean",
}


def read_json(path: Path, *, advice: str = _DAMAGED) -> Any:
    """The content of a JSON file. Raises DrtkError, with `advice` if it is not JSON, where it cannot be read."""
    try:
        return orjson.loads(path.read_bytes())
    except OSError as error:
        raise DrtkError(f"{path}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise DrtkError(f"{path}: not JSON: {error}; {advice}") from error


def read_object(path: Path, **keys: Any) -> dict[str, Any]:
    """Return the JSON object in a file; `keys` gives the type of each required key (`str | None`: may be missing).

    Raises DrtkError if the file cannot be read, holds no object, or a key is missing or of another type.
    """
    return check_object(read_json(path), str(path), **keys)


def check_object(content: Any, place: str, **keys: Any) -> dict[str, Any]:
    """Return `content` if it is an object with `keys` of these types. Raises DrtkError, with `place`, if it is not."""
    if not isinstance(content, dict):
        raise DrtkError(f"{place}: expected a JSON object, got {_type_name(type(content))}; {_DAMAGED}")
    for key, kind in keys.items():
        value = content.get(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, bool | None)):
            got = f"got {_type_name(type(value))}" if key in content else "but it is missing"
            expected = " or ".join(_type_name(each) for each in getattr(kind, "__args__", (kind,)))
            raise DrtkError(f"{place}: expected '{key}' to be {expected}, {got}; {_DAMAGED}")
    return content


def _type_name(kind: type) -> str:
    return _TYPE_NAMES.get(kind, kind.__name__)
