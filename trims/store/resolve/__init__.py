"""Resolution from a name to the key of an image: manifest, files, digests, recipe. Doors: `resolver`, `lookups`."""
