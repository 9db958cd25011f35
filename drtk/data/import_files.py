"""Import folders and files as documents."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from drtk.data.checks import WITHOUT_TEXT
from drtk.data.config import ImportSettings
from drtk.data.documents import PACKAGES, PARSERS, FieldMap, check_modules, iter_documents
from drtk.data.rows import dump
from drtk.errors import DrtkError, RecordError, UsageError, convert_import_error
from drtk.runtime.filter_job import BatchResult, FilterJob
from drtk.runtime.manifest import find_inputs, load_output_manifest
from drtk.runtime.progress import log, warn
from drtk.runtime.runners import Workers
from drtk.runtime.sharding import count_cores
from drtk.runtime.streams import digest_file

BATCH_SIZE = 64  # files
_MIN_PARALLEL_BYTES = 4_000_000  # for less, starting processes takes longer than parsing
_FIELDS = ("_id", "title", "text")
_MAX_SHOWN = 5  # names in a message

File = tuple[str, str, int, int]  # path, id of its document, bytes, modification time
ParsedFile = tuple[bytes, int, Sequence[DrtkError]]  # JSON lines, number of documents without text, errors


def import_files(sources: Sequence[str], settings: ImportSettings, job: FilterJob) -> None:
    """Write the documents of files, and of all files of known types in folders, to the output of `job`.

    Files are read in the order of `list_files`. Documents without text are skipped, and in folders also hidden and
    excluded files and folders, and the output itself.

    Raises UsageError for a wrong `field`, MissingDependency for a library that is not installed, DrtkError for a missing
    file or two files with the same id, RecordError (file:line) for a damaged file.
    """
    job.record(settings, sources=list(sources))
    fields = parse_field_map(settings.field)
    files = list_files(sources, settings.exclude, skip=job.output)
    check_modules({Path(path).suffix.lower() for path, *_ in files})
    entries = find_inputs({"sources": list(sources)})
    inputs = [entry | {"digest": entry["digest"] or digest_file(entry["path"])} for entry in entries]
    is_small = sum(size for _, _, size, _ in files) < _MIN_PARALLEL_BYTES
    empty: list[str] = []

    def parse_batches(batches: Iterator[list[File]], workers: Workers) -> Iterator[BatchResult]:
        for batch in batches:
            lines, num_empty = [], 0
            for (path, *_), (file_lines, file_empty, errors) in zip(batch, workers.map(batch), strict=True):
                for error in errors:
                    job.tracker.skip_or_raise(error)
                if file_empty:
                    empty.append(path)
                lines.append(file_lines)
                num_empty += file_empty
            yield BatchResult(lines, {WITHOUT_TEXT: num_empty})
        job.tracker.inputs += inputs  # at the end, because a resumed run compares the files itself

    job.counts[WITHOUT_TEXT] = 0  # also reported without files
    job.count_names = {"in": "files", "out": "documents with a text"}
    job.batch_size = BATCH_SIZE
    with Workers(create_import_task, fields, count=1 if is_small else settings.num_workers or count_cores()) as workers:
        job.run_batches(files, lambda batches: parse_batches(batches, workers), unit="files")  # type: ignore[arg-type,return-value]
    if empty:
        advice = "; scanned PDF pages need OCR first" if any(path.lower().endswith(".pdf") for path in empty) else ""
        more = f" and {len(empty) - _MAX_SHOWN:,} more" if len(empty) > _MAX_SHOWN else ""
        warn(f"no text in {', '.join(empty[:_MAX_SHOWN])}{more}{advice}")


def parse_field_map(arguments: Sequence[str]) -> FieldMap:
    """Parse arguments such as "text=body" as {"text": ["body"]}. Raises UsageError for other arguments."""
    fields: dict[str, list[str]] = {}
    for argument in arguments:
        name, _, column = argument.partition("=")
        if name not in _FIELDS or not column:
            raise UsageError(f"`field` {argument}: expected _id=COLUMN, title=COLUMN or text=COLUMN")
        fields.setdefault(name, []).append(column)
    return fields


def list_files(sources: Sequence[str], exclude: Sequence[str], *, skip: str) -> list[File]:
    """Return the files to import, sorted by the path relative to their folder, or the name of a given file.

    The id is made from this path or name by `make_file_id`. With several folders, paths begin with the folder's name.
    exclude: patterns of .gitignore; skip: path of the output
    Logs ignored files, such as those that drtk wrote, and a pattern that excludes nothing.
    Raises DrtkError for a missing source, a folder that cannot be read, two files with the same id, no files at all, or an
    existing output that is in an imported folder and has no manifest.
    """
    patterns = [pattern for pattern in exclude if pattern.strip()]
    is_excluded = _build_filter(patterns, unused := set(patterns))
    names: list[tuple[str, Path]] = []
    has_several_folders = sum(map(os.path.isdir, sources)) > 1
    ignored: Counter[str] = Counter()
    for source in sources:
        folder = Path(source)
        if folder.is_dir():
            own_name = f"{folder.resolve().name}/" if has_several_folders else ""
            for name in _iter_names(folder, is_excluded, ignored):
                path = folder / name
                if _is_output(path, skip):
                    if path.name == Path(skip).name:
                        raise DrtkError(
                            f"{skip}: is in the folder {source} and has no manifest of drtk; give another output, or "
                            "`exclude` the file"
                        )
                    continue
                if not path.is_file():
                    ignored["broken links or special files"] += 1
                elif path.suffix.lower() in PARSERS:
                    names.append((own_name + name, path))
                else:
                    ignored[path.suffix.lower() or "no suffix"] += 1
        elif folder.is_file():
            names.append((folder.name, folder))
        else:
            raise DrtkError(f"{source}: {'not a regular file' if folder.exists() else 'no such file or folder'}")
    if ignored := +ignored:
        kinds = ", ".join(f"{suffix} ({count:,})" for suffix, count in ignored.most_common(_MAX_SHOWN))
        more = ", …" if len(ignored) > _MAX_SHOWN else ""
        log(f"ignored: {kinds}{more}")
    if unused:
        log(f"--exclude {min(unused)}: excludes nothing further; patterns are relative to each folder")
    if not names:
        raise DrtkError(f"{', '.join(sources)}: no files to import; known types: {' '.join(PARSERS)}")
    files: dict[str, File] = {}
    for name, path in sorted(names):
        id = make_file_id(name, path)
        if id in files:
            if path.samefile(files[id][0]):
                raise DrtkError(f"{path}: is given twice; give the file or its folder once")
            raise DrtkError(f"{path}: has the same id as {files[id][0]}; import a folder that contains both")
        status = path.stat()
        files[id] = (str(path), id, status.st_size, status.st_mtime_ns)
    return list(files.values())


def _iter_names(folder: Path, is_excluded: Callable[[str], bool], ignored: Counter[str]) -> Iterator[str]:
    """Yield the relative paths of the files in a folder that are neither hidden nor excluded nor written by drtk.

    ignored: gets the number of links to folders, and of files and folders that drtk wrote
    """
    for root, folders, members in os.walk(folder, onerror=_raise_folder_error):
        place = Path(root).relative_to(folder)
        folders[:] = [name for name in folders if name[0] != "." and not is_excluded(f"{(place / name).as_posix()}/")]
        ignored["links to folders"] += sum(os.path.islink(os.path.join(root, name)) for name in folders)
        if load_output_manifest(root):
            ignored["folders written by drtk"] += 1
            folders.clear()
            continue
        written = {
            name
            for name in members
            if f"{name}.meta.json" in members and load_output_manifest(os.path.join(root, name))
        }
        ignored["files written by drtk"] += len(written)
        for member in members:
            name = (place / member).as_posix()
            if member[0] != "." and member.removesuffix(".meta.json") not in written and not is_excluded(name):
                yield name


def make_file_id(name: str, path: Path) -> str:
    """Return a relative path as an id: % and white space are percent-encoded, because ids have no white space.

    path: path for the error
    Raises DrtkError if the name is not UTF-8.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise DrtkError(f"{shown}: the name is not UTF-8; rename the file") from None
    return "".join(quote(char) if char.isspace() or char == "%" else char for char in name)


def _raise_folder_error(error: OSError) -> None:
    raise DrtkError(f"{error.filename}: {error.strerror}; exclude the folder") from error


def _build_filter(patterns: Sequence[str], unused: set[str]) -> Callable[[str], bool]:
    """Return a function that tests whether a path is excluded. It removes the patterns that match from `unused`."""
    if not patterns:
        return lambda name: False
    with convert_import_error("pathspec", "`exclude`", *PACKAGES):
        from pathspec import GitIgnoreSpec
    spec = GitIgnoreSpec.from_lines(patterns)

    def is_excluded(name: str) -> bool:
        match = spec.check_file(name)
        if match.index is not None:
            unused.discard(patterns[match.index])
        return bool(match.include)

    return is_excluded


def _is_output(path: Path, output: str) -> bool:
    if not path.name.startswith(Path(output).name):
        return False
    names = {output + suffix for suffix in ("", ".meta.json", ".part", ".part.json")}
    return os.path.realpath(path) in map(os.path.realpath, names)


def create_import_task(fields: FieldMap) -> Callable[[File], ParsedFile]:
    """Return a function from a file to (JSON lines of its documents, number of documents without text, errors).

    fields: as in `iter_documents`
    """

    def parse(file: File) -> ParsedFile:
        path, id, *_ = file
        lines = bytearray()  # orjson's separate results would take up to 4 kB each
        errors: list[DrtkError] = []
        num_empty = 0
        try:
            for document in iter_documents(Path(path), id, fields):
                if isinstance(document, RecordError):
                    errors.append(document)
                elif document.text.strip():
                    lines += dump(document)
                else:
                    num_empty += 1
        except DrtkError as error:
            return b"", 0, [error]
        return bytes(lines), num_empty or int(not lines and not errors), errors

    return parse
