"""drtk plot: hand-computed values of each plot, output files, and rejected input."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from drtk.errors import DrtkError, RecordError, UsageError
from drtk.evaluation.plots import PLOTS
from drtk.evaluation.plots.runs import draw_curve
from drtk.evaluation.plots.training import smooth
from tests.expansion_collection import write_rows
from tests.run_commands import Capture, get_messages, run_command, write_text
from tests.tiny_models import make_passages, save_tiny_encoder

RUN_A = "q1 Q0 x 1 3 t\nq1 Q0 r 2 2 t\nq2 Q0 r 1 5 t\nq2 Q0 y 2 1 t\n"
RUN_B = "q1 Q0 r 1 3 t\nq1 Q0 x 2 2 t\nq2 Q0 y 1 5 t\nq2 Q0 z 2 1 t\n"
JUDGED = ["--qrels", "qrels"]
LOG = [{"step": 10, "loss": 2.0}, {"step": 20, "loss": 1.0, "nDCG@10": 0.3}, {"step": 30, "loss": 0.5}]
RATED = [("u", 4.5, 0.9), ("v", 4.0, 0.8), ("w", 0.5, 0.1), ("x", 5.0, 0.7)]
PRETRAINED = [
    {"step": 0, "held_out_mlm": 9.0, "held_out_decoder": 8.0, "gain_decoder": 0.0, "uniformity": -0.5},
    {"step": 1, "loss": 16.0, "mlm": 9.0, "decoder": 7.0, "passage_stop_words": 0.4, "learning_rate": 0.1},
    {"step": 2, "loss": 12.0, "mlm": 7.0, "decoder": 5.0, "passage_stop_words": 0.5, "learning_rate": 0.2},
    {"step": 2, "held_out_mlm": 8.0, "held_out_decoder": 6.0, "gain_decoder": 0.3, "uniformity": -0.7},
]
WARM = [{"step": 1, "loss": 9.5, "mlm": 9.5}, {"step": 2, "loss": 8.5, "mlm": 8.5}, {"step": 2, "probe": 0.2}]


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_text(folder / "a.run", RUN_A)
    write_text(folder / "b.run", RUN_B)
    write_text(folder / "qrels", "q1 0 r 1\nq2 0 r 1\nq2 0 s 1\n")
    write_rows(folder / "log.jsonl", LOG)
    write_rows(folder / "simlm.jsonl", PRETRAINED)
    write_rows(folder / "warm.jsonl", WARM)
    pairs = [{"system": "s", "sentence1": "m", "sentence2": b, "score": s, "cosine": c} for b, s, c in RATED]
    write_rows(folder / "pairs.jsonl", pairs)


def plot_numbers(capfd: Capture, *arguments: str | Path) -> Any:
    return json.loads(run_command(capfd, "plot", "-q", *arguments, "--format", "json"))


def test_recall_by_depth(capfd: Capture) -> None:
    # a: q1 has r at rank 2 of 1 relevant, q2 r at 1 of 2: R@1 (0 + .5)/2, R@2 on (1 + .5)/2; hit rate .5, then 1
    result = plot_numbers(capfd, "recall", "a.run", "b.run", *JUDGED)
    assert result["k"][:3] == [1, 2, 3]
    assert result["curves"]["a"][:3] == [0.25, 0.75, 0.75]
    assert result["curves"]["b"][:3] == [0.5, 0.5, 0.5]
    assert result["deepest"] == {"a": 2, "b": 2}
    hits = plot_numbers(capfd, "recall", "a.run", *JUDGED, "--hit-rate")
    assert (hits["measure"], hits["curves"]["a"][:2]) == ("Success", [0.5, 1.0])
    assert plot_numbers(capfd, "recall", "a.run", *JUDGED, "--depth", "1")["k"] == [1]


def test_recall_beyond_the_depth_of_a_run_is_dotted() -> None:
    axis = pytest.importorskip("matplotlib.figure").Figure().subplots()
    draw_curve(axis, (1, 2, 5, 10), (0.1, 0.2, 0.3, 0.3), 7, marker="o")
    draw_curve(axis, (1, 2, 5, 10), (0.1, 0.2, 0.3, 0.3), 10, marker="o")
    lines = [(line.get_linestyle(), list(line.get_xdata())) for line in axis.lines]
    assert lines == [("-", [1, 2, 5]), (":", [5, 10]), ("-", [1, 2, 5, 10])]


def test_training_plots_one_field_of_a_log(folder: Path, capfd: Capture) -> None:
    result = plot_numbers(capfd, "training", "one=log.jsonl")
    assert result == {"field": "loss", "curves": {"one": {"steps": [10, 20, 30], "values": [2.0, 1.0, 0.5]}}}
    result = plot_numbers(capfd, "training", "one=log.jsonl", "--field", "nDCG@10")
    assert result["curves"]["one"] == {"steps": [20], "values": [0.3]}
    write_rows(folder / "warm.jsonl", WARM[:2])  # one loss term, no measurement
    result = plot_numbers(capfd, "training", "warm.jsonl")
    assert result == {"field": "loss", "curves": {"warm": {"steps": [1, 2], "values": [9.5, 8.5]}}}


def test_pretraining_logs_have_a_panel_per_term(folder: Path, capfd: Capture) -> None:
    logs = ["simlm.jsonl", "warm.jsonl"]
    result = {panel["field"]: panel for panel in plot_numbers(capfd, "training", *logs)["panels"]}
    assert [*result] == ["loss", "mlm", "decoder", "gain_decoder", "uniformity", "probe"]
    assert result["mlm"] == {
        "field": "mlm",
        "curves": {"simlm": {"steps": [1, 2], "values": [9.0, 7.0]}, "warm": {"steps": [1, 2], "values": [9.5, 8.5]}},
        "held_out": {"simlm": {"steps": [0, 2], "values": [9.0, 8.0]}},
    }
    assert result["gain_decoder"]["curves"] == {"simlm": {"steps": [0, 2], "values": [0.0, 0.3]}}
    assert result["probe"]["curves"] == {"warm": {"steps": [2], "values": [0.2]}}
    write_text(folder / "loss.jsonl", '{"step": 1, "loss": 4.0}\n')  # beside it, the loss gets a panel
    for arguments, expected in (
        ([*logs, "--field", "probe", "--field", "passage_stop_words"],
         {"probe": ["warm"], "passage_stop_words": ["simlm"]}),
        (["warm.jsonl", "loss.jsonl"], {"loss": ["warm", "loss"], "mlm": ["warm"], "probe": ["warm"]}),
    ):  # fmt: skip
        panels = plot_numbers(capfd, "training", *arguments)["panels"]
        assert {panel["field"]: [*panel["curves"]] for panel in panels} == expected


def test_smooth_averages_neighbors() -> None:
    averages, deviations = smooth([0.0, 3.0, 0.0, 3.0, 0.0, 3.0, 0.0, 3.0])  # 8 values: one neighbor on either side
    assert averages.tolist() == [1.5, 1, 2, 1, 2, 1, 2, 1.5]
    assert deviations.tolist() == pytest.approx([1.5, *[2**0.5] * 6, 1.5])
    assert [part.tolist() for part in smooth([2.0, 1.0])] == [[2, 1], [0, 0]]


def test_differences_query_by_query(capfd: Capture) -> None:
    # RR: a .5 and 1, b 1 and 0: differences -.5 (q1) and 1 (q2), mean .25
    result = plot_numbers(capfd, "differences", "a.run", "b.run", *JUDGED, "--measure", "RR")
    assert result == {
        "measure": "RR", "runs": ["a", "b"], "mean": 0.25, "better": 1, "equal": 0, "worse": 1,
        "queries": ["q2", "q1"], "differences": [1.0, -0.5],
    }  # fmt: skip


def test_scores_compute_auc_and_means(folder: Path, capfd: Capture) -> None:
    # a: relevant 2 and 5, other 3 and 1: of the four pairs 2>1, 5>3, 5>1 are right: AUC 3/4; means 3.5 and 2
    panel = plot_numbers(capfd, "scores", "a.run", *JUDGED)["panels"]["a"]
    assert (panel["auc"], panel["means"]) == (0.75, [3.5, 2.0])
    assert (sum(panel["good"]), sum(panel["other"]), len(panel["edges"]) - len(panel["good"])) == (2, 2, 1)


def test_cosines_by_rating_from_a_file_of_pairs(capfd: Capture) -> None:
    result = plot_numbers(capfd, "cosine", "pairs.jsonl")
    assert result["bins"] == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]
    assert result["systems"]["s"]["cosines"] == [[0.1], [], [], [], [0.7, 0.8, 0.9]]  # 5.0 belongs to the last bin
    # ranks of cosines 4 3 1 2, of ratings 3 2 1 4: rho = 1 - 6 (1 + 1 + 0 + 4) / (4 * 15)
    assert result["systems"]["s"]["spearman"] == pytest.approx(0.4)


def write_model_and_pairs(folder: Path) -> Path:
    """Write a tiny encoder, and pairs.tsv with twelve pairs rated 0 to 5; return the path of the encoder."""
    texts = [passage.text for passage in make_passages(24)]
    rows = [f"{texts[n]}\t{texts[n + 12]}\t{n % 6}\n" for n in range(12)]
    write_text(folder / "pairs.tsv", "sentence1\tsentence2\tscore\n" + "".join(rows))
    return save_tiny_encoder(folder / "model")


def test_space_and_cosine_of_a_model_and_rated_pairs(folder: Path, capfd: Capture) -> None:
    model = write_model_and_pairs(folder)
    result = plot_numbers(capfd, "space", f"m={model}", "--pairs", "pairs.tsv", "--points", "10")
    assert sum(result["panels"]["m"]["matching"]) == 2  # those rated 5
    assert sum(result["panels"]["m"]["random"]) == 45  # 10 choose 2
    assert set(result["geometry"]["m"]) == {"alignment", "uniformity"}
    drawn = plot_numbers(capfd, "cosine", f"m={model}", "--pairs", "pairs.tsv")["systems"]["m"]
    assert sum(map(len, drawn["cosines"])) == 12


PICTURES = {
    "recall.svg": ["a.run", "b.run", *JUDGED],
    "training.png": ["log.jsonl", "--heading", "Mine & yours"],
    "differences.pdf": ["a.run", "b.run", *JUDGED, "--set", "width=5", "--set", "height=4"],
    "scores.svg": ["a.run", *JUDGED],
    "space.svg": ["one=model", "same=./model", "--pairs", "pairs.tsv"],
    "cosine.svg": ["pairs.jsonl"],
}


def test_plots_are_reproducible(folder: Path, capfd: Capture) -> None:
    pytest.importorskip("matplotlib")
    assert [name.partition(".")[0] for name in PICTURES] == [*PLOTS]
    write_model_and_pairs(folder)
    for name, call in PICTURES.items():
        run_command(capfd, "plot", "-q", name.partition(".")[0], *call, "-o", name)
        if name.endswith(".svg"):
            texts = "".join(ElementTree.fromstring((folder / name).read_text()).itertext())
            assert len(texts.split()) > 5, name  # letters are letters
    assert "plot: 1 in, 1 out, " in get_messages(capfd, "plot cosine pairs.jsonl -o again.svg")
    assert (folder / "cosine.svg").read_bytes() == (folder / "again.svg").read_bytes()
    png = (folder / "training.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(png[16:20], "big") >= 600  # pixels across
    assert (folder / "differences.pdf").read_bytes()[:4] == b"%PDF"
    manifest = json.loads((folder / "training.png.meta.json").read_text())
    assert (manifest["kind"], manifest["counts"]) == ("picture", {"in": 1, "out": 1})


def test_invalid_options_and_files_are_rejected(folder: Path, capfd: Capture) -> None:
    write_text(folder / "bad.jsonl", '{"step": 1, "loss": 1}\n{"step": 2, "loss": "low"}\n')
    write_text(folder / "cut.jsonl", '{"system": "s", "score": 1, "cosine": 0.5}\n{"system": "s", "score": 2}\n')
    write_text(folder / "x.run", "q1 Q0 x 1 1 t\n")
    write_text(folder / "empty.run", "")
    faults: list[tuple[list[str], type[DrtkError], str]] = [
        (["recall", "a.run"], UsageError, "requires judgments"),
        (["nonsense", "a.run"], UsageError, "unknown plot 'nonsense'; choose from recall, training"),
        (["differences", "a.run", *JUDGED], UsageError, "requires 2 inputs, got 1"),
        (["differences", "a.run", "b.run", *JUDGED, "--measure", "RR P_5"], UsageError, "must name one measure"),
        (["training", "log.jsonl", *JUDGED], UsageError, "`qrels` has no effect on drtk plot training"),
        (["recall", "a.run", *JUDGED, "--field", "x"], UsageError, "`field` has no effect on drtk plot recall"),
        (["training", "log.jsonl", "--field", "x"], DrtkError, r"log\.jsonl: no field x; choose from loss, nDCG@10"),
        (
            ["training", "simlm.jsonl", "--field", "loss", "--field", "gain_mlm"],
            DrtkError,
            "no log has the field gain_mlm; choose from held_out_mlm, ",
        ),
        (["training", "bad.jsonl"], RecordError, r"bad\.jsonl:2: expected an integer 'step' and a number as 'loss'"),
        (["cosine", "nowhere"], UsageError, "`pairs` is required to plot a model"),
        (["cosine", "pairs.jsonl", "--pairs", "x"], UsageError, "cannot be combined with a file of cosines"),
        (["cosine", "cut.jsonl"], RecordError, r"cut\.jsonl:2: expected a number as 'cosine'"),
        (["scores", "x.run", *JUDGED], DrtkError, "x: no relevant document has a score"),
        (["recall", "empty.run", *JUDGED], DrtkError, "the runs have no judged query"),
        (["space", "nowhere"], UsageError, "`pairs` is required to plot models"),
    ]
    for arguments, fault, problem in faults:
        with pytest.raises(fault, match=problem):
            plot_numbers(capfd, *arguments)
    for output in ([], ["-o", "x.jpg"]):
        with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf, \.json"):
            run_command(capfd, "plot", "training", "log.jsonl", *output)
