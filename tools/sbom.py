"""Write sbom.cdx.json, the bill of materials that the wheel carries (PEP 770): `python -m tools.sbom`.

CycloneDX 1.6: what the wheel itself holds beside code, with hashes, and what it requires. It has no date and no random
number, so that two builds have the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import nearfar

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "sbom.cdx.json"
WEIGHTS = ROOT / "src/nearfar/weights"


def bill() -> dict[str, Any]:
    """Return the bill of materials as plain values."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = f"pkg:pypi/nearfar@{nearfar.__version__}"
    weights = [_file(path) for path in sorted(WEIGHTS.rglob("*.safetensors"))]
    libraries = [_library(line) for line in sorted(project["dependencies"])]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": "nearfar",
                "version": nearfar.__version__,
                "purl": own,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": [*weights, *libraries],
        "dependencies": [{"ref": own, "dependsOn": [part["bom-ref"] for part in libraries]}],
    }


def _file(path: Path) -> dict[str, Any]:
    name = path.relative_to(ROOT / "src").as_posix()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {
        "type": "machine-learning-model",
        "bom-ref": name,
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }


def _library(line: str) -> dict[str, Any]:
    requirement = Requirement(line)
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{requirement.name}",
        "name": requirement.name,
        "purl": f"pkg:pypi/{requirement.name}",
        "scope": "required",
        "properties": [{"name": "nearfar:versions", "value": str(requirement.specifier)}],
    }


def text() -> str:
    """Return the file."""
    return json.dumps(bill(), indent=2) + "\n"


if __name__ == "__main__":
    PLACE.write_text(text())
    print(f"wrote {PLACE.name}")
