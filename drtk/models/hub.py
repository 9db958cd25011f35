"""Where a model lies: a folder, or a name of the model hub with an optional @revision."""

from __future__ import annotations

from pathlib import Path

from drtk.errors import DrtkError, MismatchError
from drtk.io.manifest import UNFINISHED_MANIFEST, check_folder, has_unfinished_part, read_manifest_if_any

_WANTED = ["*.json", "*.txt", "*.model", "*.safetensors", "*.bin"]
_UNWANTED = ["onnx/*", "openvino/*", "*.onnx", "training_args.bin", "optimizer.bin", "runs/*"]


def locate(model: str) -> Path:
    """The folder of a model; a hub name is fetched into the hub's own cache, or found there.

    Raises MismatchError for an unfinished or damaged folder, DrtkError if there is no such folder and the hub does not know
    the name or cannot be reached.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if (path / UNFINISHED_MANIFEST).exists():
            raise MismatchError(f"{model}: is unfinished; the command that makes it goes on with --resume")
        check_folder(path, read_manifest_if_any(path))
        return path
    if path.exists():
        raise DrtkError(f"{model}: is a file; expected a model folder")
    if has_unfinished_part(path):
        raise MismatchError(f"{model}: is unfinished; the command that makes it goes on with --resume")
    name, _, revision = model.partition("@")
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise DrtkError(f"{model}: no such folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(name, revision=revision or None, allow_patterns=_WANTED, ignore_patterns=_UNWANTED)
        )
    except LocalEntryNotFoundError as error:
        raise DrtkError(f"{model}: no such folder, not in the hub's cache, and the hub is out of reach") from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise DrtkError(f"{model}: no such folder, and not on the model hub: {str(error).splitlines()[0]}") from error


def tower(folder: Path, role: str) -> Path:
    """The folder of the encoder for `role`: itself, or one of the two of a model with untied encoders."""
    inner = folder / role  # a pair's own modules.json, if it has one, is for sentence-transformers
    is_pair = not (folder / "config.json").exists() and (inner / "config.json").exists()
    return inner if is_pair else folder
