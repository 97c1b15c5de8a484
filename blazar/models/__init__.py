"""Models: what a GGUF file says of itself, where known ones come from, and the shelf on which they stand.

Weights are plain files below `<data>/models`, hard-linked where they came from a file of the user's. A model appears on
the shelf when its row is in the store, and not before its file is whole and readable.
"""
