"""Programs with other people's libraries on the device, compared with the CPU (``make ecosystem``, docs/ecosystem.md).

May live here: the cases as users write them, their runner, the explanations of what differs. May not: anything the product imports.
"""
