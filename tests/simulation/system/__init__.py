"""The whole system in virtual time: clients, the bus, node servers, controllers and billing, with everything that may befall them.

What runs is the product's own code, shells included: the client's ``Session``, ``Opening`` and data port with their replay log, the node
server with device, accounts, meter, journal of facts and dispatch core, the controllers' projection, writer, placer, actions and
reconciler, and billing's projection. Only what they depend on is simulated:

- ``kernel``: time, machines with clocks and disks, processes that are killed and stopped, event loops and threads on one heap of
  events.
- ``wire``: connections, and a NATS server with core messages and streams. ``device``: executors, whose device is a state machine (a hash of
  all that was done), and connections to their data port. Both are models of what is outside, or is tested elsewhere.
- ``services``, ``client``: the product's parts as processes, and what stands for what they reach (REST, the configuration store).
- ``draw``: what a seed decides: scripts, limits, faults. ``run``: one seed to its verdict. ``oracles``: what must hold, judged from
  answers, log and what is left. ``canaries``: bugs planted in the product's decisions, which must be found.

Not simulated: budgets, keys and sealed events, swapping, shared weights, compilation, journals for replay, runners, clusters of the bus.
``python -m tests.simulation.system --seeds 100000``; a seed and a commit reproduce a run.
"""
