"""The definition of the kernel tier, in NumPy: ``launch`` runs a verified kernel, or a slice of its grid, on byte buffers.

Back ends are compared with it bit by bit: memory, thread-instructions, the trap. Pure apart from the buffers it writes. May live here:
meaning, a module a kind of it (scalar, bits, rounding, memory, atomics, warp, barriers), and the machine that runs threads. May not:
rules (verify), rewriting (expand, inline), code generation.
"""

from wis.kernel.interpret.run import Launch, Outcome, launch

__all__ = ["Launch", "Outcome", "launch"]
