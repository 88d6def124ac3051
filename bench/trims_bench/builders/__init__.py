"""Models in their real architectures with seeded weights, made where no published file can be had.

Each module has `build(out_dir, *, seed) -> str`, which writes an artifact and returns the name of its main
file. The same seed gives the same bytes. The weights are drawn so that activations keep their scale through
the depth: timings and memory are those of the trained model, the answers mean nothing.
"""
