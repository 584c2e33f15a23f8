"""The node server: one process for the bus, one executor process a device.

The *server* (asyncio) reads batches, asks ``scheduler.dispatch`` what runs next, keeps the journal and reports facts and telemetry. The
*executor* (executor/) holds the device: engine, every session's memory, the data port. Executed positions live with the memory they
changed, in the executor; a server that restarts finds its executor again and goes on, an executor that dies ends its sessions.

May live here: the shells that act for the scheduler's cores on one node. May not: decisions (scheduler), meaning of programs (wis), other
services.
"""
