"""A LeRobot set in which every episode has the commands of another one: a test whose answer must be no.

python -m studies.real_robots.exchange DATA OUT      (in eval/)
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq


def exchange_actions(data: Path, out: Path) -> int:
    """Copy a set; episode i gets the actions of i + 1, whose last one is held where it is shorter."""
    shutil.copytree(data, out)
    files = sorted((out / "data").rglob("*.parquet"))
    tables = [pq.read_table(file) for file in files]
    for number, (file, table) in enumerate(zip(files, tables, strict=True)):
        other = tables[(number + 1) % len(tables)]["action"]
        rows = np.minimum(np.arange(len(table)), len(other) - 1)
        place = table.schema.get_field_index("action")
        pq.write_table(table.set_column(place, table.schema.field(place), other.take(rows)), file)
    return len(files)


if __name__ == "__main__":
    print(exchange_actions(Path(sys.argv[1]), Path(sys.argv[2])), "episodes with the actions of the next one")
