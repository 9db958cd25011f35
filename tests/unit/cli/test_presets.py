"""drtk presets: the list and each recipe's text."""

import tomllib

import pytest

from drtk.cli.presets import presets
from drtk.errors import DrtkError, UsageError
from drtk.settings.core import load_preset, preset_names


def test_the_list_names_every_preset_with_its_command(capsys):
    presets(name=None, quiet=False, verbose=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == preset_names()
    assert all(load_preset(line.split()[0]).command == line.split()[1] for line in lines)


@pytest.mark.parametrize("name", preset_names())
def test_a_printed_preset_is_the_file_and_says_what_it_is_for(name, capsys):
    presets(name=name, quiet=False, verbose=False)
    content = tomllib.loads(capsys.readouterr().out)
    assert content["command"]
    assert content["summary"]


def test_an_unknown_preset_and_a_file_that_is_none_are_refused(tmp_path):
    with pytest.raises(UsageError, match="unknown preset 'x'"):
        load_preset("x")
    torn = tmp_path / "torn.toml"
    torn.write_text("command = ")
    with pytest.raises(DrtkError, match="not TOML"):
        load_preset(str(torn))
    nameless = tmp_path / "nameless.toml"
    nameless.write_text("[settings]\nlr = 1.0\n")
    with pytest.raises(DrtkError, match="names its command"):
        load_preset(str(nameless))
