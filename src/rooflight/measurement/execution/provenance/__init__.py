"""Which ops of the ledger a kernel of a `torch.compile`d step does the work of.

Inductor fuses ops and calls libraries for the rest. While a `Provenance` is open it writes down what every call in the
generated code was made of, and which graphs run (`recording`); `graphs` counts modules and ops over the whole step;
`walk` lays the launches that a profiler saw beside that list and names the ops.
"""

from rooflight.measurement.execution.provenance.compiling import compiled, is_compiled
from rooflight.measurement.execution.provenance.graphs import Call, Origin, family
from rooflight.measurement.execution.provenance.nodes import module_path
from rooflight.measurement.execution.provenance.recording import Provenance
from rooflight.measurement.execution.provenance.rows import attribute
from rooflight.measurement.execution.provenance.walk import Launch, walk

__all__ = [
    "Call",
    "Launch",
    "Origin",
    "Provenance",
    "attribute",
    "compiled",
    "family",
    "is_compiled",
    "module_path",
    "walk",
]
