"""Many GPUs: from one GPU's step to the step of a data, tensor or pipeline parallel run. Nothing here needs torch.

layout         `--parallel ddp`, `8x4x2`: how many ranks of each kind, and where they lie
fabric         what joins the GPUs: NVLink or PCIe in a node, a network between nodes, with achieved bandwidths
communication  time of a collective; PALEO's own models beside
step           the input (`TimedStep`) and the two clocks of host and GPU
blocks, split  what of a model repeats, and which part of it tensor parallelism divides
ddp, sharded, tensor, pipeline   one kind of parallelism each
combined       all of them together: `predict`
states         parameters, gradients and optimizer state of one GPU
scaling        weak and strong scaling
"""
