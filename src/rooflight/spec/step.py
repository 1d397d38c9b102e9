"""`StepSpec`: which step of which model is meant, and how it is run."""

from __future__ import annotations

import difflib
import functools
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from keyword import iskeyword
from types import NoneType
from typing import Any, Self

from rooflight.errors import BadInput
from rooflight.ledger import OWN_LOSS, Execution, Header
from rooflight.spec.command_line import command_words, option_words, parse, verb_of
from rooflight.spec.definition import FIELDS, StepFields, fields_for
from rooflight.spec.fields import CallersOwn, Field, Verb, is_own
from rooflight.spec.headers import POSITIONAL, batch_given, is_live, length_of, tf32_of
from rooflight.spec.keywords import OPTIONS_OF, OWN_KEYWORDS, python_literal

BOTH_BATCHES = "--total-batch is that of all GPUs together, --batch that of each: leave one of them out"
NOT_ACCUMULATED = "--accumulate with several GPUs is not modelled: leave one of them out"


class StepSpec(StepFields, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A step of a model, with all that it takes to run it again. What is left out is as usual."""

    @classmethod
    def given(
        cls,
        model: Any,
        keywords: Mapping[str, Any],
        *,
        verb: Verb,
        inputs: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        labels: Any = None,
    ) -> StepSpec:
        """The step that a caller of Python means: `model` is a name, a live module, or a spec, which says it all;
        `inputs` and `kwargs` are what a live module is called with, `labels` what its loss gets."""
        if not isinstance(kwargs, (NoneType, Mapping)):
            raise BadInput(
                "bad-option-type",
                f"kwargs are what the model is called with by name, as {{'mask': mask}}, not {kwargs!r}",
            )
        if isinstance(model, (str, StepSpec)) and (inputs or kwargs):
            raise BadInput(
                "needs-a-module",
                "inputs go with a live module; a model by name gets its own (use --batch, --seq, --input)",
            )
        fields = {field.keyword: field for field in fields_for(verb)}
        if unknown := next((name for name in keywords if name not in fields), None):
            names = [*OWN_KEYWORDS.get(verb, ()), *fields]
            options = {option: keyword for keyword, option in OPTIONS_OF.items() if keyword in names}
            options |= {field.key: keyword for keyword, field in fields.items()}
            near = [options[unknown]] if unknown in options else difflib.get_close_matches(unknown, names, n=1)
            hint = f"did you mean {near[0]}? There" if near else "there"
            raise TypeError(f"{verb}() takes no keyword {unknown!r}; {hint} are {', '.join(names)}")
        given = {fields[name]: value for name, value in keywords.items() if value is not None}
        if {FIELDS["batch"], FIELDS["total_batch"]} <= given.keys():
            raise BadInput("two-batches", BOTH_BATCHES)
        if isinstance(model, StepSpec):
            if given:
                raise BadInput(
                    "described-already",
                    f"the step is described already: leave {next(iter(given)).option} out, or make another description",
                )
            return model.check()
        values = {
            field.name: field.read(value, several=verb == "predict" and field.name == "batch", own=True)
            for field, value in given.items()
        }
        if isinstance(model, str):
            return cls(model=model, **values).check()
        if is_program(model):
            said = [field.option for field in given if field.name not in _OF_A_PROGRAM]
            if said := [*said, *([] if labels is None else ["--labels"])]:
                raise BadInput(
                    "step-of-your-own", f"{', '.join(said)}: a step of your own says that itself; leave it out"
                )
            return cls(model=program_name(model) or "step", **{"batch": None, **values}).check()
        if by_name := [field.option for field, value in given.items() if field.by_name and value is not False]:
            raise BadInput(
                "needs-a-model-name",
                f"{', '.join(by_name)}: only for a model by name; a live module is traced with the inputs you pass",
            )
        return cls(model=type(getattr(model, "_orig_mod", model)).__name__, **{"batch": None, **values}).check()

    @classmethod
    def of(cls, header: Header) -> StepSpec:
        """The step that a ledger is of. What an older header does not hold is read from its command."""
        values: dict[str, Any] = {}
        said = parse(header.command)[0] if verb_of(header.command, header.model) else {}
        for field in FIELDS.values():
            value = getattr(header, field.name, field.default)
            if field.choices and value not in field.choices:
                is_callers = field.own and value not in (None, OWN_LOSS)
                value = CallersOwn(value) if is_callers else field.default
            values[field.name] = said.get(field.name, value) if value == field.default else value
        values |= {
            "batch": header.batch,
            "compile": header.is_compiled,
            "graphs": header.is_graph,
            "seq": length_of(header) or said.get("seq"),
            "tf32": tf32_of(header, values["tf32"]),
        }
        if is_live(header):
            values |= {"batch": batch_given(header), "seq": header.seq}
        return cls(**values)

    def check(self) -> Self:
        """Every value by itself, and what goes together."""
        for field in FIELDS.values():
            value = getattr(self, field.name)
            if field.is_given(value) and value is not None:
                field.read(value, several=True, own=True)
            if field.step not in (None, self.step) and field.is_given(value):
                raise BadInput(
                    "option-needs-another",
                    f"{field.option} goes with --step={field.step}: add it, or leave {field.option} out",
                )
        for name in ("seq", "input"):  # --seq alone is the length of the cache, too
            if self.past is not None and getattr(self, name) is not None:
                raise BadInput(
                    "option-conflict",
                    f"decode makes one token after --past={self.past}: leave {FIELDS[name].option} out",
                )
        if self.foreach is not None and self.fused:
            raise BadInput("option-conflict", "choose one of --foreach and --fused: an optimizer is one or the other")
        if self.accumulate > 1 and self.gpus * self.nodes > 1:
            raise BadInput("option-conflict", NOT_ACCUMULATED)
        return self

    @property
    def has_own(self) -> bool:
        """Is the loss or the optimizer the caller's own, which no command can name?"""
        return is_own(self.loss) or is_own(self.optimizer)

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
        return {
            "step": self.step,
            "seq": self.seq,
            "past": self.past,
            "dtype": self.dtype if FIELDS["dtype"].is_given(self.dtype) else None,
            "overrides": self.settings or None,
            "input_shape": self.input,
            "download": self.download,
        }

    def _given_fields(self, verb: Verb) -> Iterator[tuple[Field, Any]]:
        """All that is not as usual, of what the verb takes. Of a total batch each replica's part follows."""
        fields = fields_for(verb)
        follows = "batch" if self.total_batch is not None and FIELDS["total_batch"] in fields else ""
        for field in fields:
            value = getattr(self, field.name)
            if field.is_given(value) and value is not None and field.name != follows:
                yield field, value

    def words(self, verb: Verb = "estimate", **more: Any) -> list[str]:
        """`command` word by word."""
        return [
            *command_words(verb, self.model),
            *(word for field, value in self._given_fields(verb) for word in field.words(value)),
            *option_words(more),
        ]

    def command(self, verb: Verb = "estimate", **more: Any) -> str:
        """The shell command that runs the step again; `more` are further options of the verb.

        >>> StepSpec(model="resnet50", batch=16, step="train").command("predict", on="h200")
        'rooflight predict resnet50 --batch 16 --step train --on h200'
        """
        return shlex.join(self.words(verb, **more))

    def python_call(self, verb: Verb = "estimate", *, inputs: Iterable[str] | None = (POSITIONAL,), **more: Any) -> str:
        """The same for a live module, which no command can build: what it is called with is yours to give. `inputs` are
        their names, as a header has them; `None`: it is a model by name, with a loss or an optimizer of yours."""
        names = tuple(inputs or ())
        numbered = [name for name in names if re.fullmatch(rf"{POSITIONAL}\d*", name)]
        count = 1 + max((int(name.removeprefix(POSITIONAL) or 0) for name in numbered), default=-1)
        called = ["x"] if count == 1 else [f"x{place}" for place in range(count)]
        if by_keyword := dict.fromkeys(name for name in names if name not in numbered):
            values = {name: name if name.isidentifier() and not iskeyword(name) else "..." for name in by_keyword}
            entries = ", ".join(f"{python_literal(name)}: {value}" for name, value in values.items())
            called.append(f"kwargs={{{entries}}}")
        by_name = inputs is None
        given = {} if by_name else {"batch": self.batch}
        given |= {field.keyword: value for field, value in self._given_fields(verb) if by_name or not field.by_name}
        said = [f"{name}={python_literal(value)}" for name, value in {**given, **more}.items() if value is not None]
        model = [python_literal(self.model)] if by_name else ["model", *called]
        return f"rooflight.{verb}({', '.join([*model, *said])})"

    def asked(self, verb: Verb, *, live: Iterable[str] | None, **keywords: Any) -> str:
        """For the header of what Python asks for: the call of a live module with such inputs, or the command that is
        the same; `keywords` are the verb's."""
        if live is not None or self.has_own:
            return self.python_call(verb, inputs=live, **keywords)
        return self.command(verb, **{OPTIONS_OF.get(name, name): value for name, value in keywords.items()})


def execution(*, compile: bool, graphs: bool) -> Execution:
    """The word of a ledger's header for it."""
    if compile:
        return "compile+graph" if graphs else "compile"
    return "graph" if graphs else "eager"


_OF_A_PROGRAM = ("tf32",)
"""What is asked of a step of the caller's own; all else is his to write."""


def is_program(model: object) -> bool:
    """Is it a step of the caller's own: something to be called that is neither a model nor a class?"""
    torch: Any = sys.modules.get("torch")
    return callable(model) and not isinstance(model, type) and not (torch and isinstance(model, torch.nn.Module))


def program_name(step: Any) -> str:
    """What the caller calls his step."""
    step = step.func if isinstance(step, functools.partial) else step
    name: str = getattr(step, "__qualname__", type(step).__name__).rpartition("<locals>.")[2]
    return "step" if "<lambda>" in name else name
