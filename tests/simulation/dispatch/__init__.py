"""The dispatcher in a simulated world. Four parts that do not know each other's insides:

- ``workload``: clients, a network that reorders, repeats and loses, an executor that fails; draws everything from one seed.
- ``auditor``: an independent model that judges every decision (safety), and at the end that all work was done (liveness).
- ``checkers``: properties of the whole run: replay gives the same journal, occupancy is right, bounds hold.
- ``canaries``: dispatchers with a bug each. A simulator that does not catch them tests nothing.

A seed and a commit reproduce a run; the seed is in the failure.
"""
