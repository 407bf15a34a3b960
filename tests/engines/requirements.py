"""Prints what wheels require for this machine, without the torch family and without each other.

    python requirements.py WHEEL... > requirements.txt

The engines' wheels ask for builds of torchvision, torchaudio and torchcodec that text models do not need.
"""

import email
import sys
import zipfile
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

_LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")


def requirements(wheel: Path) -> list[Requirement]:
    """The requirements without extras that apply to this interpreter."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    found = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    return [item for item in found if item.marker is None or item.marker.evaluate({"extra": ""})]


if __name__ == "__main__":
    wheels = [Path(name) for name in sys.argv[1:]]
    given = {wheel.name.split("-")[0].replace("_", "-").lower() for wheel in wheels}
    for wheel in wheels:
        for item in requirements(wheel):
            if item.name.lower() not in given | set(_LEFT_OUT):
                item.marker = None
                print(item)
