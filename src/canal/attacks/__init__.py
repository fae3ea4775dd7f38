"""What an adversary gets from a release: attacks that try to refute the guarantee."""
