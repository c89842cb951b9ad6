"""Fill the latent cache of a training config, with several processes:"""

import sys

from worldmodel.training.encode_latents import main

if __name__ == "__main__":
    sys.exit(main())
