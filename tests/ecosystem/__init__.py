"""Programs with other people's libraries on the device, compared with the CPU (``make ecosystem``, docs/ecosystem.md).

``cases`` are scripts as users write them, beside their runner and the explanations of differences.
"""
