"""What is kept of a script's output."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus_schemas.quotas import Rate
from services.runner.runs import LogQuota, Output, boundary


def everything(output: Output, chunks: list[bytes]) -> tuple[bytes, bytes]:
    """(head, rest) of these chunks."""
    head = b""
    for chunk in chunks:
        output.feed(chunk)
        head += output.take()
    output.feed(b"", final=True)
    return head, output.rest()


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    chunks = []
    for size in sizes:
        chunks.append(data[:size])
        data = data[size:]
    return [*chunks, data]


@given(st.text(max_size=200), st.lists(st.integers(0, 20), max_size=30))
def test_a_short_output_comes_whole_however_it_is_cut(text: str, sizes: list[int]) -> None:
    head, rest = everything(Output(1000, 1000), cut(text.encode(errors="replace"), sizes))
    assert head + rest == text.encode(errors="replace")


@given(st.text(alphabet="aé€𝄞", min_size=80, max_size=300), st.lists(st.integers(0, 40), max_size=30))
def test_a_long_output_keeps_its_beginning_and_its_end(text: str, sizes: list[int]) -> None:
    data = text.encode()
    head, rest = everything(Output(20, 30), cut(data, sizes))
    out = (head + rest).decode()  # every cut lies between two characters
    begins, _, after = out.partition("\n[the log is longer")
    ends = after.partition("]\n")[2]
    if ends.startswith("["):
        said, _, ends = ends.partition("]\n")
        assert int(said[1:].split()[0]) == len(data) - len(begins.encode()) - len(ends.encode())
    assert text.startswith(begins) and text.endswith(ends)
    if after:
        assert 17 <= len(begins.encode()) <= 20 and len(ends.encode()) <= 30


def test_what_is_no_text_is_replaced() -> None:
    head, rest = everything(Output(), [b"a\xff", b"b\xc3"])
    assert (head + rest).decode() == "a\ufffdb\ufffd"


def test_the_memory_it_takes_is_bounded() -> None:
    output = Output(100, 1000)
    for _ in range(1000):
        output.feed(b"x" * 900)
        output.take()
    assert len(output.rest()) < 1000 + 100


def test_a_boundary_is_never_within_a_character() -> None:
    text = "aé€𝄞z".encode()
    assert [boundary(text, limit) for limit in range(1, 13)] == [1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11]


def test_a_tenant_that_writes_too_much_loses_output_and_its_log_says_how_much() -> None:
    quota = LogQuota(Rate(10, 100))
    assert quota.allowed("a", "t", b"x" * 90, 0) == b"x" * 90
    assert quota.allowed("a", "u", b"y" * 20, 0) == b"" and quota.allowed("a", "u", b"y" * 5, 0) != b"", "all tasks of the tenant together"
    assert quota.allowed("b", "v", b"z" * 100, 0) == b"z" * 100, "other tenants are not affected"
    assert quota.allowed("a", "t", b"x" * 15, 10**9 - 1) == b""
    said = b"\n[15 bytes are left out: quota log_bytes of the tenant]\n"
    assert quota.allowed("a", "t", b"x" * 15, 10**9) == said + b"x" * 15, "after the time that it takes"
    assert quota.missing("t") == b"" and quota.allowed("a", "t", b"x", 10**9) == b""
    assert quota.missing("t") == b"\n[1 bytes are left out: quota log_bytes of the tenant]\n"
