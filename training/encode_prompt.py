"""Encode the empty prompt once, so that training never loads the text encoder:"""

import sys

from worldmodel.training.encode_prompt import main

if __name__ == "__main__":
    sys.exit(main())
