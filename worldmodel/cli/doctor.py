"""Check the installation: versions, decoders, devices, disk, write access, optional packages."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from worldmodel.cli_errors import one_way_out


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run; returns 1 if a required part does not work."""
    parser = argparse.ArgumentParser(
        description="Check that this installation works, with hints where it does not. "
        "Exit code 1 when something that is needed is broken; missing optional parts are only named.",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("outputs"), help="folder that runs will write to (outputs)"
    )
    parser.add_argument(
        "--model", help="also list what loading this model folder would read, without loading"
    )
    arguments = parser.parse_args(argv)
    from worldmodel.cli.installation import check_installation

    findings = check_installation(arguments.output, arguments.model)
    for finding in findings:
        print(finding.line())
    broken = [finding for finding in findings if finding.state == "broken"]
    print(f"{len(broken)} of {len(findings)} checks failed" if broken else "everything that is needed works")
    return 1 if broken else 0
