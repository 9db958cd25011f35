"""drtk validate: report all problems of a file, or of a folder that drtk made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson

from drtk.cli.decorators import plain_command
from drtk.cli.options import make_argument, with_settings
from drtk.data.config import ValidationSettings
from drtk.errors import DrtkError


@with_settings(ValidationSettings)
@plain_command
def validate(
    source: Annotated[str, make_argument("INPUT", "File of records, collection, or folder of drtk; - is stdin.")] = "-",
    *,
    settings: ValidationSettings,
) -> None:
    """Report all problems of a file of records, a collection, or a folder that drtk made.

    The files of a folder (index, embeddings, model) are compared with the digests in its meta.json. The exit status is 1 if
    there are errors.

    Examples:
    drtk validate squad
    drtk validate test.run --as run --qrels qrels.tsv --corpus corpus.jsonl
    """
    from drtk.data.collection import is_collection
    from drtk.data.findings import format_count
    from drtk.data.validation import validate_collection, validate_file, validate_folder
    from drtk.runtime.progress import escape_control_characters
    from drtk.runtime.streams import get_source_name

    errors = 0
    if is_collection(source):
        reports = validate_collection(source, settings)
    else:
        validate_source = validate_folder if Path(source).is_dir() else validate_file
        reports = iter([validate_source(source, settings)])
    for findings in reports:
        if settings.json:
            print(orjson.dumps(findings.to_row()).decode())
        else:
            print(escape_control_characters("\n".join(findings.format_lines())))
        errors += findings.num_errors
    if errors:
        raise DrtkError(f"{get_source_name(source)}: {format_count(errors, 'error')}")
