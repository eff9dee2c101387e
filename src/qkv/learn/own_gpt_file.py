"""mine.py: the file of the course that names a student's own GPT for the commands."""

from __future__ import annotations

MINE = '''"""My own GPT: exercise 9, built from the exercises before it.

Train it, and say once that loading it may run this file:

    qkv train gpt --model mine.py --data english --out runs/mine
    export QKV_PLUGINS=mine.py

Training takes about 25 minutes on two slow cores; --steps 200 is enough for a first look, and
Ctrl-C stops it at any time (--resume goes on). Then use it as any other model:

    qkv generate runs/mine "I took my dog"
    qkv look runs/mine "I took my dog for a walk"
    qkv heads runs/mine --data english
    qkv serve runs/mine
"""

from ex09_gpt import GPT

__all__ = ["GPT"]
'''
"""The text of mine.py."""
