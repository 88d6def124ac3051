"""What a machine with a GPU says of the GPU tier (`make gpu-check`): tests, experiments, figures, in one file."""
