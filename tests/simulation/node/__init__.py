"""A whole node in virtual time: the dispatch core and the memory core together, driven as the shells drive them.

- ``draw``: what a seed decides: tenants with their scripts, the device, configurations, troubles.
- ``clock``: events in virtual time. ``executor``, ``memory``: an honest stand-in for the device: slices, stops, buffers whose contents are
  tokens, moves to and from swap that take time and may fail. ``shell``: decisions carried out, reports brought back.
- ``audit_order``, ``audit_share``, ``audit_memory``: independent models that judge every decision; ``run``: one seed, judged to its end.
- ``canaries``: cores with a bug each, which must be caught.

A seed and a commit reproduce a run; the seed is in the failure. ``python -m tests.simulation.node --seeds 10000``.
"""
