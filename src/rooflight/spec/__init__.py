"""One step, one description: `StepSpec` holds all that says which step of which model is meant, and how it is run.

Each of its fields is defined once, in `definition`. The options of every verb, the keys of a study's grid, Python's
keywords, what goes together, the fields of a ledger's header that say how to make it again, and every command that
rooflight prints are made from that. Nothing here imports torch: what is wrong with a step is said before the slow
import.
"""

from rooflight.spec.command_line import parse, shell
from rooflight.spec.definition import FIELDS, by_option, fields_for
from rooflight.spec.fields import Field, Verb, module_names, settings_of
from rooflight.spec.headers import POSITIONAL, inputs_of, is_live
from rooflight.spec.keywords import MeasureKeywords, PredictKeywords, StepKeywords, as_options, in_python, takes_step
from rooflight.spec.reproduction import repeat
from rooflight.spec.step import BOTH_BATCHES, NOT_ACCUMULATED, StepSpec, execution, is_program, program_name
from rooflight.spec.total_batch import part_of, with_part_of

__all__ = [
    "BOTH_BATCHES",
    "FIELDS",
    "NOT_ACCUMULATED",
    "POSITIONAL",
    "Field",
    "MeasureKeywords",
    "PredictKeywords",
    "StepKeywords",
    "StepSpec",
    "Verb",
    "as_options",
    "by_option",
    "execution",
    "fields_for",
    "in_python",
    "inputs_of",
    "is_live",
    "is_program",
    "module_names",
    "parse",
    "part_of",
    "program_name",
    "repeat",
    "settings_of",
    "shell",
    "takes_step",
    "with_part_of",
]
