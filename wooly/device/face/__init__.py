"""The device's face: what makes torch present the private-use backend to Python as ``cuda``."""
