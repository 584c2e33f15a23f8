"""The memory core alone, with a device, its sessions and their moves drawn from a seed. The whole node: tests/simulation/node."""
