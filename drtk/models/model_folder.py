"""Read and write the files around a model's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.models.config import Title
from drtk.runtime.atomic import write_json
from drtk.runtime.integrity import check_object, read_json, read_object
from drtk.runtime.manifest import (
    FOLDER_MANIFEST,
    UNFINISHED,
    UNFINISHED_MANIFEST,
    check_folder,
    has_unfinished_part,
    read_manifest_if_any,
)

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
            raise MismatchError(f"{model}: is {UNFINISHED}")
        check_folder(path, read_manifest_if_any(path))
        return path
    if path.exists():
        raise DrtkError(f"{model}: is a file; expected a model folder")
    if has_unfinished_part(path):
        raise MismatchError(f"{model}: is {UNFINISHED}")
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


def tower_folder(folder: Path, role: str) -> Path:
    """The folder of the encoder for `role`: itself, or one of the two of a model with untied encoders."""
    inner = folder / role  # a pair's own modules.json, if it has one, is for sentence-transformers
    is_pair = not (folder / "config.json").exists() and (inner / "config.json").exists()
    return inner if is_pair else folder


Role = Literal["query", "passage"]


@dataclass(frozen=True)
class Recipe:
    """How a model wants its texts, and how its vectors are compared; `meta.json` keeps it under "encoding".

    title: "join" (title, space, text), "sep" (title, separator token, text, as one text), "segment" (a pair of title and
           text) or "none"
    similarity: "cosine" or "dot"; None where the folder does not say
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

    def prompt(self, role: Role) -> str:
        return self.query_prompt if role == "query" else self.passage_prompt

    def length(self, role: Role) -> int:
        return self.query_length if role == "query" else self.passage_length

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `meta.json` stores them."""
        return asdict(self) | {"pooling": list(self.pooling)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Recipe:
        """The recipe stored in a `meta.json`; entries of later versions are passed over."""
        known = {name: value for name, value in content.items() if name in cls.__dataclass_fields__}
        return cls(**known | {"pooling": tuple(known.get("pooling", ("cls",)))})

    def override(self, overrides: Mapping[str, Any], *, strict: bool, folder: str) -> Recipe:
        """The recipe with what is not None in `overrides`.

        Raises MismatchError where the recipe is `strict` (a model of drtk's own) and a wish differs from it.
        """
        overrides = {name: value for name, value in overrides.items() if value is not None}
        if isinstance(overrides.get("pooling"), str):
            overrides["pooling"] = tuple(overrides["pooling"].split("+"))
        for name, value in overrides.items():
            mine = getattr(self, name)
            if strict and mine is not None and mine != value:
                raise MismatchError(
                    f"{folder}: was made for {name.replace('_', ' ')} {_shown(mine)}; {_shown(value)} contradicts it"
                )
        return replace(self, **overrides)

    def checked(self, poolings: tuple[str, ...]) -> Recipe:
        """Itself, if its pooling is known. Raises UsageError otherwise."""
        for mode in self.pooling:
            if mode not in poolings:
                raise UsageError(f"unknown pooling '{mode}'; choose from {', '.join(poolings)} (several: cls+mean)")
        return self


def _shown(value: Any) -> str:
    return "+".join(value) if isinstance(value, tuple) else repr(value) if isinstance(value, str) else str(value)


MODULES, SETTINGS, SHARED = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
ROUTER = "router_config.json"
_OLD_SETTINGS = [f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "albert", "xlnet")]
_OLD_SETTINGS.append("sentence_xlm-roberta_config.json")
_OLD_POOLINGS = {  # in the order in which sentence-transformers puts the vectors side by side
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Layout:
    """Where the backbone lies, the recipe, and the folders of Dense modules between pooling and normalisation.

    recipe: a length of 0 in it stands for "not stated": the tokenizer knows
    strict: the recipe is that of a model drtk wrote, so what contradicts it is a mistake
    """

    backbone: Path
    recipe: Recipe
    dense: tuple[Path, ...] = ()
    strict: bool = False


def read_layout(folder: Path) -> Layout:
    """The layout of a model folder; a plain Hugging Face encoder has CLS pooling and no normalisation.

    Raises MismatchError for a folder that is no encoder, or holds a module drtk cannot run.
    """
    if (folder / MODULES).exists():
        layout = _sentence_transformers(folder)
    elif (folder / "config.json").exists():
        layout = Layout(folder, Recipe(query_length=0, passage_length=0))
    else:
        raise MismatchError(f"{folder}: is no model folder: it has neither {MODULES} nor config.json")
    stated = _stated_recipe(folder)
    return layout if stated is None else replace(layout, recipe=stated, strict=True)


def _stated_recipe(folder: Path) -> Recipe | None:
    """The recipe in the meta.json of a model drtk wrote; that of a pair of towers lies one folder up."""
    for place in (folder, folder.parent) if folder.name in ("query", "passage") else (folder,):
        if (place / FOLDER_MANIFEST).exists():
            manifest = read_object(place / FOLDER_MANIFEST, towers=list | None)
            mine = place == folder or folder.name in (manifest.get("towers") or ())
            if mine and isinstance(manifest.get("encoding"), dict):
                return Recipe.from_dict(manifest["encoding"])
    return None


def _sentence_transformers(folder: Path) -> Layout:
    backbone, recipe, dense = folder, Recipe(pooling=()), []
    for module in read_modules(folder):
        kind, path = str(module["type"]).rpartition(".")[2], folder / module["path"]
        if kind == "Transformer":
            backbone = path
            settings = module_settings(path)
            recipe = replace(recipe, lowercase=bool(settings.get("do_lower_case", False)))
            recipe = replace(recipe, **_lengths(settings))
        elif kind == "Pooling":
            content = read_object(path / "config.json", include_prompt=bool | None)
            recipe = replace(recipe, pooling=_poolings(content), include_prompt=content.get("include_prompt", True))
        elif kind == "Dense" and not recipe.normalize:
            dense.append(path)
        elif kind == "Normalize":
            recipe = replace(recipe, normalize=True)
        elif kind != "Dropout":  # which does nothing outside training
            raise MismatchError(f"{folder / MODULES}: holds a module drtk cannot run there: {module['type']}")
    if not recipe.pooling:
        raise MismatchError(f"{folder / MODULES}: holds no Pooling module, so it gives no vector a text")
    return Layout(backbone, replace(recipe, **_shared(folder)), tuple(dense))


def read_modules(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of modules.json. Raises DrtkError if one is not an object with a type and a path."""
    content = read_json(folder / MODULES)
    place = str(folder / MODULES)
    if not isinstance(content, list) or not content:
        raise DrtkError(f"{place}: expected a list of modules; the file is damaged: restore a copy")
    return [check_object(module, place, type=str, path=str) for module in content]


def read_shared(folder: Path) -> dict[str, Any]:
    """Return the content of config_sentence_transformers.json; {} if there is no such file."""
    if not (folder / SHARED).exists():
        return {}
    keys = {"prompts": dict | None, "similarity_fn_name": str | None, "truncate_dim": int | None}
    return read_object(folder / SHARED, **keys)


def module_settings(path: Path) -> dict[str, Any]:
    """What sentence-transformers noted of a Transformer module beside its weights; nothing where there is no such file."""
    for name in (SETTINGS, *_OLD_SETTINGS):
        if (path / name).exists():
            return read_object(path / name)
    return {}


def _lengths(settings: dict[str, Any]) -> dict[str, Any]:
    longest = settings.get("max_seq_length") or 0
    return {
        "query_length": settings.get("query_length") or longest,
        "passage_length": settings.get("document_length") or longest,
    }


def _poolings(content: dict[str, Any]) -> tuple[str, ...]:
    if "pooling_mode" in content:
        mode = content["pooling_mode"]
        return (mode,) if isinstance(mode, str) else tuple(mode)
    return tuple(name for key, name in _OLD_POOLINGS.items() if content.get(key)) or ("mean",)


def _shared(folder: Path) -> dict[str, Any]:
    """Prompts, similarity and truncation; an empty "document" prompt, which recent versions write unasked, is none."""
    content = read_shared(folder)
    prompts = {name: text for name, text in (content.get("prompts") or {}).items() if text}
    passage = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), "")
    return {
        "query_prompt": prompts.get("query", ""),
        "passage_prompt": passage,
        "similarity": content.get("similarity_fn_name") or "cosine",  # what sentence-transformers takes for unsaid
        "truncate": content.get("truncate_dim"),
    } | ({"title": title} if (title := content.get("title")) in get_args(Title) else {})


def write_layout(folder: Path, recipe: Recipe, *, hidden: int, dense: int) -> None:
    """Write the files that let SentenceTransformer(folder) give the vectors drtk gives.

    hidden: width of the backbone's token vectors; dense: number of Dense modules, whose folders others write
    """
    kinds = ["Transformer", "Pooling", *["Dense"] * dense, *["Normalize"] * recipe.normalize]
    paths = ["" if kind == "Transformer" else f"{number}_{kind}" for number, kind in enumerate(kinds)]
    rows = enumerate(zip(kinds, paths, strict=True))
    write_json(
        folder / MODULES,
        [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (kind, path) in rows
        ],
    )
    longest = max(recipe.query_length, recipe.passage_length)
    write_json(folder / SETTINGS, {"max_seq_length": longest, "do_lower_case": recipe.lowercase})
    for path in paths[1:]:
        (folder / path).mkdir(exist_ok=True)
    chosen = {key: name in recipe.pooling for key, name in _OLD_POOLINGS.items()}
    write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": hidden, **chosen, "include_prompt": recipe.include_prompt},
    )
    if recipe.normalize:
        write_json(folder / paths[-1] / "config.json", {})
    _write_shared(folder, recipe)


def write_pair_layout(folder: Path, recipe: Recipe) -> None:
    """Write what lets SentenceTransformer(folder) encode queries with `query` and all else with `passage`, two model folders
    that are there already: one module, a Router (sentence-transformers 5), over the modules of both.
    """
    types: dict[str, str] = {}
    structure: dict[str, list[str]] = {}
    for role, task in (("query", "query"), ("passage", "document")):
        for module in read_modules(folder / role):
            name = f"{role}/{module['path']}" if module["path"] else role
            types[name] = module["type"]
            structure.setdefault(task, []).append(name)
    how = {"default_route": "document", "allow_empty_key": True}
    write_json(folder / ROUTER, {"types": types, "structure": structure, "parameters": how})
    write_json(folder / MODULES, [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}])
    _write_shared(folder, recipe)


def _write_shared(folder: Path, recipe: Recipe) -> None:
    shared: dict[str, Any] = {
        "prompts": {"query": recipe.query_prompt, "document": recipe.passage_prompt},
        "default_prompt_name": None,
        "similarity_fn_name": recipe.similarity or "dot",
    }
    if recipe.truncate:
        shared["truncate_dim"] = recipe.truncate
    if recipe.title != Recipe.title:  # an entry of drtk's own, which sentence-transformers ignores
        shared["title"] = recipe.title
    write_json(folder / SHARED, shared)


CONFIG, WEIGHTS = "listreranker.json", "model.safetensors"


def is_list_reranker(folder: Path) -> bool:
    """Whether a model folder holds a list re-ranker, and not a cross-encoder."""
    return (folder / CONFIG).exists()
