"""Input and output files: compression, line ends, damage, atomic replacement."""

import gzip
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from drtk.errors import DrtkError, OutputClosed, RecordError
from drtk.runtime.streams import Output, digest_file, open_input, read_lines

TEXT = b"".join(b'{"_id": "d%d", "text": "a line that compresses"}\n' % number for number in range(20_000))


def lines_of(path: Path) -> list[bytes]:
    return [line for _, line in read_lines(open_input(str(path))[0], str(path))]


def compress(suffix: str, data: bytes) -> bytes:
    if suffix == ".gz":
        return gzip.compress(data, mtime=0)
    return zstandard.ZstdCompressor().compress(data) if suffix == ".zst" else data


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_compression_is_detected_by_content_and_the_digest_is_that_of_the_file(tmp_path, suffix):
    path = tmp_path / "corpus"
    path.write_bytes(compress(suffix, TEXT))
    stream, raw = open_input(str(path))
    assert b"".join(line + b"\n" for _, line in read_lines(stream, "x")) == TEXT
    assert (raw.digest, raw.size) == (digest_file(path), path.stat().st_size)
    path.write_bytes(compress(suffix, b"one\ntw") + compress(suffix, b"") + compress(suffix, b"o\nthree\n"))
    assert lines_of(path) == [b"one", b"two", b"three"]  # several frames are one stream


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("kept", [0.3, 0.999])
def test_compressed_data_that_ends_early_is_an_error_with_its_line(tmp_path, suffix, kept):
    path = tmp_path / "corpus"
    whole = compress(suffix, TEXT)
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(RecordError, match=r"corpus:\d+: compressed data ends early"):
        lines_of(path)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_damage_in_incompressible_data_is_an_error(tmp_path, suffix):
    path = tmp_path / f"corpus{suffix}"
    with Output(str(path)) as output:
        output.write(os.urandom(50_000) + b"\n")
    whole = bytearray(path.read_bytes())
    whole[2_000] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(RecordError, match=r"damaged|ends early"):
        lines_of(path)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\xef\xbb\xbf", [b""]),
        (b"\xef\xbb\xbfone\r\ntwo\r\n", [b"one", b"two"]),
        (b"one\ntwo", [b"one", b"two"]),
        (b"one\n\ntwo\n", [b"one", b"", b"two"]),
        (b"one\n\xef\xbb\xbftwo\n", [b"one", b"\xef\xbb\xbftwo"]),  # only a file begins with a BOM
        ("eins\u2028zwei\x85drei\n".encode(), ["eins\u2028zwei\x85drei".encode()]),  # no line ends of ours
    ],
)
def test_only_a_bom_and_carriage_returns_are_removed(tmp_path, content, lines):
    path = tmp_path / "corpus"
    path.write_bytes(content)
    assert lines_of(path) == lines


def test_unusable_sources_are_rejected(tmp_path):
    for source, problem in [
        (str(tmp_path), "is a folder; expected a file"),
        (str(tmp_path / "none"), "none: No such file or directory"),
        ("a\0b", "not a valid file name"),
    ]:
        with pytest.raises(DrtkError, match=problem):
            open_input(source)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_an_output_is_renamed_when_it_is_finished(tmp_path, suffix):
    target, empty = tmp_path / f"out{suffix}", tmp_path / f"empty{suffix}"
    with Output(str(target)) as output:
        output.write(b"one\n")
        output.end_frame()
        assert not target.exists()
        output.write(b"two\n")
    assert lines_of(target) == [b"one", b"two"]
    with Output(str(empty)):
        pass
    assert lines_of(empty) == []
    assert (empty.stat().st_size > 0) == bool(suffix)  # gunzip and zstd reject a file of no bytes
    assert sorted(os.listdir(tmp_path)) == [empty.name, target.name]


def abandon(target: Path, fill: Callable[[Output], None]) -> None:
    with pytest.raises(RuntimeError), Output(str(target)) as output:  # noqa: PT012
        fill(output)
        raise RuntimeError


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_appending_to_a_part_drops_the_bytes_after_the_offset(tmp_path, suffix):
    target, offsets = tmp_path / f"out{suffix}", []

    def fill(output: Output) -> None:
        output.write(b"one\n")
        offsets.append(output.end_frame())
        output.keep_part = True
        output.write(b"torn" * 100_000)

    abandon(target, fill)
    assert (tmp_path / f"out{suffix}.part").stat().st_size >= offsets[0]
    with Output(str(target), append_at=offsets[0]) as output:
        output.write(b"two\n")
    assert lines_of(target) == [b"one", b"two"]


def test_two_runs_do_not_write_one_output(tmp_path):
    target = str(tmp_path / "out")
    with Output(target) as output:
        output.write(b"one\n")
        output.end_frame()
        with pytest.raises(DrtkError, match=r"out\.part: another run is writing it"):
            Output(target).begin()
        assert (tmp_path / "out.part").read_bytes() == b"one\n"  # the second has cut nothing off
    assert (tmp_path / "out").read_bytes() == b"one\n"


def test_concurrent_run_keeps_output_committed_while_the_part_file_is_opened(tmp_path, monkeypatch):
    target = tmp_path / "out"
    first = Output(str(target)).begin()
    first.write(b"one\n")
    opened = os.open

    def slow_open(path: os.PathLike[str], flags: int, mode: int = 0o777, **rest: int) -> int:
        results = opened(path, flags, mode, **rest)
        monkeypatch.setattr(os, "open", opened)
        if not first._file.closed:
            first.commit()  # the part is renamed after it was opened and before it is locked
        return results

    monkeypatch.setattr(os, "open", slow_open)
    second = Output(str(target)).begin()
    assert target.read_bytes() == b"one\n"
    second.write(b"two\n")
    second.commit()
    assert target.read_bytes() == b"two\n"


def test_a_full_disk_is_an_error_with_its_path(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    output = Output(str(tmp_path / "full")).begin()
    with pytest.raises(DrtkError, match="full: No space left on device"):
        output.write(b"x" * 1_000_000)


def test_a_closed_pipe_raises_output_closed():
    reader, writer = os.pipe()
    output = Output(f"/dev/fd/{writer}").begin()
    os.close(reader)
    with pytest.raises(OutputClosed):
        output.write(b"x" * 1_000_000)
    os.close(writer)


def test_reading_from_a_terminal_is_announced(monkeypatch, caplog):
    stdin = io.TextIOWrapper(io.BytesIO(b"text"))
    monkeypatch.setattr("sys.stdin", stdin)
    with caplog.at_level("INFO", "drtk"):
        open_input("-")
        assert not caplog.text
        monkeypatch.setattr(stdin, "isatty", lambda: True)
        open_input("-")
    assert "reading from the terminal; Ctrl-D ends the input" in caplog.text
