"""Latency of an important tenant beside a background one: the SLA matrix, real and in virtual time (docs/sla.md).

- ``kinds``: the PyTorch scripts. ``record``: runs one through our client and keeps its batches (``recording``).
- ``line``, ``load``: a lean load generator that plays recordings onto the bus, as clients on other machines would.
- ``arrivals``: when requests come. ``stand``: the node. ``real``: the runs on it. ``virtual``: the same in virtual time.
- ``report``: docs/sla.md and docs/what-if.md.

``python -m benchmarks.sla``
"""
