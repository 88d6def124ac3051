"""Predictors for the frameworks, and what warms each of them up before a model is known."""

#: Framework -> module of its predictor and its warm-ups.
WARM_UPS = {
    "torch": "trims_predictors.builtin.torch",
    "onnxruntime": "trims_predictors.builtin.onnxruntime",
    "mxnet": "trims_predictors.builtin.mxnet",
}
#: Framework of a manifest -> the predictor that trims has for it.
PREDICTORS = {
    "torch": "trims_predictors.builtin.torch:TorchPredictor",
    "onnxruntime": "trims_predictors.builtin.onnxruntime:OnnxPredictor",
    "mxnet": "trims_predictors.builtin.mxnet:MxnetPredictor",
}
