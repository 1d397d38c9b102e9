"""Many GPUs: from one GPU's step to the step of a data, tensor or pipeline parallel run. Nothing here needs torch.

communication                     time of a collective; PALEO's own models beside
step                              the input (`TimedStep`), and what a kind of parallelism makes of it
data_parallel, tensor, pipeline   one kind of parallelism each
combined                          all of them together: `predict`
scaling                           weak and strong scaling
"""
