"""Every attack. Importing this fills tests.adversarial.attack.ATTACKS."""

from tests.adversarial.attack import ATTACKS, Attack, Shot
from tests.adversarial.attacks import barriers, bombs, bounds, endless, launches, lies, own_memory, pointers, values

__all__ = ["ATTACKS", "KINDS", "Attack", "Shot"]

KINDS = (barriers, bombs, bounds, endless, launches, lies, own_memory, pointers, values)
