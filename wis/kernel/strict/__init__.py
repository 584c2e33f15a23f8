"""Named functions of strict kernels as straight lines of exact ops: every back end computes the same bits, by construction.

Each is written once, on values of a Trace; its form is a Function of one block (core ops, then ret). Largest errors over all inputs, and
the command that measures them: docs/strict-math.md.
"""

from wis.kernel.strict.forms import STRICT_FORMS, strict_form

__all__ = ["STRICT_FORMS", "strict_form"]
