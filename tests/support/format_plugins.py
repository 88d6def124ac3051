"""Third-party converters and builders, as text that a test writes to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.formats.conversion.build import build_artifact
from trims.testing.converters import LIMITS

if TYPE_CHECKING:
    from pathlib import Path


PLUGIN = """
class Converter:
    format = "{name}"
    version = 3
    host_specific = True
    def needs_child(self, options): return False
    def frameworks(self, options): return ("numpy", "no-such-distribution")
    def claims(self, main, first_bytes): return {claims}
    def files(self, main, options): return (main,)
    def plan(self, artifact): raise NotImplementedError
"""


BUILDERS = """
import os, sys
def one(out_dir, text="x"):
    (out_dir / "model.bin").write_text(text)
def several(out_dir):
    (out_dir / "sub").mkdir()
    (out_dir / "sub" / "weights").write_text("w")
    (out_dir / "model").write_text("m")
    return "sub/weights"
def unsaid(out_dir):
    (out_dir / "a").write_text(""); (out_dir / "b").write_text("")
def nothing(out_dir): pass
def wrong_name(out_dir):
    one(out_dir)
    return "other.bin"
def outside(out_dir): return "../../etc/passwd"
def no_name(out_dir): return 3
def fails(out_dir): raise ValueError("the weights are sold out")
def dies(out_dir):
    (out_dir / "half").write_text("h")
    os._exit(4)
def counted(out_dir, log):
    with open(log, "a") as file: file.write("built\\n")
    one(out_dir)
def sees(out_dir):
    import json, sys
    found = {"prefix": sys.prefix, "path": sys.path, "trims": sys.modules["trims"].__file__}
    for name in ("numpy", "trims_client", "yaml"):
        try: __import__(name)
        except ImportError: found[name] = False
        else: found[name] = True
    (out_dir / "sees").write_text(json.dumps(found))
"""


def build(name: str, target: Path, folder: Path, python: Path | None = None, **args: Any) -> Path:
    return build_artifact(f"builders_of_test:{name}", args, target, python=python, limits=LIMITS, extra_paths=[folder])
