"""Latency of an important tenant beside a background one: the SLA matrix, real and in virtual time (docs/sla.md).

- ``kinds``: the PyTorch scripts. ``record``: runs one through our client and keeps its batches (``recording``).
- ``line``, ``load``: a lean load generator that plays recordings onto the bus, as clients on other machines would.
- ``arrivals``: when requests come. ``real``: the runs on a node. ``virtual``: the same in virtual time. ``report``: docs/sla.md.

``python -m benchmarks.sla``
"""
