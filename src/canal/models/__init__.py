"""Models: the U-Net, the tap that reads any layer of any network, and checkpoints, no pickle."""
