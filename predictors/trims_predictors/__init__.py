"""Isolated predictors: processes that answer with a model over its shared weights, and the endpoint before them.

    class Doubler:                                    # what a manifest names as `predictor: {call: my_models:Doubler}`
        def load(self, weights, context):             # weights are attached, nothing was copied
            self.factor = weights["factor"]

        def predict(self, inputs):                    # name -> numpy array, checked against the manifest
            return {"doubled": inputs["x"] * self.factor}

        def unload(self):
            pass

Predictors are forked from templates, processes that have imported their framework already; `trims endpoint` answers
requests of the Open Inference Protocol by them.

Doors: `api`, `tensors`.
"""

from trims_predictors.api import Context, Predictor

__all__ = ["Context", "Predictor"]
