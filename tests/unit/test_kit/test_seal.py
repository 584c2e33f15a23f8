"""Which messages of the log count where services seal their facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus_schemas.events import ConfigChanged, Event, KeyRevoked, NodeLost, decode_events, encode_events
from services.kit.seal import HEADER, NAME_HEADER, Seal, SealedLog, SealKey, read_seal_keys, write_seal_keys


def sealing(*keys: SealKey) -> Seal:
    return Seal(lambda: keys)


KEY, OTHER_KEY = SealKey(b"k" * 32), SealKey(b"x" * 32)
SEAL, OTHER = sealing(KEY), sealing(OTHER_KEY)
ACCESS = "wooly.evt.access.k1"
NODE = "wooly.evt.node.n1"
REVOKED = encode_events([KeyRevoked(1, "k1")])


def log(since: int | None = 1, seal: Seal = SEAL) -> SealedLog:
    made = SealedLog(seal)
    made.since = since
    return made


def headers(subject: str, data: bytes, name: str = "m1", seal: Seal = SEAL) -> dict[str, str]:
    return {NAME_HEADER: name, HEADER: seal.make(subject, name, data)}


def counts(of: SealedLog, position: int, subject: str, head: dict[str, str], data: bytes) -> list[Event]:
    return decode_events(of.accepted(position, subject, head, data))


def test_a_sealed_fact_counts_and_an_unsealed_does_not() -> None:
    assert counts(log(), 5, ACCESS, headers(ACCESS, REVOKED), REVOKED) == [KeyRevoked(1, "k1")]
    assert counts(log(), 5, ACCESS, {}, REVOKED) == []


def test_whatever_is_changed_breaks_the_seal() -> None:
    good = headers(ACCESS, REVOKED)
    other = encode_events([KeyRevoked(1, "k2")])
    assert counts(log(), 5, ACCESS, good, other) == []
    assert counts(log(), 5, "wooly.evt.access.k2", good, REVOKED) == []
    assert counts(log(), 5, ACCESS, {**good, NAME_HEADER: "m2"}, REVOKED) == []
    assert counts(log(), 5, ACCESS, headers(ACCESS, REVOKED, seal=OTHER), REVOKED) == []
    assert counts(log(), 5, ACCESS, {**good, HEADER: "ä"}, REVOKED) == []


def test_a_copy_of_a_fact_does_not_count_again() -> None:
    one, good = log(), headers(ACCESS, REVOKED)
    assert counts(one, 5, ACCESS, good, REVOKED)
    assert counts(one, 9, ACCESS, good, REVOKED) == []
    assert counts(one, 5, ACCESS, good, REVOKED), "the same position again is the same message: it is read anew after a break"


def test_who_cannot_check_seals_reads_no_copy_either() -> None:
    """A node may pull facts about configuration and money, and have the bus deliver them among the facts again, for other nodes to read."""
    subject, facts = "wooly.evt.config.global", encode_events([ConfigChanged(1, "global", "k", 1)])
    node = SealedLog(None)
    node.since = 1
    good = headers(subject, facts)
    assert counts(node, 5, subject, good, facts) == counts(node, 5, subject, good, facts) == decode_events(facts)
    assert counts(node, 9, subject, good, facts) == []
    assert counts(node, 9, subject, {}, facts), "services that have no seal any more are believed as before"


def test_after_the_broker_lost_its_tail_positions_mean_something_else() -> None:
    one, good = log(), headers(ACCESS, REVOKED)
    counts(one, 5, ACCESS, good, REVOKED)
    one.start_over()
    assert counts(one, 4, ACCESS, good, REVOKED)


def test_facts_from_before_the_seals_count() -> None:
    assert counts(log(6), 5, ACCESS, {}, REVOKED)
    assert counts(log(6), 6, ACCESS, {}, REVOKED) == []
    assert counts(log(None), 6, ACCESS, {}, REVOKED)


def test_a_node_says_what_nodes_say_of_itself() -> None:
    own, others = NodeLost(1, "n1", 1, "stopped"), NodeLost(1, "n2", 1, "stopped")
    said = encode_events([own, others, KeyRevoked(1, "k1"), ConfigChanged(1, "global", "k", 1)])
    assert counts(log(), 5, NODE, {}, said) == [own]
    assert counts(log(), 5, "wooly.evt.session.s.n1", {}, encode_events([own])) == [own]
    assert counts(log(), 5, "wooly.evt.session.s.n2", {}, encode_events([own])) == []


def test_what_a_node_garbles_is_nothing() -> None:
    assert counts(log(), 5, NODE, {}, b"\xc1garbage") == []


def test_a_service_may_speak_of_a_node() -> None:
    lost = encode_events([NodeLost(1, "n1", 1, "silent")])
    assert counts(log(), 5, NODE, headers(NODE, lost), lost)


def test_a_message_on_a_foreign_subject_is_nothing() -> None:
    """What the bus delivers onto a fact's subject is stored among the facts under the subject it came from."""
    assert counts(log(), 5, "wooly.node.n1.batch.k.s", {}, REVOKED) == []
    assert counts(log(), 5, "wooly.node.n1.batch.k.s", headers("wooly.node.n1.batch.k.s", REVOKED), REVOKED) == []


def test_who_chooses_the_salt_does_not_know_the_secret() -> None:
    salt = b"s" * 32
    (made,) = SEAL.secrets(salt)
    assert len(made) == 32 and (made,) == SEAL.secrets(salt) != (salt,)
    assert made not in OTHER.secrets(salt) and made not in SEAL.secrets(b"t" * 32)
    assert made.hex() != SEAL.make("", "", salt), "seals are public"


def test_a_key_that_does_not_seal_yet_is_accepted() -> None:
    seal = sealing(KEY, replace(OTHER_KEY, next=True))
    assert counts(log(seal=seal), 5, ACCESS, headers(ACCESS, REVOKED, seal=OTHER), REVOKED)
    assert seal.make(ACCESS, "m1", REVOKED) == SEAL.make(ACCESS, "m1", REVOKED)


def test_a_retired_key_counts_up_to_its_position() -> None:
    seal, old = sealing(OTHER_KEY, replace(KEY, until=5)), headers(ACCESS, REVOKED)
    assert counts(log(seal=seal), 5, ACCESS, old, REVOKED)
    assert counts(log(seal=seal), 6, ACCESS, old, REVOKED) == []
    assert counts(log(seal=seal), 6, ACCESS, headers(ACCESS, REVOKED, seal=OTHER), REVOKED)
    assert seal.secrets(b"s" * 32) == OTHER.secrets(b"s" * 32), "nor does it sign or verify sessions"


def test_keys_of_a_file() -> None:
    keys = (KEY, replace(OTHER_KEY, next=True), SealKey(b"y" * 32, until=7))
    assert read_seal_keys(write_seal_keys(keys)) == keys
    assert read_seal_keys(KEY.key.hex()) == (KEY,), "as earlier revisions wrote it"
    assert KEY.id != OTHER_KEY.id and KEY.key.hex() not in repr(KEY)


@pytest.mark.parametrize("state", ["next", "until=5", "until=", "until=x", "old"])
def test_a_first_key_that_must_not_seal_is_refused(state: str) -> None:
    with pytest.raises(ValueError, match=r"no key|invalid literal|unknown"):
        read_seal_keys(f"{KEY.key.hex()} {state}")
