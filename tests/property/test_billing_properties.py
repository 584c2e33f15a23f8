"""Laws of billing that hold for every log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing.projection import BillingView
from billing.report import GROUPINGS, credit_report
from bus_schemas.events import Event, GrantRecorded, TariffSet, UsageRecorded, decode_events, encode_events

_NAMES = st.sampled_from(["a", "b", "c"])


@st.composite
def logs(draw: st.DrawFn) -> list[list[Event]]:
    """Messages of packed facts: per-device serials in order, sometimes sent again; prices and grants anywhere."""
    serials: dict[tuple[str, int], int] = {}
    messages: list[list[Event]] = []
    for _ in range(draw(st.integers(0, 12))):
        message: list[Event] = []
        for kind in draw(st.lists(st.sampled_from(["usage", "usage", "usage", "again", "grant", "tariff"]), max_size=5)):
            if kind == "usage":
                node, gpu = draw(_NAMES), draw(st.integers(0, 1))
                serials[node, gpu] = serials.get((node, gpu), 0) + 1
                start = draw(st.integers(0, 10**12))
                sizes = [draw(st.integers(0, 10**15)) for _ in range(4)]
                message.append(
                    UsageRecorded(node, 1, gpu, serials[node, gpu], "s", draw(_NAMES), draw(_NAMES), 0, start, start + 1, *sizes)
                )
            elif kind == "again" and message:
                message.append(draw(st.sampled_from(message)))
            elif kind == "grant":
                message.append(
                    GrantRecorded(0, draw(_NAMES), draw(_NAMES), draw(st.integers(0, 10**9)), draw(st.sampled_from(["", "basic"])))
                )
            elif kind == "tariff":
                message.append(
                    TariffSet(0, "standard", draw(st.integers(0, 10**12)), draw(st.integers(0, 10**10)), draw(st.integers(0, 10**10)))
                )
        messages.append(message)
    return messages


def fold(messages: list[list[Event]]) -> BillingView:
    view = BillingView()
    for position, message in enumerate(messages, start=1):
        view.apply(position, decode_events(encode_events(message)))
    return view


@given(logs())
def test_debits_equal_credits_and_balances_sum_to_zero(messages: list[list[Event]]) -> None:
    ledger = fold(messages).ledger
    assert ledger.debits_micro == ledger.credits_micro
    assert sum(ledger.balances.values()) == 0


@given(logs())
def test_every_grouping_has_the_same_total(messages: list[list[Event]]) -> None:
    view = fold(messages)
    totals = [credit_report(view, by).total for by in GROUPINGS]
    assert all(total == totals[0] for total in totals)
    for by in GROUPINGS:
        report = credit_report(view, by)
        assert sum(line.core_credits_micro for line in report.items) == report.total.core_credits_micro


@given(logs(), st.data())
def test_stopping_anywhere_and_going_on_gives_the_same_view(messages: list[list[Event]], data: st.DataObject) -> None:
    """Billing killed at any message and restarted from its snapshot, with some messages delivered again."""
    whole = fold(messages)
    cut = data.draw(st.integers(0, len(messages)))
    back = data.draw(st.integers(0, cut))
    view = BillingView.decode(fold(messages[:cut]).encode())
    for position, message in enumerate(messages[back:], start=back + 1):
        view.apply(position, message)
    assert view.digest() == whole.digest()
