"""Folders of Hugging Face models: `folder` says which files make a model, `converter` makes its image."""
