"""The built-in networks, one family a file, in plain torch.

Each runs the same aten operations in the same order as the implementation that people really use (torchvision's,
Hugging Face's, the PyTorch examples'), under the same module names, so that an estimate made here can be laid beside
a measurement made there. Weights keep torch's default initialisation: only shapes matter to a cost.
"""
