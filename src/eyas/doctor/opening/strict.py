"""Whether Eyas itself would load a draft or a dump, and what it says if not."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from eyas.errors import UserError, WiringError

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination


def refusal(exam: Examination) -> str | None:
    """The message of the reader that refuses the draft, in one line; None if it loads."""
    from eyas.draft.checkpoint import read_draft
    from eyas.formats import import_draft

    draft = exam.draft
    assert draft is not None
    try:
        if draft.is_eyas:
            read_draft(draft.folder)
        else:
            with tempfile.TemporaryDirectory() as folder:
                import_draft(draft.folder, Path(folder) / "draft", target=_target(exam))
    except UserError as error:
        return " ".join(str(error).split())
    except Exception as error:  # a reader that stumbles over a damaged file has refused it as well
        return f"{type(error).__name__}: {error}"
    return None


def dump_refusal(path: Path) -> tuple[str, bool] | None:
    """The message of the reader that refuses one of Eyas's dumps, by manifest and headers, and whether it says that the wiring was edited
    or files were mixed. None if training would read the dump.
    """
    from eyas.data.store import Dump, shard_samples

    try:
        dump = Dump.open(path)
        for shard in dump.manifest["batch_plan"]["shards"]:
            dump.sample(shard_samples(shard)[0])
    except UserError as error:
        return " ".join(str(error).split()), isinstance(error, WiringError)
    except Exception as error:  # as above
        return f"{type(error).__name__}: {error}", False
    return None


def _target(exam: Examination) -> str | None:
    """The importer reads the target's tokenizer too: without one it goes by the checkpoint alone."""
    folder = exam.exhibits.target_folder
    return str(folder) if folder is not None and (folder / "tokenizer.json").is_file() else None
