"""trims: a resident model store."""
