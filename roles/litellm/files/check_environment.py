"""Looks at a virtual environment without running anything in it: arguments are its path and the denied versions of LiteLLM.

Files that Python runs at start (`.pth`, `sitecustomize.py`, `usercustomize.py`) and `cook.py` are how stolen releases got in.
"""

import pathlib
import sys

KNOWN = {
    "distutils-precedence.pth": "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == 'local'; "
    "enabled and __import__('_distutils_hack').add_shim();",
}
root, denied = pathlib.Path(sys.argv[1]), set(sys.argv[2:])
faults = []
for site in root.glob("lib/python3*/site-packages"):
    for path in sorted(site.glob("*.pth")):
        if KNOWN.get(path.name, "").split() != path.read_text(errors="replace").split():
            faults.append(f"{path}: runs code when Python starts")
    for name in ("sitecustomize", "usercustomize", "cook"):
        faults += [f"{path}: runs code when Python starts" for path in sorted(site.glob(f"{name}*")) if path.suffix != ".dist-info"]
    for path in sorted(site.glob("litellm-*.dist-info")):
        version = path.name.removeprefix("litellm-").removesuffix(".dist-info")
        if version in denied:
            faults.append(f"{path}: LiteLLM {version} is denied")
if not list(root.glob("lib/python3*/site-packages/litellm-*.dist-info")):
    faults.append(f"{root}: LiteLLM is not installed")
sys.exit("\n".join(faults) or 0)
