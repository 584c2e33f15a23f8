"""The definition of the kernel tier, in NumPy: ``launch`` runs a verified kernel, or a slice of its grid, on byte buffers.

Back ends are compared with it bit by bit: memory, thread-instructions, the trap. Pure apart from the buffers it writes. A module for each
kind of op: scalar, arithmetic, memory (with atomics), warp (with barriers).
"""

from wis.kernel.interpret.run import Launch, Outcome, launch

__all__ = ["Launch", "Outcome", "launch"]
