"""From verified WIS programs to a device: planning, fusion, emitters, library calls, caches, memory.

May live here: what makes programs fast, one folder for every back end behind ``jit.engine``. May not: meaning (wis is the definition),
sessions, the bus, torch.
"""
