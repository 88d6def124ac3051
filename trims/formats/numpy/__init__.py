"""Arrays of NumPy, alone and in zip files. Doors: `npy`, `npz`."""
