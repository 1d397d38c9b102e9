"""Which ops of the ledger a kernel of a `torch.compile`d step does the work of.

Inductor fuses ops and calls libraries for the rest. While a `Provenance` is open it writes down what every call in the
generated code was made of, and which graphs run (`recording`); `graphs` counts modules and ops over the whole step;
`attribution` lays the launches that a profiler saw beside that list and names the ops.
"""

from rooflight.measurement.execution.provenance.attribution import LaunchContext, walk
from rooflight.measurement.execution.provenance.graphs import CompiledCall, Origin
from rooflight.measurement.execution.provenance.recording import Provenance

__all__ = ["CompiledCall", "LaunchContext", "Origin", "Provenance", "walk"]
