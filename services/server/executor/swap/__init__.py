"""Where memory that was swapped off the device is kept, and the thread that carries it there and back.

May live here: moving and keeping bytes. May not: whose bytes move (scheduler.vram decides, memory.py carries out).
"""
