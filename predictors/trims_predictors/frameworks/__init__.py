"""Predictors for the frameworks, and what warms each of them up before a model is known.

Doors: `resolve`, `torch`, `onnxruntime`, `mxnet`, `function`, `handler`.
"""

#: Framework -> module of its predictor and its warm-ups.
WARM_UPS = {
    "torch": "trims_predictors.frameworks.torch",
    "transformers": "trims_predictors.frameworks.transformers.predictor",
    "onnxruntime": "trims_predictors.frameworks.onnxruntime",
    "mxnet": "trims_predictors.frameworks.mxnet",
}
#: Frameworks that can compute with another number of threads than in the run before. ONNX Runtime's threads belong to a
#: session. Kernels of MXNet keep the number of their first run: one that began beside others would stay slow.
SHARING = {"torch": "trims_predictors.frameworks.torch"}
#: Framework of a manifest -> the predictor that trims has for it.
PREDICTORS = {
    "torch": "trims_predictors.frameworks.torch:TorchPredictor",
    "transformers": "trims_predictors.frameworks.transformers.predictor:TransformersPredictor",
    "onnxruntime": "trims_predictors.frameworks.onnxruntime:OnnxPredictor",
    "mxnet": "trims_predictors.frameworks.mxnet:MxnetPredictor",
}
#: Kinds of names by which a deployment names a predictor.
CLASS, PLUGIN, FUNCTION, HANDLER = "class", "plugin", "function", "handler"
#: Input and output of a handler, and the option that says what it gets its model as.
EVENT, ANSWER, AS = "event", "answer", "as"
