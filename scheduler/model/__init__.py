"""A device in virtual time: the real dispatcher over arrivals and costs, so that another policy can be tried on what was recorded.

    tenants, arrivals, costs = recorded(records).inputs()
    outcome = simulate(tenants, arrivals, DispatchConfig(), costs)
    outcome.sessions["a"].latency_ns(99)

May live here: the executor's behaviour as far as the dispatcher sees it (``simulate``), clients that wait for answers
(``clients``), what goes in and what comes out (``runs``), and the story of waits (``waits``). May not: rules (scheduler.dispatch decides
here, too).
"""

from scheduler.model.runs import Arrival, DeviceCosts, Outcome, Reactions, SessionOutcome, Tenant, percentile
from scheduler.model.simulate import simulate

__all__ = ["Arrival", "DeviceCosts", "Outcome", "Reactions", "SessionOutcome", "Tenant", "percentile", "simulate"]
