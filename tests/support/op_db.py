"""torch's own samples of its operators (OpInfo), without its search for a unittest.

For every operator torch walks the whole stack, with the sources of its files, to find the ``unittest.TestCase`` that it is tested by. The
tests here have none.
"""

from __future__ import annotations

from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

__all__ = ["op_db"]

core.extract_test_fn = lambda: None
