"""Entry of a trims command that an endpoint runs: it ends with the endpoint, and its error can be read by programs.

Started with the number of its end of a lifeline, then the command's words. An error of trims is the last line of its
standard error, as JSON with `code` and `error`, and its exit status is `REFUSED`.
"""

from __future__ import annotations

import json
import sys

from trims.cli.main import build_parser
from trims.core.errors import TrimsError
from trims.process.lifeline import depend_on

#: Exit status of a command that an error of trims has ended.
REFUSED = 3


def main() -> int:
    """Run the `trims` command in `sys.argv` for the endpoint, and return its exit status."""
    depend_on(int(sys.argv[1]))
    options = build_parser(sys.argv[2]).parse_args(sys.argv[2:])
    try:
        status = int(options.run(options) or 0)
    except TrimsError as error:
        sys.stderr.write(json.dumps({"code": error.code, "error": str(error)}) + "\n")
        return REFUSED
    except KeyboardInterrupt:
        return 130
    sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
