"""Templates and workers that are kept ready before a request comes, and the memory they may take. Door: `warm_pool`."""
