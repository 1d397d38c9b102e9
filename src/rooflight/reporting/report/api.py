"""`rooflight.report`: what is known of a ledger, a pair or a study, as a page, as tables, or as pictures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rooflight.errors import BadInput
from rooflight.files import load, write_atomically
from rooflight.hardware.device import Device
from rooflight.hardware.devices import USUAL
from rooflight.ledger import Ledger
from rooflight.reporting.document import Document
from rooflight.reporting.ledger_documents import is_log
from rooflight.reporting.report.arranged import arranged
from rooflight.reporting.writers import Form, check_width, form_of, write
from rooflight.study.api import Study

Source = Ledger | Study | str | Path
On = str | Device | Sequence[str | Device]


def report(
    source: Source | Sequence[Source],
    output: str | Path | None = None,
    *,
    to: Form | None = None,
    on: On = USUAL,
    chart: str | None = None,
    sections: Sequence[str] = (),
    claims: str | Path | None = None,
    width: str | None = None,
    force: bool = False,
) -> Document | Path:
    """The report of a ledger, of two side by side, or of a study; in a file where `output` names one.

    `source`: a Ledger, a Study, a path, a study's folder, `recorded:NAME`, or two ledgers in a list. `to`: the form,
    else the ending of the file's name says it. `on`: the devices whose times and memory are predicted. `chart`: which
    picture, for png, svg and pdf. `sections`: only these. `claims`: a table (CSV) to be checked against the ledger.
    `width`: what a table of LaTeX may take, such as "16cm"; else as much as the text of an A4 article, 345 pt.

        >>> rooflight.report("recorded:h200/resnet50-train-fp32", "report.html")
    """
    path = None if output is None else Path(output)
    form = None if path is None else to or form_of(path)
    check_width(width, form)
    made = make(source, on=on, claims=claims)
    if path is None or form is None:
        return made
    write_atomically(path, write(made, form, chart=chart, sections=sections, width=width), force=force)
    return path


def make(source: Source | Sequence[Source], *, on: On = USUAL, claims: str | Path | None = None) -> Document:
    """The report itself."""
    sources: list[Any] = list(source) if isinstance(source, (list, tuple)) else [source]
    if wrong := [one for one in sources if not isinstance(one, (Ledger, Study, str, Path))]:
        raise BadInput(f"a report is of a Ledger, a Study or where one is kept, not of {type(wrong[0]).__name__}")
    found = [_loaded(one) for one in sources]
    study = next((one for one in found if isinstance(one, Study)), None)
    if study is not None:
        if len(found) > 1:
            raise BadInput("a study is reported alone: leave the other out")
        if claims is not None:
            raise BadInput("a study has its own claims, in its plan: a table of them goes with one ledger")
        from rooflight.reporting.report.of_study import study_report

        return study_report(study.rows, study.plan, folder=str(study.folder))
    ledgers, names = arranged([one for one in found if isinstance(one, Ledger)], [_name(one) for one in sources])
    return named_report(ledgers, names, on=on, claims=None if claims is None else Path(claims))


def named_report(ledgers: Sequence[Ledger], names: Sequence[str], *, on: On = USUAL, claims: Path | None = None,
                 say: Callable[[str], None] | None = None) -> Document:  # fmt: skip
    """Of one ledger, or of two side by side; `names` are where they are from. `say` is told what is looked for."""
    from rooflight.prediction.asked import devices_of

    if not 1 <= len(ledgers) <= 2:
        raise BadInput("a report is of one ledger, of two side by side, of the ranks of one run, or of a study: "
                       f"{len(ledgers)} ledgers were given")  # fmt: skip
    devices = devices_of(on, None)
    if any(device.kind != "gpu" for device in devices):
        raise BadInput("a report predicts on GPUs: name some with --on (see `rooflight list devices`)")
    ledger = ledgers[0]
    if claims is not None and (len(ledgers) == 2 or ledger.header.step is None):
        raise BadInput("a table of claims is checked against one step: give one ledger of one")
    if len(ledgers) == 2:
        from rooflight.reporting.report.of_pair import pair_report

        return pair_report(*ledgers, sources=(names[0], names[1]), devices=devices)
    if is_log(ledger):
        from rooflight.reporting.report.of_log import log_report

        return log_report(ledger, source=names[0])
    from rooflight.reporting.report.of_ledger import ledger_report

    rows = None
    if claims is not None:  # before the work: the file may not be there
        from rooflight.claims import read_claims

        rows = read_claims(claims)
    made = ledger_report(ledger, source=names[0], devices=devices, **({} if say is None else {"say": say}))
    if rows is None:
        return made
    from rooflight.reporting.report.of_claims import with_claims

    return with_claims(made, ledger, rows, file=str(claims))


def _loaded(source: Source) -> Ledger | Study:
    if isinstance(source, (Ledger, Study)):
        return source
    if Path(source).is_dir():
        from rooflight.study.api import load as load_study

        return load_study(Path(source))
    return load(source)


def _name(source: Source) -> str:
    """As a command line takes it; a ledger that was never a file has none."""
    if isinstance(source, Ledger):
        return ""
    return shlex.quote(str(source.folder) if isinstance(source, Study) else str(source))
