"""drtk presets: the list of presets and the text of each preset."""

import tomllib

import pytest

from drtk.cli.presets import presets
from drtk.config import list_preset_names, load_preset
from drtk.errors import UsageError


def test_the_list_names_every_preset_with_its_command(capsys):
    presets(name=None, check=False, command=None, quiet=False, verbose=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list_preset_names()
    for name, line in zip(list_preset_names(), lines, strict=True):  # the steps of a group have two words
        assert line.removeprefix(name).strip().startswith(f"{load_preset(name).command} ")


def test_a_printed_preset_is_its_file(capsys):
    for name in list_preset_names():
        presets(name=name, check=False, command=None, quiet=False, verbose=False)
        content = tomllib.loads(capsys.readouterr().out)
        assert content == load_preset(name).content
        assert content["command"]
        assert content["summary"]


def run_check(capsys, name: str | None) -> str:
    presets(name=name, check=True, command=None, quiet=False, verbose=False)
    return capsys.readouterr().out


def test_all_shipped_presets_are_valid_and_list_their_requirements(capsys):
    lines = dict(line.split(": ", 1) for line in run_check(capsys, None).splitlines())
    assert list(lines) == list_preset_names()
    assert (
        lines["master"]
        == "valid, 8 slots, 8 objectives; required passage fields: continuations, neighbors, queries, weights"
    )
    assert lines["simlm"] == "valid, 2 slots, 2 objectives, a generator; no passage fields required"
    assert lines["quickstart"] == "valid for drtk train-retriever"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('command = "pretrain"\n', r"mine.toml: there is no objective"),
        ('command = "pretrain"\n[settings]\nlearning_rate = "fast"\n', "--learning-rate: expected float, got 'fast'"),
        ('command = "train-retriever"\n[settings]\nloss_ = 1\n', "unknown setting 'loss_'"),
        ('command = "train-retriever"\nlr = 1e-5\n', r"mine\.toml: unknown key 'lr'; put settings under"),
        (
            'command = "train-retriever"\n[settings]\naux = "diffcse"\n',
            r"preset .*mine\.toml: `aux` diffcse requires `aux_generator`",
        ),
        (
            'command = "train-reranker"\n[settings]\nkind = "hlatr"\nhidden = 100\nheads = 3\n',
            r"preset .*mine\.toml: `hidden` 100: must be a multiple of `heads` 3",
        ),
        ('command = "encode"\n', "mine.toml: 'encode' has no presets"),
    ],
)
def test_an_invalid_preset_is_rejected_with_the_reason(text, told, tmp_path, capsys):
    mine = tmp_path / "mine.toml"
    mine.write_text(text)
    with pytest.raises(UsageError, match=told):
        run_check(capsys, str(mine))


def test_an_edited_preset_is_checked_down_to_its_options(tmp_path, capsys):
    actual = tmp_path / "mine.toml"
    text = load_preset("rom").text
    actual.write_text(text)
    assert run_check(capsys, str(actual)) == f"{actual}: valid, 1 slot, 1 objective; required passage fields: weights\n"
    actual.write_text(text.replace("scale", "scael"))
    with pytest.raises(UsageError, match=r"mine.toml: \[slots.passage\]: masking 'rom' has no option 'scael'"):
        run_check(capsys, str(actual))
