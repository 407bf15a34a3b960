"""Where the doctor's HTML pages come from: the templates of this room, everything in them escaped, nothing in them missing."""

from __future__ import annotations

import jinja2


def environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("eyas.doctor", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
