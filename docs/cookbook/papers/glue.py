"""Fine-tune an encoder on a GLUE task and print the task's measure on the validation set, as {"system": NAME, "values": {TASK: VALUE}}.

python docs/cookbook/papers/glue.py NAME MODEL TASK [--data DIR] [--seed N] [--epochs N] [--learning-rate X] [--batch-size N]

TASK: cola (Matthews correlation), mrpc, qqp (F1) or stsb (Spearman correlation), from the hub (nyu-mll/glue); with --data from DIR/train.tsv and
DIR/dev.tsv (sentence1, sentence2, score).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile

import numpy as np
from datasets import load_dataset
from scipy.stats import spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("model")
    parser.add_argument("task", choices=["cola", "mrpc", "qqp", "stsb"])
    parser.add_argument("--data")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    if options.data:
        files = {"train": f"{options.data}/train.tsv", "validation": f"{options.data}/dev.tsv"}
        data = load_dataset("csv", data_files=files, delimiter="\t", quoting=3).rename_column("score", "label")
    else:
        data = load_dataset("nyu-mll/glue", options.task)
    columns = {"cola": ["sentence"], "qqp": ["question1", "question2"]}.get(options.task, ["sentence1", "sentence2"])
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    data = data.map(
        lambda rows: tokenizer(*(rows[column] for column in columns), truncation=True, max_length=128), batched=True
    )
    labels = 1 if options.task == "stsb" else 2  # 1: regression
    set_seed(options.seed)  # before the classifier gets its random weights
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=labels)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):  # progress is not output
        arguments = TrainingArguments(
            folder, num_train_epochs=options.epochs, learning_rate=options.learning_rate, seed=options.seed, save_strategy="no",
            per_device_train_batch_size=options.batch_size, per_device_eval_batch_size=128, warmup_steps=0.1, report_to=[],
        )  # fmt: skip
        trainer = Trainer(model, arguments, DataCollatorWithPadding(tokenizer), data["train"])
        trainer.train()
        output = trainer.predict(data["validation"])
    gold, predicted = output.label_ids, output.predictions
    if options.task == "stsb":
        value = spearmanr(predicted[:, 0], gold).statistic
    else:
        measure = matthews_corrcoef if options.task == "cola" else f1_score
        value = measure(gold, np.argmax(predicted, axis=1))
    print(json.dumps({"system": options.name, "values": {options.task: float(value)}}))


if __name__ == "__main__":
    main()
