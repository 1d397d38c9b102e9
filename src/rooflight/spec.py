"""One step, one description: `StepSpec` holds all that says which step of which model is meant, and how it is run.

Each of its fields is defined once, here. The options of every verb, the keys of a study's grid, Python's keywords, what
goes together, the fields of a ledger's header that say how to make it again, and every command that rooflight prints
are made from that. Nothing here imports torch: what is wrong with a step is said before the slow import.
"""

from __future__ import annotations

import difflib
import inspect
import operator
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from keyword import iskeyword
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, TypedDict, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from rooflight.errors import BadInput
from rooflight.ledger import Execution, Header, StepKind

Verb = Literal["estimate", "measure", "predict", "study"]
Dtype = Literal["fp32", "bf16", "fp16", "fp64"]
HalfPrecision = Literal["bf16", "fp16"]
Loss = Literal["cross-entropy", "mse", "sum"]
Optimizer = Literal["sgd", "momentum", "adam", "adamw"]
Kind = Literal["text", "shape", "number", "choice", "flag", "switch", "modules", "settings"]
_EVERY: tuple[Verb, ...] = ("estimate", "measure", "predict", "study")
_PREDICTED: tuple[Verb, ...] = ("predict", "study")
_TORCH_DTYPES = {"float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
                 "float64": "fp64", "double": "fp64"}  # fmt: skip
_SHAPE = re.compile(r"(int:|float:)?[1-9]\d{0,8}(x[1-9]\d{0,8}){0,7}")
POSITIONAL = "input "
"""With its number, the name of an input that has no other."""
NOT_ACCUMULATED = "--accumulate with several GPUs is not modelled: leave one of them out"
_NOTHING: tuple[Any, ...] = (None, (), {})
"""What in Python stands for a field that is not given."""


@dataclass(frozen=True, eq=False)
class Field:
    """One field of a step. What stands in the class below is in the first group, the rest is read off it."""

    help: str
    metavar: str | None = None
    keyword: str = ""
    """Python's, where it is not the field's name."""
    verbs: tuple[Verb, ...] = _EVERY
    step: StepKind | None = None
    """The only kind of step that it goes with."""
    by_name: bool = False
    """Only for a model that is built by its name: a live module has its own."""
    kind: Kind | None = None

    name: str = ""
    key: str = ""
    """In files, and as an option: `set` for the field `settings`."""
    choices: tuple[str, ...] = ()
    default: Any = None

    @property
    def option(self) -> str:
        return f"--{self.key.replace('_', '-')}"

    def is_given(self, value: Any) -> bool:
        return bool(value != self.default)

    def words(self, value: Any) -> Iterator[str]:
        """The value on a command line."""
        if self.kind in ("flag", "switch"):
            yield self.option if value else f"--no-{self.option.removeprefix('--')}"
        elif self.kind == "settings":
            for name, text in value.items():
                yield from (self.option, f"{name}={text}")
        else:
            yield from (self.option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value))

    def read(self, value: Any, *, several: bool = False) -> Any:
        """The value as Python or a file gives it, checked. `several`: more numbers than one may be given."""
        match self.kind:
            case "number":
                if several and isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
                    found = tuple(dict.fromkeys(self._number(one) for one in value))
                    if not found:
                        raise BadInput(f"{self.option} has no size in it: give one or more")
                    return found[0] if len(found) == 1 else found
                return self._number(value)
            case "flag" | "switch":
                if type(value).__name__ not in ("bool", "bool_"):  # the second is numpy's
                    raise BadInput(f"{self.option} is True or False, not {value!r}")
                return bool(value)
            case "choice":
                text = _TORCH_DTYPES.get(name := str(value).removeprefix("torch."), name)
                if text not in self.choices:
                    raise BadInput(f"{self.option} must be one of {', '.join(self.choices)}, got {value!r}")
                return text
            case "modules":
                return module_names(value)
            case "settings":
                return settings_of(value)
            case "shape":
                text = value if isinstance(value, str) else shape_text(value)
                if not _SHAPE.fullmatch(text.strip().lower()):
                    raise BadInput(f"{self.option} {text!r} is no shape: write the sizes of one sample, without the "
                                   "batch, as in 3x224x224 or int:128")  # fmt: skip
                return text.strip().lower()
        if not isinstance(value, str) or not value.strip():
            raise BadInput(f"{self.option} must be a text, got {value!r}")
        return value

    def _number(self, value: Any) -> int:
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None:
            raise BadInput(f"{self.option} must be a whole number, got {value!r}")
        if number < 1:
            raise BadInput(f"{self.option} must be at least 1, got {number}")
        return number


class StepSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A step of a model, with all that it takes to run it again. What is left out is as usual."""

    model: Annotated[str, Field("As `rooflight estimate` takes it, or the class of a live module.")]
    batch: Annotated[
        int | tuple[int, ...] | None,
        Field("Samples in a step of one device (a micro-batch with --accumulate)."),
    ] = 1
    seq: Annotated[int | None, Field("Sequence length, for models that have one.")] = None
    past: Annotated[
        int | None, Field("Tokens in the KV cache, for --step decode.", step="decode", by_name=True)
    ] = None  # fmt: skip
    step: Annotated[StepKind, Field("infer (for language models: prefill), train, or decode one token.")] = "infer"
    dtype: Annotated[Dtype, Field("Convert the whole model.", by_name=True)] = "fp32"
    autocast: Annotated[HalfPrecision | None, Field("Run under autocast instead of converting the model.")] = None
    tf32: Annotated[
        bool | None,
        Field("TF32 for fp32 convolutions and matmuls. Default: as torch (convolutions yes, matmuls no)."),
    ] = None
    loss: Annotated[
        Loss | None,
        Field("mse is the mean square of the output (in fp32). Default: by the model's task.", step="train"),
    ] = None
    optimizer: Annotated[
        Optimizer | None, Field("Default: momentum for vision, adamw for transformers.", step="train")
    ] = None
    foreach: Annotated[
        bool | None,
        Field("Optimizer over all tensors at once, or tensor by tensor. Default: as torch chooses.", step="train"),
    ] = None
    fused: Annotated[bool, Field("The optimizer's step in one kernel (torch's fused=True).", step="train")] = False
    accumulate: Annotated[int, Field("Micro-batches before the optimizer steps.", step="train")] = 1
    checkpoint: Annotated[
        tuple[str, ...],
        Field("Modules that run again in backward instead of keeping what they make: h.*, or blocks for all repeated "
              "ones.", metavar="MODULES", step="train", kind="modules"),
    ] = ()  # fmt: skip
    channels_last: Annotated[bool, Field("Model and images in channels_last (NHWC).")] = False
    compile: Annotated[bool, Field("The step as torch.compile runs it.")] = False
    graphs: Annotated[bool, Field("The step captured as one CUDA graph, and replayed.")] = False
    pad: Annotated[
        bool,
        Field("Sizes of matrix products that are no multiples of 8, padded to multiples of 64.", verbs=_PREDICTED),
    ] = False
    input: Annotated[
        str | None,
        Field("Shape of one sample: 3x224x224, or int:128 for tokens.", metavar="SHAPE", keyword="input_shape",
              by_name=True, kind="shape"),
    ] = None  # fmt: skip
    settings: Annotated[
        dict[str, str],
        Field("A constructor argument of the model, e.g. channels=20,40. Repeatable.", metavar="NAME=VALUE",
              keyword="overrides", by_name=True),
    ] = msgspec.field(default_factory=dict, name="set")  # fmt: skip
    download: Annotated[
        bool,
        Field("Allow hf: and timm: to download a configuration.", by_name=True),
    ] = False  # fmt: skip
    gpus: Annotated[
        int,
        Field("GPUs; more than a node of the device holds are in several. The batch is then a replica's.",
              verbs=_PREDICTED),
    ] = 1  # fmt: skip
    nodes: Annotated[int, Field("Nodes, with --gpus in each.", verbs=_PREDICTED)] = 1
    parallel: Annotated[
        str | None,
        Field("ddp (default), fsdp, zero1, zero2, zero3, tp, pp, or tensor x pipeline x data as 8x4x2.",
              metavar="HOW", verbs=_PREDICTED),
    ] = None  # fmt: skip
    micro_batches: Annotated[
        int | None, Field("Of a replica's batch. Default: 4 a pipeline stage.", verbs=_PREDICTED)
    ] = None

    @classmethod
    def given(cls, model: Any, keywords: Mapping[str, Any], *, verb: Verb, inputs: Sequence[Any] = (),
              kwargs: Mapping[str, Any] | None = None) -> StepSpec:  # fmt: skip
        """The step that a caller of Python means: `model` is a name, a live module, or a spec, which says it all;
        `inputs` and `kwargs` are what a live module is called with."""
        if not isinstance(kwargs, (NoneType, Mapping)):
            raise BadInput(f"kwargs are what the model is called with by name, as {{'mask': mask}}, not {kwargs!r}")
        if isinstance(model, (str, StepSpec)) and (inputs or kwargs):
            raise BadInput("inputs go with a live module; a model by name gets its own (use --batch, --seq, --input)")
        known = {field.keyword: field for field in fields_for(verb)}
        if unknown := [name for name in keywords if name not in known]:
            names = [*_OWN_KEYWORDS.get(verb, ()), *known]
            options = {option: keyword for keyword, option in _OPTIONS_OF.items() if keyword in names}
            options |= {field.key: keyword for keyword, field in known.items()}
            near = [options[unknown[0]]] if unknown[0] in options else difflib.get_close_matches(unknown[0], names, n=1)
            hint = f"did you mean {near[0]}? There" if near else "there"
            raise TypeError(f"{verb}() takes no keyword {unknown[0]!r}; {hint} are {', '.join(names)}")
        given = {known[name]: value for name, value in keywords.items() if value is not None}
        if isinstance(model, StepSpec):
            if given:
                raise BadInput(f"the step is described already: leave {next(iter(given)).option} out, or make "
                               "another description")  # fmt: skip
            return model.check()
        values = {field.name: field.read(value, several=verb == "predict" and field.name == "batch")
                  for field, value in given.items()}  # fmt: skip
        values = _without_ignored(values)
        if isinstance(model, str):
            return cls(model=model, **values).check()
        if own := [field.option for field, value in given.items() if field.by_name and value is not False]:
            raise BadInput(f"{', '.join(own)}: only for a model by name; a live module is traced with the inputs you "
                           "pass")  # fmt: skip
        return cls(model=type(getattr(model, "_orig_mod", model)).__name__, **{"batch": None, **values}).check()

    @classmethod
    def of(cls, header: Header) -> StepSpec:
        """The step that a ledger is of. What an older header does not hold is read from its command."""
        values: dict[str, Any] = {}
        said = parse(header.command)[0] if _verb_of(header.command, header.model) else {}
        for field in FIELDS.values():
            value = getattr(header, field.name, field.default)
            if field.choices and value not in field.choices:  # as the loss of a model that has its own
                value = field.default
            values[field.name] = said.get(field.name, value) if value == field.default else value
        values |= {"batch": header.batch, "compile": header.is_compiled, "graphs": header.is_graph,
                   "seq": _length_of(header) or said.get("seq"), "tf32": _tf32_of(header, values["tf32"])}  # fmt: skip
        if is_live(header):
            values |= {"batch": _given_batch(header), "seq": header.seq}
        return cls(**values)

    def check(self) -> Self:
        """Every value by itself, and what goes together."""
        for field in FIELDS.values():
            value = getattr(self, field.name)
            if field.is_given(value) and value is not None:
                field.read(value, several=True)
            if field.step not in (None, self.step) and field.is_given(value):
                raise BadInput(f"{field.option} goes with --step={field.step}: add it, or leave {field.option} out")
        if self.foreach is not None and self.fused:
            raise BadInput("choose one of --foreach and --fused: an optimizer is one or the other")
        if self.accumulate > 1 and self.gpus * self.nodes > 1:
            raise BadInput(NOT_ACCUMULATED)
        return self

    @property
    def execution(self) -> Execution:
        """How the step is run."""
        return execution(compile=self.compile, graphs=self.graphs)

    @property
    def batches(self) -> tuple[int, ...]:
        """Every size that was asked for; none: as the inputs of a live module have it."""
        return () if self.batch is None else (self.batch,) if isinstance(self.batch, int) else self.batch

    @property
    def build(self) -> dict[str, Any]:
        """What the models room is asked for, beside the batch."""
        return {"step": self.step, "seq": self.seq, "past": self.past,
                "dtype": self.dtype if FIELDS["dtype"].is_given(self.dtype) else None,
                "overrides": self.settings or None, "input_shape": self.input, "download": self.download}  # fmt: skip

    def _given(self, verb: Verb) -> Iterator[tuple[Field, Any]]:
        """All that is not as usual, of what the verb takes."""
        for field in fields_for(verb):
            value = getattr(self, field.name)
            if field.is_given(value) and value is not None:
                yield field, value

    def words(self, verb: Verb = "estimate", **more: Any) -> list[str]:
        """`command` word by word."""
        return [*_words(verb, self.model), *(word for field, value in self._given(verb)
                                             for word in field.words(value)), *_options(more)]  # fmt: skip

    def command(self, verb: Verb = "estimate", **more: Any) -> str:
        """The shell command that runs the step again; `more` are further options of the verb.

        >>> StepSpec(model="resnet50", batch=16, step="train").command("predict", on="h200")
        'rooflight predict resnet50 --batch 16 --step train --on h200'
        """
        return shlex.join(self.words(verb, **more))

    def python_call(self, verb: Verb = "estimate", *, inputs: Iterable[str] = (POSITIONAL,), **more: Any) -> str:
        """The same for a live module, which no command can build: what it is called with is yours to give. `inputs` are
        their names, as a header has them."""
        names = tuple(inputs)
        numbered = [name for name in names if re.fullmatch(rf"{POSITIONAL}\d*", name)]
        places = [int(name.removeprefix(POSITIONAL) or 0) for name in numbered]
        several = range(max(places, default=-1) + 1)
        called = ["x"] if len(several) == 1 else [f"x{place}" for place in several]
        if by_keyword := dict.fromkeys(name for name in names if name not in numbered):
            values = {name: name if name.isidentifier() and not iskeyword(name) else "..." for name in by_keyword}
            called.append(f"kwargs={{{', '.join(f'{_python(name)}: {value}' for name, value in values.items())}}}")
        given = {"batch": self.batch} | {field.keyword: value for field, value in self._given(verb)
                                         if not field.by_name}  # fmt: skip
        said = [f"{name}={_python(value)}" for name, value in {**given, **more}.items() if value is not None]
        return f"rooflight.{verb}({', '.join(['model', *called, *said])})"

    def asked(self, verb: Verb, *, live: Iterable[str] | None, **keywords: Any) -> str:
        """For the header of what Python asks for: the call of a live module with such inputs, or the command that is
        the same; `keywords` are the verb's."""
        if live is not None:
            return self.python_call(verb, inputs=live, **keywords)
        return self.command(verb, **{_OPTIONS_OF.get(name, name): value for name, value in keywords.items()})


_ONCE_IGNORED = ("past", "loss", "optimizer", "foreach", "accumulate")
"""What Python took with any step, and left aside where it does not belong."""


def _without_ignored(values: dict[str, Any]) -> dict[str, Any]:
    kept = dict(values)
    for name in _ONCE_IGNORED:
        field = FIELDS[name]
        if name in kept and field.step not in (None, values.get("step", "infer")) and field.is_given(kept.pop(name)):
            warnings.warn(in_python(f"{field.option} goes with --step={field.step}: it is left aside here, and will be "
                                    "refused"), DeprecationWarning, stacklevel=4)  # fmt: skip
    return kept


def execution(*, compile: bool, graphs: bool) -> Execution:
    """The word of a ledger's header for it."""
    if compile:
        return "compile+graph" if graphs else "compile"
    return "graph" if graphs else "eager"


def _read_fields() -> dict[str, Field]:
    """The definitions above, each with what the class says of it."""
    hints = get_type_hints(StepSpec, include_extras=True)
    found = {}
    for one in msgspec.structs.fields(StepSpec):
        type_, field = get_args(hints[one.name])
        plain = [part for part in (get_args(type_) if get_origin(type_) in (Union, UnionType) else (type_,))
                 if part is not NoneType]  # fmt: skip
        choices = get_args(plain[0]) if get_origin(plain[0]) is Literal else ()
        default = {} if one.default_factory is dict else None if one.default is msgspec.NODEFAULT else one.default
        kind: Kind = field.kind or (
            "choice" if choices else "number" if int in plain else "settings" if get_origin(plain[0]) is dict
            else "text" if bool not in plain else "switch" if default is None else "flag"
        )  # fmt: skip
        found[one.name] = replace(field, name=one.name, key=one.encode_name, kind=kind, choices=choices,
                                  default=default, keyword=field.keyword or one.name)  # fmt: skip
    return found


FIELDS: Mapping[str, Field] = _read_fields()
"""By name, the model first."""


def fields_for(verb: Verb) -> list[Field]:
    """What the verb takes beside the model."""
    return [field for field in FIELDS.values() if field.name != "model" and verb in field.verbs]


def by_option() -> dict[str, Field]:
    """Of all verbs."""
    return {field.option: field for field in FIELDS.values() if field.name != "model"}


# --- values ---


def module_names(value: str | Sequence[str]) -> tuple[str, ...]:
    """Paths and patterns one by one: they may come as a list, or with commas between them."""
    texts = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    parts = [part.strip() for text in texts for part in text.split(",")] if all(
        isinstance(text, str) for text in texts) else []  # fmt: skip
    if not all(parts) or not parts:
        raise BadInput("--checkpoint wants paths of modules such as layer1.0 or h.*, or the word blocks")
    return tuple(dict.fromkeys(parts))


def settings_of(value: Any) -> dict[str, str]:
    """`NAME=VALUE` in a list, or a mapping, whose values may be of any kind."""
    if isinstance(value, Mapping):
        return {str(name): ",".join(map(str, one)) if isinstance(one, (list, tuple)) else str(one)
                for name, one in value.items()}  # fmt: skip
    found = {}
    for text in value if isinstance(value, (list, tuple)) else [value]:
        name, equals, one = str(text).partition("=")
        if not equals or not name.strip():
            raise BadInput(f"--set wants NAME=VALUE, as in --set=channels=20,40, got {text!r}")
        found[name.strip()] = one.strip()
    return found


def shape_text(value: Any) -> str:
    """`3x224x224` of the sizes, or of what `parse_input` gives."""
    try:
        return "x".join(str(operator.index(size)) for size in value)
    except TypeError:
        return str(value)


# --- the command line ---


def shell(verb: str, *words: object, **more: Any) -> str:
    """A command of any verb, quoted: `shell("report", path, output="report.html")`."""
    return shlex.join([*_words(verb, *words), *_options(more)])


def _words(verb: str, *words: object) -> list[str]:
    return ["rooflight", verb, *map(str, words)]


def _options(more: Mapping[str, Any]) -> Iterator[str]:
    for name, value in more.items():
        several = isinstance(value, (list, tuple))
        for one in value if several and name in _REPEATABLE else [",".join(map(str, value)) if several else value]:
            if one is not None and one is not False:
                yield "-o" if name == "output" else f"--{name.replace('_', '-')}"
                yield from () if one is True else [str(one)]


_REPEATABLE = ("level", "metrics")
"""Options that are given once for every value; others take values with commas."""


def parse(command: str) -> tuple[dict[str, Any], list[str]]:
    """The fields that a command of rooflight gives, and its other words behind the verb."""
    known = by_option()
    values: dict[str, Any] = {}
    rest: list[str] = []
    words = iter(_after_program(command)[1:])
    for word in words:
        option, equals, value = word.partition("=")
        field = known.get(option) or known.get(option.replace("--no-", "--", 1))
        if field is None:
            rest.append(word)
        elif field.kind in ("flag", "switch"):
            values[field.name] = option == field.option
        else:
            text = value if equals else next(words, "")
            if field.kind == "settings":
                values.setdefault(field.name, {}).update(settings_of(text))
            elif field.kind == "number":
                values[field.name] = field.read([int(part) for part in text.split(",")], several=True)
            else:
                values[field.name] = field.read(text)
    return values, rest


def _after_program(command: str) -> list[str]:
    """The verb and what follows: options of the program may stand before it."""
    program, *words = shlex.split(command) or [""]
    return words[next((place for place, word in enumerate(words) if not word.startswith("-")), 0):] if (
        program == "rooflight") else []  # fmt: skip


def _verb_of(command: str, model: str) -> str:
    """Of a command of rooflight that runs a step of that very model, else nothing."""
    try:
        words = _after_program(command)
        parse(command)
    except (ValueError, BadInput):
        return ""
    return words[0] if model in words[1:] and words[0] in _EVERY else ""


def repeat(header: Header, *, measured: bool) -> str:
    """What makes a ledger again: the command, with what else its own asked of a measurement, or for a live module the
    call."""
    spec = StepSpec.of(header)
    verb: Verb = "measure" if measured else "estimate"
    if is_live(header) and measured:
        told = header.command.startswith(f"rooflight.{verb}(")
        return header.command if told else spec.python_call(verb, inputs=inputs_of(header))
    target = None if header.target == "cuda" else header.target
    if is_live(header):
        on = None if header.traced_on == "meta" else header.traced_on
        return spec.python_call(verb, inputs=inputs_of(header), target=target, on=on)
    if not measured:
        return spec.command(verb, target=target)
    if _verb_of(header.command, header.model) != verb:
        return spec.command(verb, on=header.target.partition(":")[0])
    asked = [*_of_measuring(parse(header.command)[1])]
    if header.target == "cpu" and not any(word.startswith("--on") for word in asked):
        asked += ["--on", "cpu"]  # which was all there was
    return shlex.join([*spec.words(verb), *asked])


def inputs_of(header: Header) -> list[str]:
    """Names of what a live module was called with; an older or shorter header does not tell."""
    return [name for name, _ in header.inputs] or [POSITIONAL]


_MEASURING = ("--on", "--counters", "--level", "--metrics", "--per-kernel", "--spread", "--repeat", "--compile-mode")


def _of_measuring(rest: Sequence[str]) -> Iterator[str]:
    """What says how a step is measured: how it is shown, and where the result went, are no part of how it was made."""
    words = iter(rest)
    for word in words:
        option, equals, _ = word.partition("=")
        if option in _MEASURING:
            yield word
            if not equals and option not in ("--per-kernel", "--spread"):
                yield from [next(words, "")]


def is_live(header: Header) -> bool:
    """Was it a module that nobody can build by its name? Older ledgers tell by the name: classes have capitals."""
    return header.live or (":" not in header.model and header.model != header.model.lower())


def _length_of(header: Header) -> int | None:
    """The length as it was asked for; where no one tells, that of a model that takes it from --seq alone."""
    if header.seq is not None or header.step == "decode" or header.input is not None:
        return header.seq
    is_factory = ":" in header.model and not header.model.startswith("hf:")
    return None if is_factory else header.sequence


def _given_batch(header: Header) -> int | None:
    """Of a live module, where its inputs do not tell the batch that it has: someone gave it."""
    first = {tensor.shape[0] for _, tensor in header.inputs if tensor.shape}
    return None if first == {header.batch} else header.batch


_FIRST_WITH_TF32 = 80
"""Compute capability times ten."""


def _tf32_of(header: Header, asked: bool | None) -> bool | None:
    """As asked for, or as torch's switches were where they are not torch's own. What was traced for a GPU without TF32
    does not tell."""
    modes, (kind, _, capability) = header.math, header.target.partition(":")
    untold = kind == "cpu" or (capability.isdigit() and int(capability) < _FIRST_WITH_TF32)
    if asked is not None or modes is None or untold or modes.tf32_conv != modes.tf32_matmul:
        return asked
    return modes.tf32_conv


# --- words for Python ---

_OTHER_KEYWORDS = {"on": "on", "target": "target", "tier": "tier", "ppp": "ppp", "roofline": "roofline",
                   "calibration": "calibration", "memory": "memory", "max-batch": "max_batch", "max-seq": "max_seq",
                   "allocator": "allocator", "counters": "counters", "level": "levels", "metrics": "metrics",
                   "per-kernel": "per_kernel", "spread": "spread", "repeat": "repeat",
                   "compile-mode": "compile_mode", "to": "to", "width": "width", "chart": "chart",
                   "section": "sections", "claims": "claims", "force": "force=True"}  # fmt: skip
"""Options of single verbs that are keywords too."""
_OPTIONS_OF = {"levels": "level", "device": "on", "folder": "output"}
"""Where a keyword of a single verb is another word than its option: messages name it by the keyword, as `--device`."""
_VERBS = "estimate|measure|run|predict|calibrate|compare|study|import|doctor|report|list"
_KEYWORDS = {field.option[2:]: field.keyword for field in FIELDS.values()} | _OTHER_KEYWORDS | {
    name: name for name in _OPTIONS_OF}  # fmt: skip
_NAMED = re.compile(
    rf"`[^`]*`|\b(?:rooflight (?:{_VERBS})|docker run|podman run) [^`]*|"
    rf"--(no-)?({'|'.join(sorted(_KEYWORDS, key=len, reverse=True))})(?![\w-])"
    r"(?:=(.+?)(?=[\s;)]|[.:,]?$|[.:,]\s))?"
)
"""An option in a message, with `=` before its value. Whole commands stay as they are."""


def in_python(text: str) -> str:
    """A message that names options as `--step=train`, in the words of Python: `step="train"`."""

    def spoken(found: re.Match[str]) -> str:
        no, name, value = found.groups()
        if name is None:
            return found[0]
        if no:
            return f"{_KEYWORDS[name]}=False"
        if value is None:
            return _KEYWORDS[name]
        if name == "set":
            return f"overrides={settings_of(value)!r}"
        return f"{_KEYWORDS[name]}={value if value.isdigit() else _python(value.strip(chr(39)))}"

    return _NAMED.sub(spoken, text)


def as_options(text: str) -> str:
    """The same as a command line has it: `--step train`."""

    def spoken(found: re.Match[str]) -> str:
        said = found[0] if found[3] is None else found[0].replace("=", " ", 1)
        if found[2] not in _OPTIONS_OF:
            return said
        return said.replace(f"--{found[2]}", next(_options({_OPTIONS_OF[found[2]]: True})), 1)

    return _NAMED.sub(spoken, text)


def _python(value: Any) -> str:
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
    loss: str | None
    optimizer: str | None
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


class PredictKeywords(StepKeywords, total=False):
    """Those of `predict` besides."""

    pad: bool
    gpus: int
    nodes: int
    parallel: str | None
    micro_batches: int | None


_OWN_KEYWORDS: dict[Verb, list[str]] = {}
"""Of the functions that take a step, those beside it."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


def takes_step(verb: Verb) -> Callable[[_Function], _Function]:
    """Shows Python's help, and whoever asks for the signature, the keywords behind `**step`; of a study, the axes."""
    types = PredictKeywords.__annotations__ | StepKeywords.__annotations__
    names = {field.name: field.key if verb == "study" else field.keyword for field in fields_for(verb)}

    def shown(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        _OWN_KEYWORDS[verb] = [one.name for one in own if one.kind is one.KEYWORD_ONLY]
        step = [inspect.Parameter(names[field.name], inspect.Parameter.KEYWORD_ONLY,
                                  default=None if field.default in _NOTHING else field.default,
                                  annotation=types[field.keyword].__forward_arg__)
                for field in fields_for(verb)]  # fmt: skip
        cast(Any, function).__signature__ = signature.replace(parameters=[*own, *step])
        return function

    return shown
