"""Records as a Parquet file or as a data set that Hugging Face's library loads, through the `data` extra."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from drtk.errors import DrtkError, UsageError
from drtk.io.atomic import commit, manifest_beside, sync, sync_tree, write_json
from drtk.io.filtering import FilterJob
from drtk.io.intake import Intake
from drtk.io.manifest import FOLDER_MANIFEST, Clock, Manifest, completed, new_manifest
from drtk.io.progress import log
from drtk.io.rows import Row, example_row, passage_row, query_row
from drtk.io.streams import STANDARD
from drtk.io.tables import arrow, require_datasets

Read = Callable[[Intake], Iterator[Any]]
GROUP = 10_000  # rows in memory at once, and in a row group
_ROW_OF: dict[str, Callable[[Any], Row]] = {
    "passages": passage_row,
    "queries": query_row,
    "examples": lambda found: example_row(found.example),
}


def write_parquet(read: Read, kind: str, job: FilterJob) -> None:
    """One Parquet file of the records `read` gives; they are read twice, first for the types of the columns.

    Raises UsageError without a named output, DrtkError where a field changes its type from record to record.
    """
    _refuse(job)
    clock, part = Clock(), Path(job.output + ".part")
    try:
        count = _write(read(job.intake), kind, _schema(read, kind, job.intake), part)
        sync(part)
        commit(part, Path(job.output), _manifest(job, count, clock))
    except OSError as error:
        raise DrtkError(f"{job.output}: {error.strerror or error}") from error
    finally:
        manifest_beside(part).unlink(missing_ok=True)
        part.unlink(missing_ok=True)
    _log(job, kind, count, clock)


def write_data_set(read: Read, kind: str, job: FilterJob) -> None:
    """A folder that `datasets.load_from_disk` opens. Raises as `write_parquet` does, and where the folder is there."""
    _refuse(job)
    datasets = require_datasets("writing a data set")
    datasets.disable_progress_bars()  # drtk has its own way of telling
    clock, part = Clock(), Path(job.output + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        schema = _schema(read, kind, job.intake)
        rows = part / "rows.parquet"
        part.mkdir(parents=True)
        count = _write(read(job.intake), kind, schema, rows)
        features = datasets.Features.from_arrow_schema(schema)
        found = datasets.Dataset.from_parquet(str(rows), features=features, cache_dir=str(part / "cache"))
        found.save_to_disk(str(part / "data"), max_shard_size="1GB")
        del found
        write_json(part / "data" / FOLDER_MANIFEST, _manifest(job, count, clock))
        sync_tree(part / "data")
        os.replace(part / "data", job.output)
        sync(Path(job.output).parent)
    except OSError as error:
        raise DrtkError(f"{job.output}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    _log(job, kind, count, clock)


def _refuse(job: FilterJob) -> None:
    if job.output == STANDARD:
        raise UsageError("a table needs a named output: -o NAME")
    if job.resume:
        raise UsageError("a table is written in one go: --resume does not apply")


def _rows(records: Iterable[Any], kind: str) -> Iterator[list[Row]]:
    make = _ROW_OF[kind]
    stream = iter(records)
    while window := [make(record) for record in islice(stream, GROUP)]:
        yield [{name: value for name, value in row.items() if value != {}} for row in window]  # Parquet has no {}


def _schema(read: Read, kind: str, intake: Intake) -> Any:
    """The columns of all records: numbers widened, objects joined, where records differ."""
    pa = arrow("writing Parquet")
    schema, count = pa.schema([]), 0
    for rows in _rows(read(Intake(intake.skip_bad, stand_ins=intake.stand_ins)), kind):
        try:
            schema = pa.unify_schemas(
                [schema, pa.Table.from_pylist(_with_all_fields(rows)).schema], promote_options="permissive"
            )
        except (TypeError, ValueError) as error:
            raise DrtkError(
                f"a column of a table has one type, but records {count + 1:,} to {count + len(rows):,} differ: {error}"
            ) from error
        count += len(rows)
    # A column that is empty throughout has no type of its own.
    return pa.schema([field.with_type(_typed(pa, field.type)) for field in schema])


def _with_all_fields(rows: list[Row]) -> list[Row]:
    """The rows, the first with every field of any: from_pylist takes the columns from the first."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: rows[0].get(name) for name in names}, *rows[1:]] if rows else rows


def _typed(pa: Any, kind: Any) -> Any:
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_typed(pa, kind.value_type))
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([field.with_type(_typed(pa, field.type)) for field in fields])
    return kind


def _write(records: Iterable[Any], kind: str, schema: Any, path: Path) -> int:
    pa = arrow("writing Parquet")
    count = 0
    with pa.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in _rows(records, kind):
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            count += len(rows)
    return count


def _manifest(job: FilterJob, count: int, clock: Clock) -> Manifest:
    counts = {"in": count, "out": count} | ({"skipped": job.intake.bad} if job.intake.bad else {})
    manifest = new_manifest(job.kind, job.settings, program=job.command)
    return completed(manifest, inputs=job.intake.inputs, counts=counts, seconds=clock.seconds)


def _log(job: FilterJob, kind: str, count: int, clock: Clock) -> None:
    log(f"{job.command}: {count:,} {kind}, {clock.seconds:,.1f} s -> {job.output}")
