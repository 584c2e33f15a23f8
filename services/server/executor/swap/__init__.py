"""The store of swapped-out memory, and the thread that moves it there and back.

May live here: moving and keeping bytes. May not: whose bytes move (scheduler.vram decides, memory.py carries out).
"""
