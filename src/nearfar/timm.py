"""Register our nets, joined encoders and small stems with timm: `import nearfar.timm`, then
`timm.create_model("local-dir:RUN")`.

Runs of timm's own nets need no import of nearfar at all.
"""

from nearfar.networks import joined, timm_entries  # noqa: F401
