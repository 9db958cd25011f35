"""Find model folders, and read and write their configuration files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from drtk.errors import DrtkError, MismatchError
from drtk.models.config import SPARSE_POOLING, Title
from drtk.runtime.atomic import write_json
from drtk.runtime.integrity import check_object, read_json, read_object
from drtk.runtime.manifest import (
    FOLDER_MANIFEST,
    UNFINISHED,
    UNFINISHED_MANIFEST,
    check_folder,
    has_unfinished_part,
    is_manifest,
    read_manifest_if_any,
)
from drtk.runtime.progress import warn
from drtk.runtime.remote_code import is_remote_code_trusted

_ALLOW_PATTERNS = ["*.json", "*.txt", "*.model", "*.safetensors", "*.bin"]
_IGNORE_PATTERNS = ["onnx/*", "openvino/*", "*.onnx", "training_args.bin", "optimizer.bin", "runs/*"]


def is_endpoint(model: str) -> bool:
    """Return whether a model is the URL of an endpoint instead of a folder or hub name."""
    return model.startswith(("http://", "https://"))


def resolve_model_folder(model: str, *, file: str | None = None) -> Path:
    """Return the local folder of a model; a model of the Hugging Face hub is downloaded unless it is in the cache.

    model: a folder, or a hub name such as intfloat/simlm-base-msmarco, optionally with @revision
    file: an exported model to download too, such as onnx/model.onnx
    Raises MismatchError for an unfinished or damaged folder, DrtkError if the model is not found or the hub is unreachable.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if (path / UNFINISHED_MANIFEST).exists():
            raise MismatchError(f"{model}: is {UNFINISHED}")
        check_folder(path, read_manifest_if_any(path))
        return path
    if path.exists():
        raise DrtkError(f"{model}: is a file; expected a model folder")
    if has_unfinished_part(path):
        raise MismatchError(f"{model}: is {UNFINISHED}")
    if is_endpoint(model):
        raise DrtkError(f"{model}: is an endpoint, which only encode, search and serve can use; give a model folder")
    name, _, revision = model.partition("@")
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise DrtkError(f"{model}: no such folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    allowed = [*_ALLOW_PATTERNS, "*.py"] if is_remote_code_trusted() else _ALLOW_PATTERNS
    try:
        if file is not None:
            snapshot_download(name, revision=revision or None, allow_patterns=f"{file.rpartition('.')[0]}.*")
        return Path(
            snapshot_download(name, revision=revision or None, allow_patterns=allowed, ignore_patterns=_IGNORE_PATTERNS)
        )
    except LocalEntryNotFoundError as error:
        reason = "HF_HUB_OFFLINE is set" if HF_HUB_OFFLINE else "the hub cannot be reached"
        raise DrtkError(f"{model}: no such folder, not in the hub's cache, and {reason}; check the name") from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).splitlines()[0]
        advice = "begin an endpoint with http://" if "#" in model else "check the name"
        raise DrtkError(f"{model}: no such folder, and not on the model hub ({reason}); {advice}") from error


def resolve_tower_folder(folder: Path, role: str) -> Path:
    """Return the folder of the encoder for a role ("query" or "passage"): FOLDER, or FOLDER/ROLE if encoders are untied."""
    inner = folder / role
    is_untied = not (folder / "config.json").exists() and (inner / "config.json").exists()
    return inner if is_untied else folder


def read_meta_entry(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the entry `name` that training wrote into meta.json of a model folder; None if there is none."""
    manifest = read_manifest_if_any(folder)
    entry = manifest.get(name) if is_manifest(manifest) else None
    return entry if isinstance(entry, dict) else None


Role = Literal["query", "passage"]


@dataclass(frozen=True)
class EncodingConfig:
    """Configuration of text encoding and similarity; stored in `meta.json` as "encoding".

    include_prompt: whether pooling includes the prompt tokens
    query_prompt, passage_prompt: text to put before each query or passage
    query_length, passage_length: maximum lengths in tokens
    title: "join" (title, space, text), "sep" (title, separator token, text), "segment" (a pair of title and text) or "none"
    similarity: "cosine" or "dot"; None: unknown
    truncate: number of dimensions to keep of each vector; None: all
    """

    pooling: tuple[str, ...] = ("cls",)
    normalize: bool = False
    similarity: str | None = None
    include_prompt: bool = True
    query_prompt: str = ""
    passage_prompt: str = ""
    query_length: int = 512
    passage_length: int = 512
    title: str = "join"
    lowercase: bool = False
    truncate: int | None = None

    def get_prompt(self, role: Role) -> str:
        return self.query_prompt if role == "query" else self.passage_prompt

    def get_max_length(self, role: Role) -> int:
        return self.query_length if role == "query" else self.passage_length

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> EncodingConfig:
        """Return the configuration for a dictionary of `meta.json`; unknown entries are ignored."""
        known = {name: value for name, value in content.items() if name in cls.__dataclass_fields__}
        return cls(**known | {"pooling": tuple(known.get("pooling", ("cls",)))})

    def override(self, overrides: Mapping[str, Any], *, strict: bool, folder: str) -> EncodingConfig:
        """Return a copy with the overrides, {field: value}, that are not None.

        overrides: `pooling` may be a string such as "cls+mean"
        strict: raise MismatchError if an override differs from a value of this configuration that is not None
        folder: name of the model for the error
        """
        overrides = {name: value for name, value in overrides.items() if value is not None}
        if isinstance(overrides.get("pooling"), str):
            overrides["pooling"] = tuple(overrides["pooling"].split("+"))

        def format_value(value: Any) -> str:
            return (
                "+".join(value) if isinstance(value, tuple) else repr(value) if isinstance(value, str) else str(value)
            )

        for name, value in overrides.items():
            trained = getattr(self, name)
            if strict and trained is not None and trained != value:
                raise MismatchError(
                    f"{folder}: was trained with {name.replace('_', ' ')} {format_value(trained)}, "
                    f"not {format_value(value)}; omit it"
                )
        return replace(self, **overrides)


OWN_MODULES = "sentence_transformers."  # types of modules that need no remote code
MODULES, SETTINGS, SHARED = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
_OLD_SETTINGS = [f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "albert", "xlnet")]
_OLD_SETTINGS.append("sentence_xlm-roberta_config.json")
_PASSAGE_PROMPTS = ("document", "passage", "corpus")
_OLD_POOLINGS = {  # in the order in which sentence-transformers concatenates the vectors
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class ModelLayout:
    """The folders and the encoding configuration of a text encoder.

    backbone: folder of the transformer
    encoding: encoding configuration; lengths are 0 if the folder does not set them
    dense: folders of the Dense modules between pooling and normalization
    strict: whether overrides must not differ from `encoding`, because drtk trained the model with it
    """

    backbone: Path
    encoding: EncodingConfig
    dense: tuple[Path, ...] = ()
    strict: bool = False


class UnsupportedModulesError(MismatchError):
    """Error for an encoder with modules that only sentence-transformers can run."""


def read_layout(folder: Path) -> ModelLayout:
    """Return the layout of a folder of drtk, sentence-transformers or transformers.

    A plain transformers encoder gets CLS pooling without normalization (`load_encoder` changes it for causal attention).
    Raises MismatchError for a folder without a model, or with a module that drtk does not support.
    """
    if (folder / MODULES).exists():
        layout = _read_sentence_transformers(folder)
    elif (folder / "config.json").exists():
        layout = ModelLayout(folder, EncodingConfig(query_length=0, passage_length=0))
    else:
        raise MismatchError(f"{folder}: not a model folder (neither {MODULES} nor config.json); check the path")
    encoding = _read_encoding(folder)
    return layout if encoding is None else replace(layout, encoding=encoding, strict=True)


def _read_encoding(folder: Path) -> EncodingConfig | None:
    """Return the encoding configuration in meta.json of the folder, or for untied encoders of its parent; else None."""
    for place in (folder, folder.parent) if folder.name in ("query", "passage") else (folder,):
        if (place / FOLDER_MANIFEST).exists():
            manifest = read_object(place / FOLDER_MANIFEST, towers=list | None)
            is_ours = place == folder or folder.name in (manifest.get("towers") or ())
            if is_ours and isinstance(manifest.get("encoding"), dict):
                return EncodingConfig.from_dict(manifest["encoding"])
    return None


def _read_sentence_transformers(folder: Path) -> ModelLayout:
    backbone, dense = folder, []
    encoding: dict[str, Any] = {}
    for module in read_modules(folder):
        kind, path = str(module["type"]).rpartition(".")[2], folder / module["path"]
        if not module["type"].startswith(OWN_MODULES):  # code of the model, whatever its name
            kind = ""
        if kind in ("Transformer", "MLMTransformer"):
            backbone = path
            settings = read_module_settings(path)
            max_length = settings.get("max_seq_length") or 0
            encoding |= {
                "lowercase": bool(settings.get("do_lower_case", False)),
                "query_length": settings.get("query_length") or max_length,
                "passage_length": settings.get("document_length") or max_length,
            }
        elif kind == "SpladePooling":
            content = read_object(path / "config.json", pooling_strategy=str | None, activation_function=str | None)
            for name, value in (("pooling_strategy", "max"), ("activation_function", "relu")):
                if content.get(name, value) != value:
                    raise MismatchError(f"{path}: {name} {content[name]} is not supported; use a model with {value}")
            encoding["pooling"] = SPARSE_POOLING
        elif kind == "Pooling":
            content = read_object(path / "config.json", include_prompt=bool | None)
            encoding |= {"pooling": _parse_poolings(content), "include_prompt": content.get("include_prompt", True)}
        elif kind == "Dense" and "normalize" not in encoding:
            dense.append(path)
        elif kind == "Normalize":
            encoding["normalize"] = True
        elif kind != "Dropout":  # which matters in training only
            raise UnsupportedModulesError(
                f"{folder / MODULES}: module {module['type']} is not supported; use another model"
            )
    if not encoding.get("pooling"):
        raise UnsupportedModulesError(f"{folder / MODULES}: not a text encoder (no Pooling module); use another model")
    shared = _read_shared_entries(folder)
    shared["similarity"] = shared["similarity"] or ("dot" if encoding["pooling"] == SPARSE_POOLING else "cosine")
    return ModelLayout(backbone, EncodingConfig(**encoding | shared), tuple(dense))


def read_modules(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of modules.json. Raises DrtkError for a malformed file."""
    content = read_json(folder / MODULES)
    place = str(folder / MODULES)
    if not isinstance(content, list) or not content:
        raise DrtkError(f"{place}: expected a list of modules; restore the file")
    return [check_object(module, place, type=str, path=str) for module in content]


def read_shared_config(folder: Path) -> dict[str, Any]:
    """Return the content of config_sentence_transformers.json; {} if the file does not exist."""
    if not (folder / SHARED).exists():
        return {}
    keys = {"prompts": dict | None, "similarity_fn_name": str | None, "truncate_dim": int | None}
    return read_object(folder / SHARED, **keys)


def choose_prompt(prompts: Mapping[str, str | None], role: Role) -> str:
    """Return the prompt for queries or passages among the prompts of a model, {name: text}; "" if there is none."""
    names = ("query",) if role == "query" else _PASSAGE_PROMPTS
    return next((text for name in names if (text := prompts.get(name))), "")


def warn_of_missing_prompt(model: str, folder: Path, prompt: str) -> None:
    """Warn if the prompt of queries is empty and the model has prompts for single tasks, such as sts_query of E5-Mistral."""
    prompts = read_shared_config(folder).get("prompts") or {}
    names = sorted(name for name, text in prompts.items() if text and name not in ("query", *_PASSAGE_PROMPTS))
    if names and not prompt:
        warn(f"{model}: queries get no prompt; to use {' or '.join(names)}, give its text as `prompt`")


def read_module_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a Transformer module of sentence-transformers; {} if there is no file. path: its folder"""
    for name in (SETTINGS, *_OLD_SETTINGS):
        if (path / name).exists():
            return read_object(path / name)
    return {}


def _parse_poolings(content: dict[str, Any]) -> tuple[str, ...]:
    if "pooling_mode" in content:
        mode = content["pooling_mode"]
        return (mode,) if isinstance(mode, str) else tuple(mode)
    return tuple(name for key, name in _OLD_POOLINGS.items() if content.get(key)) or ("mean",)


def _read_shared_entries(folder: Path) -> dict[str, Any]:
    """Return the EncodingConfig fields that config_sentence_transformers.json sets: prompts, similarity, truncate, title."""
    content = read_shared_config(folder)
    prompts = content.get("prompts") or {}
    entries: dict[str, Any] = {
        "query_prompt": choose_prompt(prompts, "query"),
        "passage_prompt": choose_prompt(prompts, "passage"),
        "similarity": content.get("similarity_fn_name"),
        "truncate": content.get("truncate_dim"),
    }
    if content.get("title") in get_args(Title):
        entries["title"] = content["title"]
    return entries


def write_layout(folder: Path, encoding: EncodingConfig, *, hidden: int, dense: int) -> None:
    """Write the configuration files with which SentenceTransformer computes the same vectors.

    hidden: dimension of the backbone's token vectors    dense: number of Dense modules; the caller writes the modules
    """
    kinds = ["Transformer", "Pooling", *["Dense"] * dense, *["Normalize"] * encoding.normalize]
    paths = _write_modules(folder, [f"sentence_transformers.models.{kind}" for kind in kinds])
    _write_settings(folder, encoding)
    modes: dict[str, Any] = {key: name in encoding.pooling for key, name in _OLD_POOLINGS.items()}
    if _parse_poolings(modes) != encoding.pooling:  # the flags have a fixed order; old versions cannot read the list
        modes = {"pooling_mode": [*encoding.pooling]}
    write_json(
        folder / paths[1] / "config.json",
        {"word_embedding_dimension": hidden, **modes, "include_prompt": encoding.include_prompt},
    )
    if encoding.normalize:
        write_json(folder / paths[-1] / "config.json", {})
    _write_shared(folder, encoding)


def write_sparse_layout(folder: Path, encoding: EncodingConfig, *, vocabulary: int) -> None:
    """Write the configuration files that SparseEncoder needs to compute the same term weights.

    vocabulary: number of word pieces
    """
    kinds = ["MLMTransformer", "SpladePooling"]
    paths = _write_modules(folder, [f"sentence_transformers.sparse_encoder.models.{kind}" for kind in kinds])
    _write_settings(folder, encoding)
    pooling = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": vocabulary}
    write_json(folder / paths[1] / "config.json", pooling)
    _write_shared(folder, encoding)


def _write_modules(folder: Path, types: Sequence[str]) -> list[str]:
    """Write modules.json and make the folders of all modules but the first; return the paths in `folder`."""
    paths = ["", *(f"{number}_{kind.rpartition('.')[2]}" for number, kind in enumerate(types[1:], start=1))]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(zip(paths, types, strict=True))
    ]
    write_json(folder / MODULES, modules)
    for path in paths[1:]:
        (folder / path).mkdir(exist_ok=True)
    return paths


def _write_settings(folder: Path, encoding: EncodingConfig) -> None:
    max_length = max(encoding.query_length, encoding.passage_length)
    write_json(folder / SETTINGS, {"max_seq_length": max_length, "do_lower_case": encoding.lowercase})


def write_untied_layout(folder: Path, encoding: EncodingConfig) -> None:
    """Write the configuration files of untied encoders: a Router module of sentence-transformers 5.

    The Router encodes queries with the model in the subfolder query/ and other texts with the model in passage/. Both
    subfolders must exist.
    """
    types: dict[str, str] = {}
    structure: dict[str, list[str]] = {}
    for role, task in (("query", "query"), ("passage", "document")):
        for module in read_modules(folder / role):
            name = f"{role}/{module['path']}" if module["path"] else role
            types[name] = module["type"]
            structure.setdefault(task, []).append(name)
    parameters = {"default_route": "document", "allow_empty_key": True}
    write_json(folder / "router_config.json", {"types": types, "structure": structure, "parameters": parameters})
    _write_modules(folder, ["sentence_transformers.models.Router"])
    _write_shared(folder, encoding)


def _write_shared(folder: Path, encoding: EncodingConfig) -> None:
    shared: dict[str, Any] = {
        "prompts": {"query": encoding.query_prompt, "document": encoding.passage_prompt},
        "default_prompt_name": None,
        "similarity_fn_name": encoding.similarity or "dot",
    }
    if encoding.pooling == SPARSE_POOLING:
        shared["model_type"] = "SparseEncoder"
    if encoding.truncate:
        shared["truncate_dim"] = encoding.truncate
    if encoding.title != EncodingConfig.title:  # an entry of drtk that sentence-transformers ignores
        shared["title"] = encoding.title
    write_json(folder / SHARED, shared)


LIST_RERANKER = "listreranker.json"


def is_list_reranker(folder: Path) -> bool:
    """Return whether a model folder contains a list reranker."""
    return (folder / LIST_RERANKER).exists()
