"""Documentation strings, found by parsing."""

from __future__ import annotations

from textwrap import dedent

import pytest

from drtk.text.sample_collection import documented_in, parted, plain, public

SOURCE = r'''
"""A module about rivers.

It knows their sources and their mouths.
"""
import nothing_of_this_name
raise SystemExit("a file that is run would end here")

def flow(speed):
    """Return the water that passes in a second.

    The speed is in metres.
    """

def _hidden():
    """Not for users.

    At all.
    """

class River:
    """A stream of water that runs into the sea.

    It has a name.
    """

    def __init__(self):
        """Make a river.

        Out of nothing.
        """

    if True:
        async def mouth(self):
            """Where the river ends.

            Usually a sea.
            """

    def silent(self):
        """Only a summary."""

add_docstr(water.boil, r"""
boil(input, *, out=None) -> Tensor

Heats :attr:`input` up. Until it {boils}.

Args:
    {input}
""" + "    more {{braces}}\n\nExample::\n\n    water".format(**common))
add_docstr_all("cool", """cool() -> Tensor

Let it cool down again.

Slowly.""")
add_newdoc("numpy._core.umath", "freeze", """freeze(x, /)

Make ice of water.

Below zero.""")
add_docstr(f"no name {of} its own", """A summary of it.

And more.""")
'''


def test_public_objects_are_found_with_their_kind_and_nothing_is_run(tmp_path):
    (tmp_path / "water.py").write_text(SOURCE)
    found = {item.name: (item.kind, item.summary, item.body) for item in documented_in(tmp_path / "water.py", "water")}
    assert found == {
        "water": ("module", "A module about rivers", "It knows their sources and their mouths."),
        "water.flow": ("function", "Return the water that passes in a second", "The speed is in metres."),
        "water.River": ("class", "A stream of water that runs into the sea", "It has a name."),
        "water.River.mouth": ("method", "Where the river ends", "Usually a sea."),
        "water.boil": (
            "function",
            "Heats input up",
            "Until it {boils}.\n\nArgs:\n    more {braces}\n\nExample::\n\n    water",
        ),
        "torch.Tensor.cool": ("function", "Let it cool down again", "Slowly."),
        "numpy.umath.freeze": ("function", "Make ice of water", "Below zero."),
    }


@pytest.mark.parametrize(
    "content", [b"def broken(:\n", b'"""\xff"""', b"x = 1\n", b"", b'"""a\x00b"""', b"(" * 5000 + b'"""']
)
def test_a_file_that_does_not_parse_documents_nothing(content, tmp_path):
    (tmp_path / "file.py").write_bytes(content)
    assert documented_in(tmp_path / "file.py", "file") == []


@pytest.mark.parametrize(
    ("text", "summary", "rest"),
    [
        ("Do it. Then rest.\n\nMore.", "Do it", "Then rest.\n\nMore."),
        ("Do it\nin two lines.\n\nMore.", "Do it in two lines", "More."),
        ("solve(a, b)\n\nSolve it.\n\nMore.", "Solve it", "More."),
        ("solve(a, b) -> x\nSolve it.\n\nMore.", "Solve it", "More."),
        ("Use e.g. Rivers of it.\n\nMore.", "Use e.g. Rivers of it", "More."),
        ("Split version 3.11 strings.", "Split version 3.11 strings", ""),
        ("solve(a, b)", "", ""),
    ],
)
def test_the_first_sentence_is_the_summary(text, summary, rest):
    assert parted(dedent(text)) == (summary, rest)


def test_mark_up_is_taken_off():
    assert plain("A :class:`~torch.Tensor` of ``x`` and [`~a.Trainer`], *so* **bold** :py:func:`text <place>`") == (
        "A torch.Tensor of x and a.Trainer, *so* bold text"
    )


def test_private_parts_of_a_name_are_left_out():
    assert public("numpy.linalg._linalg.solve") == "numpy.linalg.solve"
    assert public("_pydecimal.Decimal") == "pydecimal.Decimal"
