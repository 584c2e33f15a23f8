"""Three pure cores that decide: dispatch (what a device runs next), vram (who may hold memory), placement (which node and GPU a task gets).

Beside them ``turns``: turns and budgets of tenants at a shared worker.

May live here: stimuli, state, decisions. May not: anything that acts. Rules for everything below this folder:

1. Stimuli in, decisions out. Nothing here acts; a shell in ``services`` does.
2. No clock, no random number, no I/O, no logging: time arrives inside the stimulus.
3. Integers only. The same stimuli give the same decisions, byte for byte, on every machine.
"""
