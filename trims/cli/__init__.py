"""The `trims` command. Other packages add commands through the entry-point group `trims.commands`.

Doors: `entry`, `main`.
"""
