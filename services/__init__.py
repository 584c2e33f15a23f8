"""The processes: thin shells around the pure cores.

May live here: a package for every process (server, controller, billing, up), started as ``python -P -m services.<name>``, and ``kit``, what
they share. May not: decisions (scheduler, billing), kernels (jit), imports of one process by another, torch.
"""
