"""Check of the GPU tier on a machine with a GPU (`make gpu-check`): tests, experiments, figures, in one file.

Door: `check`.
"""
