"""A page that a program writes parts of: what stands between two marks is replaced, the rest is somebody's text.

<!-- table: examples/story/run.sh -->
| written | by the program |
<!-- end of table -->
"""

from __future__ import annotations

import re

from eyas.errors import UserError


def fill(page: str, name: str, writer: str, text: str) -> str:
    """`page` with `text` in the part called `name`, which `writer` writes. Raises UserError unless the page has its marks once."""
    begin, end = f"<!-- {name}: {writer} -->", f"<!-- end of {name} -->"
    filled, count = re.subn(re.escape(begin) + ".*?" + re.escape(end), lambda _: f"{begin}\n{text}\n{end}", page, flags=re.DOTALL)
    if count != 1:
        raise UserError(
            f"the page must hold {begin} and {end} once", got=f"{count} times", remedy="put the marks back where the part stood"
        )
    return filled
