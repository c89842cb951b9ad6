"""Do autoencoders agree with each other and with the factors?"""
