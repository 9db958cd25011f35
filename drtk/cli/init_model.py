"""drtk init-model: initialize an untrained model and its tokenizer."""

from __future__ import annotations

from typing import Annotated

from drtk.cli.decorators import folder_command
from drtk.cli.options import Folder, Seed, make_argument, with_settings
from drtk.config import to_dict
from drtk.models.config import InitModelSettings
from drtk.runtime.folder_job import FolderJob


@with_settings(InitModelSettings)
@folder_command("model", passages=True)
def init_model(
    output: Folder,
    source: Annotated[str, make_argument("INPUT", "Texts to train the vocabulary on; - is stdin.")] = "-",
    seed: Seed = 42,
    *,
    settings: InitModelSettings,
    job: FolderJob,
) -> None:
    """Initialize an untrained model with a tokenizer learned from a corpus.

    Use it for other languages, for tests, and on machines without a model hub.

    Examples:
    drtk init-model corpus.jsonl -o encoder
    drtk init-model corpus.jsonl --arch t5 --layers 4 --hidden 256 --heads 4 -o t5
    """
    from drtk.data.readers import read_passages
    from drtk.models.checkpoint import save_encoder, save_pretrained_model
    from drtk.models.init_model import init_encoder, init_generator, train_tokenizer
    from drtk.runtime.progress import track
    from drtk.runtime.streams import count_lines

    passages = track(
        read_passages(source, tracker=job.tracker, side_files=job.side_files),
        "init-model",
        total=count_lines(source),
        get_share=lambda: job.tracker.get_share_read(source),
        unit="passages",
    )
    tokenizer = train_tokenizer((f"{passage.title} {passage.text}" for passage in passages), settings)
    job.counts["word pieces"] = len(tokenizer)
    if settings.arch != "bert":
        writer = init_generator(tokenizer, settings, seed=seed)
        save_pretrained_model(writer, tokenizer, job.begin())
        job.counts["parameters"] = sum(weights.numel() for weights in writer.parameters())
        job.finish(architecture=settings.arch)
        return
    model = init_encoder(tokenizer, settings, seed=seed)
    save_encoder(model, job.begin())
    job.counts["parameters"] = sum(weights.numel() for weights in model.encoder.parameters())
    job.finish(encoding=to_dict(model.encoding))
