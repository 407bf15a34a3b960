"""Other projects' checkpoints, both ways; `formats.dumps` does the same for their dumps of hidden states."""

from eyas.formats.exporting import export_draft, export_loaded
from eyas.formats.importing import import_draft
from eyas.formats.registry import FORMATS
from eyas.formats.report import ConfigChanges, ExportReport, ImportReport

__all__ = ["FORMATS", "ConfigChanges", "ExportReport", "ImportReport", "export_draft", "export_loaded", "import_draft"]
