"""List the shipped configs, or print one."""

import argparse
from collections.abc import Sequence

from worldmodel.cli_errors import one_way_out
from worldmodel.shipped import find_config, preset_names


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and print."""
    parser = argparse.ArgumentParser(
        description="List the shipped configs, or print one to start from. "
        "Commands take a preset by its name wherever they take a config file."
    )
    parser.add_argument("preset", nargs="?", help="print this one (default: list all)")
    name = parser.parse_args(argv).preset
    print("\n".join(preset_names()) if name is None else find_config(name).read_text().rstrip())
    return 0
