"""Names that other tools use for options, and advice for options that do not exist."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

# Name -> its names in other tools, separated by spaces.
SYNONYMS: dict[str, str] = {
    "batch_tokens": "batch batch_size bs",
    "batch_size": "batch bs n_batch train_batch_size per_device_train_batch_size per_device_batch_size",
    "micro_batch_size": "mini_batch_size per_device_train_batch_size gradient_accumulation_steps",
    "grad_cache": "mini_batch_size gc_chunk_size gc_q_chunk_size gc_p_chunk_size",
    "learning_rate": "lr learning rate max_lr peak_lr",
    "max_lr": "lr learning_rate",
    "epochs": "n_epochs num_epochs num_train_epochs epoch max_epochs",
    "max_steps": "steps n_steps num_steps train_steps num_train_steps total_steps",
    "warmup": "warmup_steps warmup_ratio num_warmup_steps warmup_proportion",
    "weight_decay": "wd decay",
    "max_length": "max_seq_length max_seq_len max_len maxlen seq_length truncate truncation",
    "query_length": "max_seq_length max_seq_len max_len max_length q_max_len query_max_len max_query_length",
    "passage_length": "max_seq_length max_seq_len max_len max_length p_max_len passage_max_len max_passage_length doc_length",
    "target_length": "max_target_length",
    "max_new_tokens": "max_tokens gen_length max_gen_length",
    "max_tokens": "max_length max_seq_length max_len chunk_size",
    "max_words": "chunk_size segment_length",
    "overlap": "stride",
    "eval_steps": "evaluation_steps eval_interval",
    "save_steps": "checkpoint_every checkpoint_steps save_interval",
    "log_steps": "logging_steps log_interval",
    "precision": "dtype torch_dtype fp16 bf16 half amp mixed_precision",
    "num_workers": "workers jobs n_jobs num_proc processes threads",
    "threads": "workers num_workers jobs n_jobs num_threads",
    "device": "gpu cuda devices",
    "depth": "k topk top_k hits num_hits n_results num_results max_hits limit",
    "top_k": "k topk",
    "n": "num_return_sequences num_samples num_queries n_queries",
    "beams": "num_beams beam_size",
    "negatives": "num_negatives n_negatives n_negs num_negs train_n_passages train_group_size",
    "temperature": "temp tau",
    "loss": "loss_function loss_type objective",
    "similarity": "metric distance score_function",
    "vector_dtype": "dtype store",
    "pooling": "pool pooling_method pooling_mode",
    "patience": "early_stopping early_stopping_patience",
    "lora": "lora_r lora_rank peft",
    "gradient_checkpointing": "grad_checkpointing activation_checkpointing",
    "trainer": "training_args hf_args",
    "schedule": "lr_scheduler lr_scheduler_type scheduler",
    "dev": "eval_data dev_data validation eval_dataset",
    "examples": "train_data train_file data",
    "model": "model_name model_name_or_path encoder checkpoint base_model",
    "output": "out output_dir output_file output_folder save save_dir run_file",
    "corpus": "passages docs documents collection passage_file",
    "queries": "topics query query_file questions",
    "qrels": "judgments judgements relevance gold ground_truth",
    "measures": "measure metric metrics",
    "measure": "metric metrics measures",
    "type": "kind index_type factory",
    "method": "fusion algorithm",
    "norm": "normalization",
    "query_vectors": "query_embeddings",
    "rrf_k": "k",
    "policy": "strategy method",
    "seed": "random_seed random_state",
    "force": "overwrite overwrite_output overwrite_output_dir",
    "resume": "resume_from_checkpoint continue",
    "skip_bad": "ignore_errors skip_errors",
    "shard": "part shards num_shards shard_index",
    "runner": "backend executor gpus num_gpus devices multi_process",
    "preset": "config recipe",
    "set": "override",
    "quiet": "silent",
}

# Command -> name of an option that it does not need -> what to do instead.
ADVICE: dict[str, dict[str, str]] = {
    "doc2query": dict.fromkeys(
        ("scorer", "keep", "min_score", "scores"), "filter the queries with drtk keep-queries afterwards"
    ),
    "encode": {
        "sparse": "sparse encoders are recognized by their model folder; for a plain masked language model, give --pooling splade"
    },
    "report": {"examples": "did you mean --moved?"},
    "train-retriever": {"sparse": "did you mean --head sparse?"},
}


def explain_unknown_name(shown: str, name: str, known: Mapping[str, str], command: str) -> str:
    """Return the error message for an unknown option, with similar options; "" if there are none.

    shown: the option as the user wrote it; name: the same option, spelled like a setting, such as max_steps
    known: name of each setting of the command -> how to write it, for example "--max-steps"
    """
    if advice := ADVICE.get(command, {}).get(name):
        return f"no such option {shown}; {advice}"
    same = [item for item in known if name == item or name in SYNONYMS.get(item, "").split()]
    similar = same or get_close_matches(name, known, n=2, cutoff=0.75)
    names = " or ".join(dict.fromkeys(known[item] for item in similar))
    return f"no such option {shown}; did you mean {names}?" if names else ""
