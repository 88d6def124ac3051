"""A notebook server's side of a kernel, in a process of its own: compute, interrupt, load, restart, load, end."""

from __future__ import annotations

import ast
import json
import sys
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

WAIT_S = 60


def use(kernel: Any, client: Any) -> None:
    """Compute in a kernel, and interrupt what it computes."""

    def interrupt(message: dict[str, Any]) -> None:
        if "begun" in message["content"].get("text", ""):
            kernel.interrupt_kernel()

    assert client.execute_interactive("import numpy", timeout=WAIT_S)["content"]["status"] == "ok"
    code = "print('begun', flush=True)\nimport time\ntime.sleep(600)"
    answer = client.execute_interactive(code, timeout=WAIT_S, output_hook=interrupt)
    assert answer["content"]["ename"] == "KeyboardInterrupt"
    assert client.execute_interactive("1", timeout=WAIT_S)["content"]["status"] == "ok"


def loaded(client: Any, path: str) -> Any:
    """Load an array in a kernel. Return its sum, and which loads of the kernel came from shared memory."""
    code = f"import json, sys, numpy\nmade = numpy.load({path!r})\nhooks = sys.modules.get('trims_client.transparent')"
    said = {"said": "json.dumps([float(made.sum()), hooks.report().shared if hooks else {}])"}
    answer = client.execute_interactive(code, timeout=WAIT_S, user_expressions=said)
    return json.loads(ast.literal_eval(answer["content"]["user_expressions"]["said"]["data"]["text/plain"]))


def main() -> None:
    """Use the kernel of a specification, whose words go to standard error; print what it loads, restarted, too."""
    spec = json.loads(sys.argv[1])
    kernel: Any = KernelManager()
    kernel._kernel_spec = KernelSpec(**spec, resource_dir="")
    kernel._kernel_spec.argv = [*spec["argv"][:2], "--why", *spec["argv"][2:]]
    kernel.start_kernel()
    client = kernel.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=WAIT_S)
        use(kernel, client)
        found = [loaded(client, sys.argv[2])]
        kernel.restart_kernel(now=True)
        client.wait_for_ready(timeout=WAIT_S)
        sys.stdout.write(f"\n{json.dumps([*found, loaded(client, sys.argv[2])])}\n")
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


if __name__ == "__main__":
    main()
