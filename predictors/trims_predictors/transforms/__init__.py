"""Steps around a predictor: from a request's tensors to those that it takes, and from its own to the answer's.

A manifest lists them as `preprocess` and `postprocess` (`trims.manifests.steps` checks the lists). They run in the
predictor's process. `chain` runs a list; the other modules have one family of steps each.
"""
