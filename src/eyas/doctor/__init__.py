"""The doctor: from a low acceptance to the cause and the fix. `diagnose` works through `checks`, cheapest and likeliest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eyas.doctor.exhibits import Exhibits, Options
    from eyas.doctor.hypothesis import Diagnosis


def diagnose(exhibits: Exhibits, options: Options | None = None) -> Diagnosis:
    """Raises UserError for exhibits that do not exist; whatever is wrong inside of them is a finding."""
    from eyas.doctor.exhibits import Options
    from eyas.doctor.runner import run

    return run(exhibits, options or Options())
