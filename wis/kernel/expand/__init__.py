"""Rewrites kernels to core ops only: every other op of the table is replaced inside of its block, in a straight line."""

from wis.kernel.expand.rewrite import expand, expanded_ops

__all__ = ["expand", "expanded_ops"]
