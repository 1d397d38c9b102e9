"""How well a training that somebody runs uses its device: logged every few steps, to the logger that is set there.

`meter` counts and computes, and knows no library; `trainer` and `lightning` listen to one each.
"""

from rooflight.callbacks.api import log_training

__all__ = ["log_training"]
