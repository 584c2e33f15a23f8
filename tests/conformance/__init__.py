"""torch's own operator database run on the device and compared with the CPU."""
