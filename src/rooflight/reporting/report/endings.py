"""The forms that a report can have, and the endings of files that ask for them."""

from __future__ import annotations

from typing import Literal, get_args

Form = Literal["html", "md", "latex", "csv", "json", "png", "svg", "pdf"]
FORMS: tuple[Form, ...] = get_args(Form)
ENDINGS: dict[str, Form] = {**{form: form for form in FORMS}, "htm": "html", "tex": "latex"}
