"""What may be asked of the controllers to read: names that go into requests of theirs to JetStream."""

from __future__ import annotations

import msgspec
import pytest

from bus_schemas.access import Follow, Unfollow, follow_fault, subject_fault

GOOD = Follow("S", "follow_me_a1", "_INBOX_me.b2", 1, "wooly.evt.*.x.>")


def test_what_a_follower_asks() -> None:
    assert follow_fault(GOOD, "me") == ""
    assert follow_fault(msgspec.structs.replace(GOOD, subject=""), "me") == ""
    assert follow_fault(Unfollow("S", "follow_me_a1"), "me") == ""


@pytest.mark.parametrize(
    "consumer",
    ["", "follow_me_", "follow_you_a1", "follow_me_a.b", "follow_me_a b", "follow_me_*", "follow_me_>", "follow_me_é", "follow_me_a\r\n",
     "follow_me_" + "a" * 65],
)  # fmt: skip
def test_consumers_of_others_and_names_that_are_none(consumer: str) -> None:
    assert follow_fault(msgspec.structs.replace(GOOD, consumer=consumer), "me").startswith("consumer:")
    assert follow_fault(Unfollow("S", consumer), "me").startswith("consumer:")


@pytest.mark.parametrize(
    "inbox",
    ["", "_INBOX_me", "_INBOX_me.", "_INBOX_you.a", "_INBOX_me.a.b", "_INBOX_me.*", "_INBOX_me.>", "_INBOX_me.a b", "_INBOX_me.a\r\n",
     "$JS.API.STREAM.DELETE.S", "wooly.evt.access.x"],
)  # fmt: skip
def test_inboxes_of_others_and_what_is_no_inbox(inbox: str) -> None:
    assert follow_fault(msgspec.structs.replace(GOOD, inbox=inbox), "me").startswith("inbox:")


@pytest.mark.parametrize("subject", [".", "a.", ".a", "a..b", ">", "*", "a b", "a.>.b", "a\r\nPUB", "a.é", "a" * 65, ".".join(["a"] * 300)])
def test_subjects_that_narrow_nothing(subject: str) -> None:
    assert subject_fault(subject).startswith("subject:")


@pytest.mark.parametrize("position", [0, -1])
def test_positions_before_the_first(position: int) -> None:
    assert follow_fault(msgspec.structs.replace(GOOD, from_position=position), "me").startswith("from_position:")
