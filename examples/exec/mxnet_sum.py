"""Run an MXNet model on ones: python mxnet_sum.py PREFIX SIZE..., as `mx.model.load_checkpoint` takes it."""

import sys

import mxnet

symbol, arguments, states = mxnet.model.load_checkpoint(sys.argv[1], 0)
shape = tuple(int(size) for size in sys.argv[2:])
module = mxnet.mod.Module(symbol, label_names=None, context=mxnet.cpu())
module.bind(for_training=False, data_shapes=[("data", shape)])
module.set_params(arguments, states)
module.forward(mxnet.io.DataBatch([mxnet.nd.ones(shape)]), is_train=False)
print(round(float(module.get_outputs()[0].sum().asscalar()), 4))
