"""Measures the cost of a dispatcher decision with sessions that always have a batch waiting and slices that end or are stopped.

    python -m benchmarks.dispatch

Prints CPU time of this thread for one stimulus with all it decides, in microseconds: at 10, 100 and 1,000 waiting batches of as many
sessions. The gate on it counts operations instead (tests/unit/test_scheduler/test_dispatch_cost.py).
"""

from __future__ import annotations

import time
from typing import Final

from scheduler.dispatch import Dispatch, Stimulus
from tests.support.dispatch_load import backlog, steady

_STEPS: Final = 10_000


def main() -> None:
    print("waiting  levels  mean us  median us  p99 us")
    for sessions in (10, 100, 1_000):
        for levels in (1, 5):
            dispatch = backlog(sessions, levels)
            costs: list[int] = []

            def feed(stimulus: Stimulus, dispatch: Dispatch = dispatch, costs: list[int] = costs) -> None:
                begin_ns = time.thread_time_ns()
                dispatch.on(stimulus)
                costs.append(time.thread_time_ns() - begin_ns)

            steady(dispatch, _STEPS, feed)
            costs.sort()
            mean, median, p99 = sum(costs) / len(costs), costs[len(costs) // 2], costs[len(costs) * 99 // 100]
            print(f"{sessions:7}  {levels:6}  {mean / 1e3:7.1f}  {median / 1e3:9.1f}  {p99 / 1e3:6.1f}")


if __name__ == "__main__":
    main()
