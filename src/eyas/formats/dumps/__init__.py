"""Other projects' dumps of hidden states: what they hold, read safely, and into Eyas's own store. One file a format."""

from eyas.formats.dumps.detect import is_foreign_dump
from eyas.formats.dumps.importing import DumpImportReport, import_dump

__all__ = ["DumpImportReport", "import_dump", "is_foreign_dump"]
