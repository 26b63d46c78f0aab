"""From a folder of images to the items of an index."""
