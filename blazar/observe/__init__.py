"""What the gateway tells about itself.

Observers never hold the loop, never change what they see, and lose rather than block.
"""
