"""Fills, from the key of an image to its bytes in a place: measure, fill, verify, free. Door: `runner`."""
