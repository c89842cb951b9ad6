"""Run a study of this folder: python eval/study.py NAME ...

python eval/study.py                 lists the names
python eval/study.py NAME --help     what the study does, and its settings
"""

import importlib
import sys
from pathlib import Path

STUDIES = sorted(path.parent.name for path in Path(__file__).parent.glob("studies/*/run.py"))

if __name__ == "__main__":
    if sys.argv[1:2] == [] or sys.argv[1] not in STUDIES:
        sys.exit(f"usage: python eval/study.py NAME ..., where NAME is one of: {', '.join(STUDIES)}")
    sys.exit(importlib.import_module(f"studies.{sys.argv[1]}.run").main(sys.argv[2:]))
