"""What a run ends with, in a line."""

import hashlib


def fingerprint(model):
    tensors = [tensor.detach().cpu().contiguous().numpy().tobytes() for tensor in model.state_dict().values()]
    return hashlib.sha256(b"".join(tensors)).hexdigest()
