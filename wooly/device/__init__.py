"""The torch device: records operations and presents the private-use backend as ``cuda``.

``kernels`` and ``calls`` record a call, ``lowering`` translates it, ``families`` and ``symbolic`` do so once for many sizes, ``recorder``
and ``programs`` collect records to batches, ``transfer`` moves bytes, ``face`` changes what torch shows, ``checks`` raises the errors that
CUDA raises, ``checking`` compares with the CPU, ``collectives`` are those of ``torch.distributed``, ``graphs`` are CUDA graphs,
``compiled`` is a back end of ``torch.compile``, ``imports`` changes modules of other packages when a script imports them.

May live here: what torch calls, and what records it. May not: connections, sessions, commands; batches leave through ``wooly.link``.
"""
