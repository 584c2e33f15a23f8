"""Recordings: what passes through a link comes back out of the files, within the limit, or with an error that names the damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.loopback import LoopbackLink
from wis.encoding import digest, encode_program
from wis.text import parse_program
from wooly.cli.debug import Rebuilt, debug
from wooly.cli.group import CommandError
from wooly.errors import ConfigError, RefusedError
from wooly.link import Flush, ReadBytes, Ticket
from wooly.recording import Recording, RecordingError, RecordingLink

ADD = """
wis 1
scalars 1
%0 external 32768
%1 created 32768
%1:f32[8192]{1}+0 = add %0:f32[8192]{1}+0, $0:f32
"""


def flushes(count: int) -> list[Flush]:
    """An upload, then additions of 1, 2, ...: buffer n + 1 is made of buffer n, which is freed; every second is read."""
    program, dims = parse_program(ADD.lstrip())
    assert dims is not None
    body = encode_program(program)
    first = Flush(uploads=[(1, memoryview(np.zeros(8192, np.float32)).cast("B"))])
    named = {"program": digest(body), "program_body": body, "dims_digest": digest(dims), "dims": dims}
    return [first] + [
        Flush(**named, scalars=[float(n)], handles=[n, n + 1], frees=[n], reads=[(n + 1, 0, 8)] if n % 2 else ()) for n in range(1, count)
    ]


def recorded(folder: Path, count: int, bytes_max: int = 1 << 30) -> None:
    link = RecordingLink(LoopbackLink(), folder, bytes_max)
    for flush in flushes(count):
        link.wait(link.submit(flush))


def first_value(recording: Recording, at: int | None) -> float:
    rebuilt = Rebuilt(LoopbackLink())
    for batch in recording.batches(at):
        rebuilt.send(batch)
    (handle, held), *others = rebuilt.held().items()
    assert not others
    return float(np.frombuffer(rebuilt.read({handle: held.nbytes})[handle], np.float32)[5])


def test_any_batch_is_built_again(tmp_path: Path) -> None:
    recorded(tmp_path, 12)
    recording = Recording(tmp_path)
    assert [first_value(recording, at) for at in (1, 2, 3, 12)] == [0, 1, 3, 66]
    assert first_value(recording, None) == 66
    given, found = flushes(12), list(recording.all())
    assert [one.number for one in found] == list(range(1, 13))
    for flush, one in zip(given, found, strict=True):
        assert [(handle, bytes(data)) for handle, data in one.flush.uploads] == [(handle, bytes(data)) for handle, data in flush.uploads]
        for name in ("program", "program_body", "dims_digest", "dims", "scalars", "handles", "allocs", "reads", "frees"):
            assert list(getattr(one.flush, name)) == list(getattr(flush, name)), name


def test_another_recording_takes_the_place_of_one(tmp_path: Path) -> None:
    recorded(tmp_path, 12)
    recorded(tmp_path, 3)
    assert [one.number for one in Recording(tmp_path).all()] == [1, 2, 3]
    with pytest.raises(RecordingError, match="ends with batch 3"):
        first_value(Recording(tmp_path), 4)


def test_files_of_others_are_not_removed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    mine = tmp_path / "data" / "train.csv"
    mine.write_text("mine")
    recorded(tmp_path, 4)
    recorded(tmp_path, 6)
    assert mine.read_text() == "mine" and len(list(Recording(tmp_path).all())) == 6
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "notes.batches").write_text("mine")
    with pytest.raises(ConfigError, match="holds files, and no recording"):
        recorded(tmp_path / "elsewhere", 2)
    assert (tmp_path / "elsewhere" / "notes.batches").read_text() == "mine"


def test_old_batches_are_removed_at_the_limit(tmp_path: Path) -> None:
    bytes_max = 256 << 10
    recorded(tmp_path, 900, bytes_max)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= bytes_max * 1.25
    recording = Recording(tmp_path)
    assert 1 < recording.first < 899
    assert [one.number for one in recording.all() if not one.image] == list(range(recording.first, 901))
    for at in (recording.first, recording.first + 7, 899, 900):
        assert first_value(recording, at) == sum(range(at))
    with pytest.raises(RecordingError, match=f"begins with batch {recording.first}"):
        first_value(recording, recording.first - 1)


def test_a_session_that_is_larger_than_the_limit_ends_its_recording(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, 600, 64 << 10)
    said = capfd.readouterr().err
    assert said.count("the recording ends with batch") == 1 and "a quarter of WOOLY_RECORD_MB" in said
    last = [one.number for one in Recording(tmp_path).all()][-1]
    assert first_value(Recording(tmp_path), last) == sum(range(last))


def test_a_refusal_that_an_image_hears_of_is_raised_and_nothing_is_lost(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Refusing(LoopbackLink):
        def wait(self, ticket: Ticket) -> list[ReadBytes]:
            raise RefusedError("an earlier batch")

    sent = Refusing()
    link, every, refusals = RecordingLink(sent, tmp_path, 256 << 10), flushes(600), 0
    for flush in every:
        try:
            link.submit(flush)
        except RefusedError:
            refusals += 1
    assert refusals == 1 and capfd.readouterr().err.count("the recording ends with batch") == 1
    assert sent.seq == len(every) + 1, "every flush, and the reads of one image"


def test_a_recording_that_was_cut_off_ends_before_its_last_batch(tmp_path: Path) -> None:
    recorded(tmp_path, 6)
    (path,) = tmp_path.glob("*.batches")
    path.write_bytes(path.read_bytes()[:-3])
    assert [one.number for one in Recording(tmp_path).all()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("at", [40, 200, -300])
def test_damage_is_named(tmp_path: Path, at: int) -> None:
    recorded(tmp_path, 6)
    (path,) = tmp_path.glob("*.batches")
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordingError, match="does not match its checksum"):
        first_value(Recording(tmp_path), 6)


def test_a_damaged_upload_is_named(tmp_path: Path) -> None:
    recorded(tmp_path, 3)
    (path,) = (tmp_path / "data").iterdir()
    path.write_bytes(b"\1" * path.stat().st_size)
    with pytest.raises(RecordingError, match=rf"upload {path.name} in data is damaged"):
        first_value(Recording(tmp_path), 3)


def test_a_folder_without_a_recording_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="holds no recording; record one with WOOLY_RECORD="):
        Recording(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [(["--buffer", "1", "--find-nan"], "--buffer does not go with --find-nan"), (["--output", "x.npy"], "--output goes with --buffer")],
)
def test_flags_that_contradict_are_refused(tmp_path: Path, arguments: list[str], line: str) -> None:
    recorded(tmp_path, 2)
    with pytest.raises(CommandError, match=line):
        debug.main([str(tmp_path), *arguments], standalone_mode=False)


def test_a_disk_that_takes_no_more_ends_the_recording_and_not_the_script(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    link = RecordingLink(LoopbackLink(), tmp_path, 1 << 30)
    every = flushes(8)
    for flush in every[:4]:
        link.submit(flush)
    (path,) = tmp_path.glob("*.batches")
    path.rename(tmp_path / "kept")
    path.mkdir()
    for flush in every[4:]:
        link.submit(flush)
    assert len(link.wait(link.submit(Flush(reads=[(8, 0, 8)])))) == 1
    assert capfd.readouterr().err.count("the recording ends with batch 5: Is a directory") == 1
