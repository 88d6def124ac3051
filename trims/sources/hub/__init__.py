"""The scheme `hf`: repositories of the Hugging Face hub, its API, and the cache that its clients share.

Door: `source`.
"""
