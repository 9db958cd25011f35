"""drtk presets: the list of presets and the text of each preset."""

import tomllib

import pytest

from drtk.cli.presets import presets
from drtk.config import list_preset_names, load_preset
from drtk.errors import UsageError
from tests.run_commands import write_text


def run_presets(capsys, name: str | None = None, *, check: bool = False) -> str:
    presets(name=name, check=check, command=None, quiet=False, verbose=False)
    return capsys.readouterr().out


def test_the_list_names_every_preset_with_its_command(capsys):
    lines = run_presets(capsys).splitlines()
    for name, line in zip(list_preset_names(), lines, strict=True):  # the steps of a group have two words
        assert line.partition(" ")[2].strip().startswith(f"{load_preset(name).command} ")
        assert line.split()[0] == name
        assert line.endswith(f"  {load_preset(name).summary}")


def test_a_printed_preset_is_its_file(capsys):
    content = tomllib.loads(run_presets(capsys, "simlm"))
    assert content == load_preset("simlm").content


def test_all_shipped_presets_are_valid_and_list_their_requirements(capsys):
    lines = dict(line.split(": ", 1) for line in run_presets(capsys, check=True).splitlines())
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
    mine = write_text(tmp_path / "mine.toml", text)
    with pytest.raises(UsageError, match=told):
        run_presets(capsys, str(mine), check=True)


def test_an_edited_preset_is_checked_down_to_its_options(tmp_path, capsys):
    mine, text = str(tmp_path / "mine.toml"), load_preset("rom").text
    write_text(tmp_path / "mine.toml", text)
    assert run_presets(capsys, mine, check=True) == (
        f"{mine}: valid, 1 slot, 1 objective; required passage fields: weights\n"
    )
    write_text(tmp_path / "mine.toml", text.replace("scale", "scael"))
    with pytest.raises(UsageError, match=r"mine.toml: \[slots.passage\]: masking 'rom' has no option 'scael'"):
        run_presets(capsys, mine, check=True)
