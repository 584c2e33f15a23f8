"""Attacks on a whole secure stack beside a victim that computes: of a member of another tenant, of a visitor without a key, of a stolen
node. The kernels of ``tests/adversarial`` attack the device; these attack what is around it.
"""
