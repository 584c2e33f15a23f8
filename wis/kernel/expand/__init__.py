"""Kernels with core ops only: what the op table marks otherwise is rewritten inside of its block, in a straight line.

May live here: rewriting, a module a kind of op. May not: what ops mean (interpret), the strict forms of named functions (strict).
"""

from wis.kernel.expand.rewrite import expand, expanded_ops

__all__ = ["expand", "expanded_ops"]
