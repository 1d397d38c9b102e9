"""The fields as Python's keywords, and messages that name them: in options for a terminal, in keywords for Python."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, cast

from rooflight.ledger import StepKind
from rooflight.spec.command_line import option_words
from rooflight.spec.definition import FIELDS, fields_for
from rooflight.spec.fields import Verb, is_own, own_name, settings_of

_SAME_KEYWORDS = (
    "on like target tier ppp roofline calibration memory max-batch max-seq allocator counters metrics per-kernel "
    "spread repeat compile-mode to width chart claims labels"
)
"""Options of single verbs that are keywords too."""
_OTHER_KEYWORDS = {
    "level": "levels",
    "section": "sections",
    "force": "force=True",
    "real-data": "real_data=True",
}
OPTIONS_OF = {"levels": "level", "device": "on", "folder": "output"}
"""Where a keyword of a single verb is another word than its option: messages name it by the keyword, as `--device`."""
_VERBS = "estimate|measure|run|predict|accuracy|calibrate|compare|study|import|doctor|report|list"
_KEYWORDS = (
    {field.option[2:]: field.keyword for field in FIELDS.values()}
    | {name: name.replace("-", "_") for name in _SAME_KEYWORDS.split()}
    | _OTHER_KEYWORDS
    | {name: name for name in OPTIONS_OF}
)
_NAMED = re.compile(
    rf"`[^`]*`|\b(?:rooflight (?:{_VERBS})|docker run|podman run) [^`]*|"
    rf"--(no-)?({'|'.join(sorted(_KEYWORDS, key=len, reverse=True))})(?![\w-])"
    r"(?:=(.+?)(?=[\s;)]|[.:,]?$|[.:,]\s))?"
)
"""An option in a message, with `=` before its value. Whole commands stay as they are."""


def in_python(text: str) -> str:
    """A message that names options as `--step=train`, in the words of Python: `step="train"`."""

    def spoken(match: re.Match[str]) -> str:
        no, name, value = match.groups()
        if name is None:
            return match[0]
        if no:
            return f"{_KEYWORDS[name]}=False"
        if value is None:
            return _KEYWORDS[name]
        if name == "set":
            return f"overrides={settings_of(value)!r}"
        return f"{_KEYWORDS[name]}={value if value.isdigit() else python_literal(value.strip(chr(39)))}"

    return _NAMED.sub(spoken, text)


def as_options(text: str) -> str:
    """The same as a command line has it: `--step train`."""

    def spoken(match: re.Match[str]) -> str:
        _, name, value = match.groups()
        said = match[0] if value is None else match[0].replace("=", " ", 1)
        if name not in OPTIONS_OF:
            return said
        return said.replace(f"--{name}", next(option_words({OPTIONS_OF[name]: True})), 1)

    return _NAMED.sub(spoken, text)


def python_literal(value: Any) -> str:
    if is_own(value):
        return own_name(value)
    return f'"{value}"' if isinstance(value, str) else repr(value)


class StepKeywords(TypedDict, total=False):
    """The fields as keywords of Python, for `estimate`, `measure` and `predict`; a dtype may be torch's own."""

    batch: int | Sequence[int] | None
    seq: int | None
    past: int | None
    step: StepKind
    dtype: Any
    autocast: Any
    tf32: bool | None
    loss: str | Callable[..., Any] | None
    optimizer: Any
    foreach: bool | None
    fused: bool
    accumulate: int
    checkpoint: str | Sequence[str] | None
    channels_last: bool
    compile: bool
    graphs: bool
    input_shape: Any
    overrides: Mapping[str, Any] | None
    download: bool


class MeasureKeywords(StepKeywords, total=False):
    """That of `measure` besides."""

    gpus: int


class PredictKeywords(MeasureKeywords, total=False):
    """Those of `predict` besides."""

    pad: bool
    nodes: int
    parallel: str | None
    micro_batches: int | None
    total_batch: int | None


OWN_KEYWORDS: dict[Verb, list[str]] = {}
"""Of the functions that take a step, those beside it."""
_NOTHING: tuple[Any, ...] = (None, (), {})
"""What in Python stands for a field that is not given."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


def takes_step(verb: Verb) -> Callable[[_Function], _Function]:
    """Shows Python's help, and whoever asks for the signature, the keywords behind `**step`; of a study, the axes."""
    types = PredictKeywords.__annotations__ | MeasureKeywords.__annotations__ | StepKeywords.__annotations__
    names = {field.name: field.key if verb == "study" else field.keyword for field in fields_for(verb)}

    def shown(function: _Function) -> _Function:
        signature = inspect.signature(function)
        parameters = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
        OWN_KEYWORDS[verb] = [item.name for item in parameters if item.kind is item.KEYWORD_ONLY]
        step = [
            inspect.Parameter(
                names[field.name],
                inspect.Parameter.KEYWORD_ONLY,
                default=None if field.default in _NOTHING else field.default,
                annotation=types[field.keyword].__forward_arg__,
            )
            for field in fields_for(verb)
        ]
        cast(Any, function).__signature__ = signature.replace(parameters=[*parameters, *step])
        return function

    return shown
