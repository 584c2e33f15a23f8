"""The controller: a thin shell around ``scheduler.placement``. It follows the event log, appends decisions to it, answers HTTP.

May live here: I/O of the control plane. May not: anything that decides (scheduler/), state that the log does not give back.
"""
